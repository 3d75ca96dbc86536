"""What becomes of resources that an engine was about to create when it was killed."""

import json
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.operations.recovery import Pending
from llmd_oke.rehearsal.engine_recovery import in_journal, is_wrong

GIVEN: dict[str, Any] = {"displayName": "network", "cidrBlocks": ["10.0.0.0/16"]}
VCN: dict[str, Any] = {
    "urn": "urn:pulumi:s::p::oci:Core/vcn:Vcn::network-vcn",
    "type": "oci:Core/vcn:Vcn",
    "inputs": {"__defaults": [], **GIVEN},
}
PENDING = Pending("creating", VCN["urn"], VCN["type"], VCN["inputs"])
JOB = {
    "urn": "urn:pulumi:s::p::kubernetes:batch/v1:Job::gate",
    "type": "kubernetes:batch/v1:Job",
    "inputs": {"metadata": {"name": "gate", "namespace": "kube-system"}},
}


def _journal(folder: Path, *records: dict[str, Any]) -> Path:
    journal = folder / "journal.jsonl"
    journal.write_text("".join(json.dumps(record) + "\n" for record in records))
    return journal


def _record(id_: str, **inputs: Any) -> dict[str, Any]:
    return {"id": id_, "token": VCN["type"], "inputs": inputs, "state": {}, "machines": []}


def test_what_oci_has_is_found_by_what_was_asked_for(tmp_path: Path) -> None:
    other, asked = _record("ocid1.vcn.1", displayName="other"), _record("ocid1.vcn.2", **GIVEN)
    assert in_journal(_journal(tmp_path, other, asked))(PENDING, set()) == "ocid1.vcn.2"


def test_what_oci_has_deleted_is_not_found(tmp_path: Path) -> None:
    journal = _journal(tmp_path, _record("ocid1.vcn.2", **GIVEN), {"id": "ocid1.vcn.2"})
    assert in_journal(journal)(PENDING, set()) is None
    assert in_journal(tmp_path / "none.jsonl")(PENDING, set()) is None


def test_what_the_state_has_already_is_not_taken_twice(tmp_path: Path) -> None:
    assert in_journal(_journal(tmp_path, _record("ocid1.vcn.2", **GIVEN)))(PENDING, {"ocid1.vcn.2"}) is None


@pytest.mark.parametrize(
    ("latest", "wrong"),
    [
        (None, False),
        ({"resources": [VCN, JOB]}, False),
        ({"resources": [VCN, {"type": "oci:ContainerEngine/nodePool:NodePool", "initErrors": ["no capacity"]}]}, True),
    ],
)
def test_a_state_is_wrong_where_it_has_what_oci_took_back(tmp_path: Path, latest: Any, wrong: bool) -> None:
    checkpoint = tmp_path / "stack.json"
    checkpoint.write_text(json.dumps({"version": 3, "checkpoint": {"latest": latest}}))
    assert is_wrong(checkpoint) is wrong


def test_a_stack_that_was_never_made_has_nothing_wrong(tmp_path: Path) -> None:
    assert not is_wrong(tmp_path / "stack.json")
