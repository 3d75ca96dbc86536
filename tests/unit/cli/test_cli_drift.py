"""`llmd-oke drift`: what it says, and how it ends. The Pulumi CLI is a script here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stack_files import stack, write

URN = "urn:pulumi:prod::llmd-oke::llmd-oke:index:GpuPool$oci:ContainerEngine/nodePool:NodePool::mi300x"
SIZE = {
    "old": {"inputs": {"size": 9}},
    "new": {"inputs": {"size": 7}},
    "detailedDiff": {"size": {"diffKind": "update"}},
}
RESIZED = {"resOutputsEvent": {"metadata": {"op": "update", "urn": URN, **SIZE}}}
REFUSED = {"diagnosticEvent": {"severity": "error", "message": "401-NotAuthenticated"}}
WORDS = "NodePool mi300x: size was 9 and is 7; an update after `pulumi refresh` makes it what the stack file says"

CLI = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/asked"
case "$1 $2" in
  "stack export") cat "$here/state" ;;
  "refresh --preview-only") cat "$here/events"; exit "$(cat "$here/status")" ;;
  *) exit 9 ;;
esac
"""

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, kit: Command, put_pulumi: Callable[[str], None]) -> Command:
    """Run `llmd-oke` where the engine's refresh has these events and status; return exit code, output and errors."""
    write(tmp_path, "prod", stack())
    put_pulumi(CLI)

    def run(*words: str, event: Any = None, status: int = 0, deployed: bool = True) -> tuple[int, str, str]:
        resources = [{"urn": URN, "type": "oci:ContainerEngine/nodePool:NodePool"}] if deployed else []
        (tmp_path / "state").write_text(json.dumps({"deployment": {"resources": resources}}))
        (tmp_path / "events").write_text(json.dumps(event) if event else "")
        (tmp_path / "status").write_text(str(status))
        return kit(*words, "--stack", "prod", "--project", str(tmp_path))

    return run


def test_drift_of_an_oci_resource_is_explained_and_exits_with_3(command: Command):
    code, shown, errors = command("drift", event=RESIZED)
    assert (code, shown) == (3, f"{WORDS}\n")
    assert "reading what there is of 1 resources; nothing is changed" in errors
    code, shown, _ = command("drift", "--json", event=RESIZED)
    drift = {"urn": URN, "path": "size", "words": WORDS, "taken_back": True}
    assert (code, json.loads(shown)) == (3, {"stack": "prod", "drift": [drift]})


def test_a_stack_without_drift_exits_with_0(command: Command, tmp_path: Path):
    assert command("drift")[:2] == (0, "Nothing was changed by hand.\n")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [words.split(" --stack")[0] for words in asked] == [
        "stack export",
        "refresh --preview-only --json --non-interactive",
    ]


def test_for_a_stack_that_is_not_deployed_drift_queries_no_oci(command: Command, tmp_path: Path):
    code, _, errors = command("drift", deployed=False)
    assert (code, "nothing is deployed" in errors) == (0, True)
    assert "refresh" not in (tmp_path / "asked").read_text()


def test_drift_that_is_undeterminable_or_of_no_running_rehearsal_is_an_error(command: Command):
    code, shown, errors = command("drift", "--json", event=REFUSED, status=255)
    assert (code, json.loads(shown)["error"]) == (1, "401-NotAuthenticated")
    assert "401-NotAuthenticated" in errors
    code, _, errors = command("drift", "--rehearse")
    assert (code, "scripts/rehearse --stack prod" in errors) == (1, True)


def test_pipeline_drift_writes_manual_changes_into_a_summary_and_exits_with_3(command: Command, tmp_path: Path):
    summary = tmp_path / "out" / "summary.md"
    code, shown, _ = command("pipeline", "drift", "--summary", str(summary), event=RESIZED)
    assert (code, shown) == (3, "")
    assert summary.read_text().startswith("### `prod`: changed by hand: 1\n\n**Changes**\n\n- NodePool mi300x: size")
    assert command("pipeline", "drift")[:2] == (0, "### `prod`: nothing was changed by hand\n")
