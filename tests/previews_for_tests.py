"""Previews of the real engine, ones of clusters and pools in the same words, and a CLI that answers with them."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from listening import Listener
from llmd_oke.operations import updates
from llmd_oke.operations.previews import Preview, of_document
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli
from stack_files import model, plan

DATA = Path(__file__).parent / "unit" / "operations" / "data"


def recorded(name: str) -> Preview:
    """A preview that the engine wrote (its inputs cut down to what is read)."""
    return of_document(json.loads((DATA / f"preview-{name}.json").read_text()))


def urn(type_: str, name: str) -> str:
    return f"urn:pulumi:prod::llmd-oke::llmd-oke:index:Parent${type_}::{name}"


def step(op: str, type_: str, name: str, **more: object) -> dict[str, Any]:
    return {"op": op, "urn": urn(type_, name), "detailedDiff": None, **more}


def replaced_pool(protect: bool = False) -> dict[str, Any]:
    return step(
        "replace",
        "oci:ContainerEngine/nodePool:NodePool",
        "prod-mi300x",
        oldState={"protect": protect, "inputs": {"nodeConfigDetails": {"computeClusterId": "ocid1.old", "size": 8}}},
        newState={"inputs": {"nodeConfigDetails": {"computeClusterId": "ocid1.new", "size": 9}}},
        detailedDiff={
            "nodeConfigDetails.computeClusterId": {"kind": "update-replace", "inputDiff": True},
            "nodeConfigDetails.size": {"kind": "update", "inputDiff": True},
        },
    )


def document(*steps: dict[str, Any], errors: tuple[str, ...] = ()) -> str:
    diagnostics = [{"severity": "error", "message": error} for error in errors]
    return json.dumps({"steps": list(steps), "diagnostics": diagnostics})


PLAN = plan(model("8p-tp1-2d-tp4"), nodes=2)
"""Two nodes, all of whose GPUs are in use."""

LOOK = "refresh --preview-only --json --non-interactive --target **kubernetes:**"
NOTHING_BY_HAND = CommandResult(0, "")


class Cli:
    """A CLI that answers like Pulumi's and remembers what it was asked."""

    def __init__(
        self,
        preview: str,
        resources: Sequence[dict[str, Any]] = (),
        seen: CommandResult = NOTHING_BY_HAND,
        then: str | None = None,
    ) -> None:
        self._then = then
        self.on_update: Callable[[], None] = lambda: None
        self.update_status = 0
        self.event_log = ""
        self.resources = list(resources)
        self.asked: list[str] = []
        self.progress = Listener()
        self._answers = {
            "preview": CommandResult(0, preview),
            LOOK: seen,
        }
        self.pulumi = PulumiCli(Path("/p"), "prod", "pulumi", self._run)

    def _run(self, argv: Sequence[str], capture: bool) -> CommandResult:
        own = argv[argv.index("pulumi") + 1 : argv.index("--stack")]
        words = re.sub(r" --event-log \S+", "", re.sub(r"/\S+/plan\.json", "FILE", " ".join(own)))
        if words not in {LOOK, "stack export"}:  # they change nothing
            self.asked.append(words)
        if own[0] == "up":
            self.on_update()
            if "--event-log" in own:
                Path(own[own.index("--event-log") + 1]).write_text(self.event_log)
            return CommandResult(self.update_status)
        if own[0] == "stack":
            return CommandResult(0, json.dumps({"deployment": {"resources": self.resources}}))
        if own[0] == "preview" and self._then and sum(words.startswith("preview") for words in self.asked) > 1:
            return CommandResult(0, self._then)
        return self._answers.get(words, self._answers.get(own[0], CommandResult(0))) if capture else CommandResult(0)

    def update(self, *, yes: bool = True, allow_replace: bool = False, agreed: bool = True) -> int:
        return updates.update(self.pulumi, PLAN, self.progress, lambda _: agreed, yes=yes, allow_replace=allow_replace)
