"""`llmd-oke check`: what it tells of a plan."""

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from llmd_oke import planning
from llmd_oke.catalogue.operations import bring_up_facts
from llmd_oke.cli import console
from llmd_oke.cli.main import app
from llmd_oke.cli.plan_summary import MOST_DECISIONS
from rich.console import Console
from stack_files import PROJECT, model, stack, write
from typer.testing import CliRunner

NODE_DISK = {"storage": {"modelCache": {"kind": "node-disk"}}}


def check(project: Path, *options: str, **changes: Any) -> str:
    (project / "Pulumi.yaml").write_text("name: mine\n")
    write(project, "s", {**stack(model("1p-tp8-1d-tp8")), **changes})
    return CliRunner().invoke(app, ["check", "--stack", "s", "--project", str(project), *options]).output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (NODE_DISK, "with the code that another of its kind compiled on the node (assumed;"),
        ({}, "it compiles each time"),
    ],
)
def test_check_says_whether_later_starts_reuse_compiled_code(tmp_path: Path, changes: dict[str, Any], words: str):
    (line,) = [line for line in check(tmp_path, **changes).splitlines() if "start of a server" in line]
    assert words in line


def test_check_json_has_the_seconds_of_a_servers_first_and_later_starts(tmp_path: Path):
    start = json.loads(check(tmp_path, "--json", **NODE_DISK))["server_start"]
    assert start["first_s"] - start["again_s"] == pytest.approx(bring_up_facts().server_start.compiling_seconds)
    assert start["source"] == "assumed"


@pytest.mark.parametrize(("engine", "block_size_told"), [({}, True), ({"blockSize": 16}, False)])
def test_check_tells_how_servers_differ_from_those_that_forecasts_were_measured_on(
    tmp_path: Path, engine: dict[str, Any], block_size_told: bool
):
    result = json.loads(check(tmp_path, "--json", models=[model(engine=engine)]))
    differences = result["not_as_measured"]["gpt-oss-120b"]
    assert any(text.startswith("image docker.io/vllm/vllm-openai-rocm:v0.26.0, measured ") for text in differences)
    assert any(text.startswith("block size 128, measured 16") for text in differences) is block_size_told


def test_check_tells_of_no_differences_for_a_model_without_measured_latencies(tmp_path: Path):
    result = json.loads(check(tmp_path, "--json", models=[model("agg-tp8-1r", model="deepseek-r1")]))
    assert result["not_as_measured"] == {}


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """Output on a terminal of 80 columns and 40 lines."""
    shown = StringIO()
    terminal = Console(file=shown, force_terminal=True, color_system=None, width=80, height=40, highlight=False)
    monkeypatch.setattr(console, "output", lambda: terminal)
    return shown


def models(count: int) -> list[dict[str, Any]]:
    """Models of which each calls for decisions of its own."""
    short = {"inputTokens": 100, "outputTokens": 10}
    return [model("1p-tp1-1d-tp1", name=f"m{i}", workload=short, slo={"itlMs": 1}) for i in range(count)]


@pytest.mark.parametrize("count", [1, 9])
def test_on_a_terminal_check_shows_one_screen_with_at_most_five_pieces_of_advice(
    tmp_path: Path, screen: StringIO, count: int
):
    check(tmp_path, models=models(count))
    lines = screen.getvalue().splitlines()
    assert len(lines) <= 40
    assert sum(line.startswith("  models[") for line in lines) <= MOST_DECISIONS
    for fact in ("can be deployed", "$/hour", "to the first token", "llmd-oke check --stack s --explain"):
        assert fact in screen.getvalue()


def test_check_with_explain_shows_all_advice_on_a_terminal(tmp_path: Path, screen: StringIO):
    check(tmp_path, "--explain")
    text = " ".join(screen.getvalue().split())
    for words in ("while no prefill server is ready", "updates of gpt-oss-120b", "cost at list price"):
        assert words in text


def test_check_counts_known_limits_of_the_release_and_marks_their_advice_in_json(tmp_path: Path, screen: StringIO):
    kinds = [item["kind"] for item in json.loads(check(tmp_path, "--json"))["advice"]]
    assert kinds.count("limit") == 5
    assert "decision" in kinds
    check(tmp_path)
    assert "while no prefill server is ready" not in screen.getvalue()
    assert "5 known limits of llm-d-0.9.0 (docs/releases.md)" in " ".join(screen.getvalue().split())


@pytest.mark.parametrize("connector", ["nixl", "mori-io"])
def test_every_reported_known_limit_is_on_its_documentation_page(connector: str):
    page = (PROJECT / "docs" / "releases.md").read_text()
    images = {"vllmImage": "registry.example/vllm:own", "routingSidecarImage": "registry.example/sidecar:own"}
    served = model("1p-tp8-1d-tp8", model="qwen3-32b", engine={"kvCache": {"connector": connector}})
    planned = planning.plan_object(stack(served, release="llm-d-0.10.0", override=images))
    texts = [item.text.rpartition(" (")[0] for item in planned.advice if item.kind == "limit"]
    assert texts
    of_images = re.compile("(endpoint picker|vLLM) [^ ]+: ")  # what has the limit, which on the page is its heading's
    assert [text for text in texts if of_images.sub("", text, 1) not in page] == []
