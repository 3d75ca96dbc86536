"""Answers in the kit's own words to any file or command line: never a traceback, always soon.

The budget is small, so that it runs each time; `LLMD_OKE_EXAMPLES=5000 pytest` on this file looks longer.
"""

import json
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llmd_base.errors import KitError
from llmd_oke.cli.main import app
from llmd_oke.config import load, stacks
from llmd_oke.planning import plan
from llmd_oke.values import read_yaml, values_folder
from mutations import ODD_TEXTS, mutated
from project_entries import write_entry
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("LLMD_OKE_EXAMPLES", "60"))
BOUNDED = settings(
    max_examples=EXAMPLES,
    deadline=5000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

STACKS = [read_yaml(ROOT / "stacks" / f"Pulumi.{name}.yaml") for name in stacks(ROOT)]

TEXTS = st.one_of(
    st.text(max_size=200),
    st.binary(max_size=200),
    st.sampled_from(["[" * 100_000, "{" * 500, "a: &a [*a]", "- " * 100_000, "? [a]\n: b", "&a " * 9, "%YAML 9"]),
)


@st.composite
def torn(draw: st.DrawFn, texts: list[str]) -> bytes:
    """A text with some of its bytes cut out, doubled or replaced."""
    content = draw(st.sampled_from(texts)).encode()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        more = draw(TEXTS)
        piece = more if isinstance(more, bytes) else more.encode("utf-8", "surrogatepass")
        content = content[:at] + piece + content[at + draw(st.integers(0, 40)) :]
    return content


def words(*argv: str) -> None:
    """Run a command; anything but the kit's own refusals and the parser's is a failure of this test."""
    ended = CliRunner().invoke(app, list(argv))
    if ended.exception is not None and not isinstance(ended.exception, (KitError, SystemExit, OSError)):
        raise ended.exception


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    return tmp_path


def plan_or_refuse(project: Path, content: bytes) -> None:
    (project / "stacks/Pulumi.dev.yaml").write_bytes(content)
    with suppress(KitError):
        plan(load(project, "dev"))


@BOUNDED
@given(document=mutated(STACKS))
def test_a_mutated_stack_file_is_planned_or_refused_without_a_traceback(project: Path, document: Any):
    plan_or_refuse(project, yaml.safe_dump(document).encode())


@BOUNDED
@given(content=torn([yaml.safe_dump(document) for document in STACKS]))
def test_a_truncated_stack_file_is_planned_or_refused_without_a_traceback(project: Path, content: bytes):
    plan_or_refuse(project, content)


OWN = {
    f"{kind}/{file.stem}": read_yaml(file)
    for kind in ("models", "shapes", "gpus", "releases", "endpoint-pickers", "images", "prices", "latency/MI300X")
    for file in sorted((values_folder() / kind).glob("*.yaml"))
} | {"container-images/lock": read_yaml(values_folder() / "container-images/lock.yaml")}


@BOUNDED
@given(document=mutated([{path: entry} for path, entry in OWN.items()]), stack=st.sampled_from(["guide", "reference"]))
def test_a_mutated_catalogue_entry_is_used_or_refused_without_a_traceback(project: Path, document: Any, stack: str):
    (project / "stacks" / f"Pulumi.{stack}.yaml").write_text((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())
    shutil.rmtree(project / "values", ignore_errors=True)
    entries = document if isinstance(document, dict) else {}
    for path, entry in entries.items():
        if path in OWN:
            write_entry(project, path, entry)
    words("check", "--stack", stack, "--project", str(project))


QUANTILES = {"mean": 9.0, "p50": 8.0, "p95": 20.0, "p99": 30.0}
ROW = {
    "subject": "end-to-end", "basis": "measured", "model": "m", "gpu": "MI300X", "origin": {"tool": "t", "line": 1},
    "topology": "8p-tp1-4d-tp2", "copies": 1, "gpus_counted": 16, "input_tokens": 5000, "output_tokens": 250,
    "concurrency": 8, "output_tokens_per_s": 900.0, "ttft_ms": QUANTILES, "itl_ms": QUANTILES, "requests": 100,
    "failures": 1, "duration_s": 60.0, "notes": ["n"],
}  # fmt: skip
VLLM = {
    "model_id": "m", "completed": 9, "failed": 1, "num_prompts": 9, "total_input_tokens": 90,
    "total_output_tokens": 90,
    "duration": 3.0, "request_throughput": 3.0, "output_throughput": 30.0, "mean_ttft_ms": 1.0, "request_rate": "inf",
    "max_concurrency": 4, "gpus": 8, "gpu": "MI300X",
}  # fmt: skip
REPORT = {
    "version": "0.2",
    "run": {"uid": "u", "time": {"start": "2026-03-01T12:00:00Z", "end": "2026-03-01T12:01:00Z", "duration": "PT60S"}},
    "scenario": {"stack": [], "load": {"standardized": {"tool": "t", "stage": 0, "source": "random"}}},
    "results": {
        "request_performance": {
            "aggregate": {
                "requests": {"total": 10, "failures": 0, "input_length": {"mean": 5}, "output_length": {"mean": 5}},
                "latency": {"time_to_first_token": {"units": "s", "mean": 0.1}},
                "throughput": {"output_token_rate": {"units": "tokens/s", "mean": 10.0}},
            }
        }
    },
}
DOCUMENTS: dict[str, list[Any]] = {".json": [VLLM, ROW], ".jsonl": [ROW, VLLM], ".yaml": [REPORT]}
LINES = {
    ".csv": ["Prefill,ISL: 128,OSL: 1,,\n,1,Concurrency,1,2\n,1,TP=1,100,200\n,1,TPSG,100,200\n"],
    ".log": [
        "PD_CONFIG_START\nCONFIG: workload=prefill model=m gpu_count=8 tp=1 isl=128 osl=1\nBENCH_RUN: concurrency=4\n"
        "Successful requests:  9\nOutput token throughput (tok/s):  5.0\nTotal token throughput (tok/s):  9.0\n"
        "BENCH_RUN_END: concurrency=4\n"
    ],
}


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".yaml", ".csv", ".log"])
@settings(BOUNDED, max_examples=max(10, EXAMPLES // 3))
@given(data=st.data())
def test_a_mutated_benchmark_result_is_compared_or_refused_without_a_traceback(
    tmp_path: Path, suffix: str, data: st.DataObject
):
    documents = DOCUMENTS.get(suffix, [])
    mutants = [torn([*map(json.dumps, documents), *LINES.get(suffix, [])])]
    if documents:
        mutants.append(mutated(documents).map(lambda found: json.dumps(found).encode()))
    content = data.draw(st.one_of(mutants))
    path = tmp_path / f"result{suffix}"
    path.write_bytes(content)
    words("compare", str(path), str(path), "--hint", "model=m", "--hint", "gpu=MI300X", "--hint", "gpus=8")


@cache
def figures() -> st.SearchStrategy[bytes]:
    """Damaged texts of files with latency figures, and files with damaged figures."""
    files = sorted((values_folder() / "latency").rglob("*.yaml"))[:4]
    figures = mutated([read_yaml(file) for file in files]).map(lambda found: yaml.safe_dump(found).encode())
    return torn([file.read_text() for file in files]) | figures


@settings(BOUNDED, max_examples=max(10, EXAMPLES // 2))
@given(data=st.data())
def test_a_mutated_latency_figures_file_is_read_or_refused_without_a_traceback(tmp_path: Path, data: st.DataObject):
    from llmd_oke.catalogue.latency_figures import read_figures  # noqa: PLC0415

    path = tmp_path / "figures.yaml"
    path.write_bytes(data.draw(figures()))
    with suppress(KitError):
        read_figures(path)


ARGUMENTS = (st.sampled_from(ODD_TEXTS) | st.text(max_size=12)).filter(lambda text: "\x00" not in text)
"""The system passes no zero byte on to a program."""

COMMANDS = (
    ("check", "--stack"),
    ("history", "list", "--history", ".", "--stack"),
    ("history", "show", "--history", ".", "--stack", "dev"),
    ("compare",),
    ("compare", "--fail-on"),
    ("pipeline", "deploy", "--stack"),
    ("images", "list", "--stack"),
    ("recover", "--stack"),
    ("bench", "--url"),
    ("bench", "--url", "http://127.0.0.1:9", "--model", "m", "--requests", "1", "--shape"),
    ("bench", "--url", "http://127.0.0.1:9", "--model", "m", "--shape", "closed:1", "--requests"),
    ("rehearse", "--stack", "none", "--time-scale"),
    ("tune", "--stack"),
)


@BOUNDED
@given(command=st.sampled_from(COMMANDS), more=st.lists(ARGUMENTS, max_size=3))
def test_a_random_command_line_runs_or_is_refused_without_a_traceback(
    project: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], more: list[str]
):
    monkeypatch.chdir(project)
    words(*command, *more)
