"""What becomes of resources that an engine was about to create when it was killed."""

import json
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.rehearsal.engine_recovery import is_wrong, kubernetes_id, oci_ids, without_pending

GIVEN: dict[str, Any] = {"displayName": "network", "cidrBlocks": ["10.0.0.0/16"]}
VCN: dict[str, Any] = {
    "urn": "urn:pulumi:s::p::oci:Core/vcn:Vcn::network-vcn",
    "type": "oci:Core/vcn:Vcn",
    "inputs": {"__defaults": [], **GIVEN},
}
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


def test_what_was_about_to_be_created_is_taken_into_the_state_with_its_id() -> None:
    deployment = {"resources": [{"urn": "stack"}], "pending_operations": [{"resource": JOB, "type": "creating"}]}
    recovered, adopted = without_pending(deployment, kubernetes_id)
    assert recovered == {"resources": [{"urn": "stack"}, {**JOB, "id": "kube-system/gate"}], "pending_operations": []}
    assert adopted == [JOB["urn"]]


def test_what_was_about_to_be_changed_or_is_not_there_is_dropped() -> None:
    pending = [{"resource": JOB, "type": "updating"}, {"resource": VCN, "type": "creating"}]
    recovered, adopted = without_pending({"resources": [JOB], "pending_operations": pending}, lambda _: None)
    assert (recovered, adopted) == ({"resources": [JOB], "pending_operations": []}, [])


@pytest.mark.parametrize(
    ("inputs", "id_"),
    [
        ({"metadata": {"name": "a", "namespace": "b"}}, "b/a"),
        ({"metadata": {"name": "a"}}, "a"),
        ({"name": "release", "namespace": "c"}, "c/release"),
        ({"metadata": {}}, None),
    ],
)
def test_an_objects_id_follows_from_its_name(inputs: dict[str, Any], id_: str | None) -> None:
    assert kubernetes_id({"type": "kubernetes:core/v1:ConfigMap", "inputs": inputs}) == id_


def test_what_oci_has_is_found_by_what_was_asked_for(tmp_path: Path) -> None:
    other, asked = _record("ocid1.vcn.1", displayName="other"), _record("ocid1.vcn.2", **GIVEN)
    assert oci_ids(_journal(tmp_path, other, asked))(VCN) == "ocid1.vcn.2"


def test_what_oci_has_deleted_is_not_found(tmp_path: Path) -> None:
    assert oci_ids(_journal(tmp_path, _record("ocid1.vcn.2", **GIVEN), {"id": "ocid1.vcn.2"}))(VCN) is None
    assert oci_ids(tmp_path / "none.jsonl")(VCN) is None


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
