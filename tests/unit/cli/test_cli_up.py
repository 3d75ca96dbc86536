"""`up` and `destroy` with --json: one object on standard output, whatever happens. The Pulumi CLI is a script here."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.cli import smoke, up
from llmd_oke.config import validate
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli
from llmd_oke.operations.smoke import SmokeOutcome
from llmd_oke.planning import plan
from llmd_oke.planning.model_plan import PlannedPool
from stack_files import stack, write

STACK = stack(nodes=2, smoke={"where": "client"})

CLI = """#!/bin/sh
here=$(dirname "$0")
case "$1 $2" in
  "refresh "*) ;;
  "preview "*) echo '{"steps": []}' ;;
  "stack export") cat "$here/state" ;;
  "stack output") echo '{"address": "http://router", "token": "[secret]"}' ;;
  "stack history") cat "$here/history" ;;
  *) echo "engine at work"
     echo '[{"startTime": "now", "resourceChanges": {"create": 3, "same": 5}}]' > "$here/history"
     exit "$(cat "$here/status")" ;;
esac
"""

Command = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def command(tmp_path: Path, kit: Callable[..., tuple[int, str, str]], put_pulumi: Callable[[str], None]) -> Command:
    """Run `llmd-oke`, with a Pulumi CLI whose operations end with `status`; return exit code, JSON, standard error."""
    write(tmp_path, "prod", STACK)
    (tmp_path / "history").write_text("[]")
    (tmp_path / "state").write_text(json.dumps({"deployment": {"resources": []}}))
    put_pulumi(CLI)

    def run(*words: str, status: int = 0) -> tuple[int, Any, str]:
        (tmp_path / "status").write_text(str(status))
        code, shown, errors = kit(*words, "--json", "--stack", "prod", "--project", str(tmp_path))
        return code, json.loads(shown), errors

    return run


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what the client's smoke benchmark says: the checks that are not passed, or an error."""

    def say(*failed: str, error: KitError | None = None) -> None:
        def measured(*_: object) -> list[SmokeOutcome]:
            if error:
                raise error
            return [SmokeOutcome("gpt-oss-120b", failed, {"passed": not failed}, "a table", None)]

        def issued(*_: object) -> list[Path]:
            return [Path("reports/prod/smoke.json")]

        monkeypatch.setattr(smoke, "_measured", measured)
        monkeypatch.setattr(smoke, "write_passports", issued)

    return say


def test_an_update_shows_changes_outputs_and_benchmark(command: Command, benchmark: Callable[..., None]):
    benchmark()
    code, document, errors = command("up", "--yes")
    assert (code, document.pop("duration_s") >= 0) == (0, True)
    assert document == {
        "stack": "prod",
        "ok": True,
        "changes": {"create": 3, "same": 5},
        "outputs": {"address": "http://router", "token": "[secret]"},
        "smoke": [{"passed": True}],
        "passports": ["reports/prod/smoke.json"],
    }
    assert "engine at work" in errors


def test_a_failed_update_shows_its_changes_and_exits_with_pulumis_exit_code(command: Command):
    code, document, _ = command("up", "--yes", status=255)
    assert (code, document["ok"], document["changes"]["create"]) == (255, False, 3)
    assert document["error"] == "`pulumi up` ended with exit code 255."


POOL = {
    "urn": "urn:pulumi:prod::p::oci:ContainerEngine/nodePool:NodePool::mi300x-node-pool",
    "type": "oci:ContainerEngine/nodePool:NodePool",
    "id": "ocid1.nodepool",
    "inputs": {"name": "mi300x"},
}


def test_an_update_whose_node_gate_fails_shows_node_costs_and_the_scale_command(command: Command, tmp_path: Path):
    (tmp_path / "state").write_text(json.dumps({"deployment": {"resources": [POOL]}}))
    code, document, errors = command("up", "--yes", status=255)
    assert code == 255
    assert "llmd-oke nodes scale mi300x 0 --stack prod" in document["remedy"]
    assert "its 2 nodes cost 96 US dollars an hour (list price)" in errors
    assert "to give them back: llmd-oke nodes scale mi300x 0 --stack prod" in errors


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """List of the pools that are scaled, with their sizes."""
    done: list[tuple[str, int]] = []

    def scale(_pulumi: object, _progress: object, _client: object, pool: PlannedPool, size: int) -> None:
        done.append((pool.name, size))

    monkeypatch.setattr(up, "scale_pool", scale)
    monkeypatch.setattr(up.recover, "client_for", lambda *_: lambda: None)
    return done


def test_pools_whose_node_gate_fails_are_scaled_to_zero_if_an_option_says_so(
    command: Command, tmp_path: Path, scaled: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise KitError("OCI refuses it")

    (tmp_path / "state").write_text(json.dumps({"deployment": {"resources": [POOL]}}))
    code, document, errors = command("up", "--yes", "--scale-to-zero-on-failure", status=255)
    assert (code, scaled) == (255, [("mi300x", 0)])
    assert "nodes scale mi300x 0" not in document["remedy"]
    command("up", "--yes", "--scale-to-zero-on-failure")
    assert len(scaled) == 1
    monkeypatch.setattr(up, "scale_pool", refuse)
    code, document, errors = command("up", "--yes", "--scale-to-zero-on-failure", status=255)
    assert (code, "nodes scale mi300x 0" in document["remedy"], "OCI refuses it" in errors) == (255, True, True)


@pytest.mark.parametrize("agreed", [True, False])
def test_on_a_terminal_the_user_is_asked_whether_to_scale_the_pool_to_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaled: list[tuple[str, int]], agreed: bool
):
    write(tmp_path, "prod", STACK)
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return agreed

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(up.typer, "confirm", confirm)
    state = json.dumps({"deployment": {"resources": [POOL]}})
    pulumi = PulumiCli(tmp_path, "prod", "pulumi", lambda *_: CommandResult(0, state))
    remedy = up._offer_to_scale(pulumi, plan(validate(STACK)), tmp_path, up._Offers(asks=True, scales=False))
    assert asked == ["Scale mi300x to zero now?"]
    assert scaled == ([("mi300x", 0)] if agreed else [])
    assert ("nodes scale mi300x 0" in remedy) is not agreed


def test_a_failed_benchmark_fails_the_update(command: Command, benchmark: Callable[..., None]):
    benchmark("ttft_ms.p95")
    code, document, errors = command("up", "--yes")
    assert (code, document["error"]) == (1, "gpt-oss-120b did not pass: ttft_ms.p95")
    assert "did not pass" in errors


def test_a_benchmark_that_cannot_be_run_does_not_undo_the_update(command: Command, benchmark: Callable[..., None]):
    benchmark(error=KitError("The cluster does not answer.", "Is it up?"))
    code, document, _ = command("up", "--yes")
    assert (code, document["changes"]["create"], document["smoke"]) == (1, 3, [])
    assert (document["error"], document["remedy"]) == ("The cluster does not answer.", "Is it up?")


def test_an_update_does_not_fail_if_the_smoke_jobs_result_cannot_be_read(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fetched(*_: object) -> list[SmokeOutcome]:
        raise KitError("The Jobs of llm-d can't be read.", "Ask again.")

    write(tmp_path, "prod", stack(nodes=2, smoke={"where": "cluster"}))
    monkeypatch.setattr(smoke, "_fetched", fetched)
    code, document, _ = command("up", "--yes")
    assert (code, document["ok"], document["smoke"]) == (0, True, [])
    assert document["smoke_error"] == {"error": "The Jobs of llm-d can't be read.", "remedy": "Ask again."}


def test_up_refuses_no_benchmark_with_settings_that_need_an_accuracy_evaluation(command: Command, tmp_path: Path):
    write(tmp_path, "prod", {**STACK, "override": {"quickReduce": "INT4"}})
    code, document, errors = command("up", "--yes", "--no-benchmark")
    assert (code, "engine at work" in errors) == (1, False)
    assert document["error"].startswith("INT4 in all-reduce changes answers (override.quickReduce)")
    assert "smoke.where: cluster" in document["remedy"]


@pytest.mark.parametrize("operation", ["up", "destroy"])
def test_up_and_destroy_without_confirmation_change_nothing(command: Command, operation: str):
    code, document, errors = command(operation)
    assert (code, document) == (1, {"error": "With --json nobody can be asked.", "remedy": "Add --yes."})
    assert "engine at work" not in errors


def test_destroy_shows_the_changes_that_pulumi_made(command: Command):
    code, document, _ = command("destroy", "--yes")
    assert (code, document["ok"], document["changes"]) == (0, True, {"create": 3, "same": 5})


def test_an_invalid_stack_file_is_reported_with_all_its_problems(command: Command, tmp_path: Path):
    (tmp_path / "stacks/Pulumi.prod.yaml").write_text("config: {}\n")
    code, document, _ = command("up", "--yes")
    assert (code, document["problems"][0]["path"]) == (1, "config")
