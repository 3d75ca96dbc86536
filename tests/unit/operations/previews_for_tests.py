"""Previews of the real engine, and ones of clusters and pools in the same words."""

import json
from pathlib import Path
from typing import Any

from llmd_oke.operations.previews import Preview, of_document

DATA = Path(__file__).parent / "data"


def recorded(name: str) -> Preview:
    """A preview that the engine wrote (its inputs cut down to what is read)."""
    return of_document(json.loads((DATA / f"preview-{name}.json").read_text()))


def urn(type_: str, name: str) -> str:
    return f"urn:pulumi:prod::llmd-oke::llmd-oke:index:Parent${type_}::{name}"


def step(op: str, type_: str, name: str, **more: Any) -> dict[str, Any]:
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
