"""What becomes of resources that an engine was about to create when it was killed."""

import json
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.errors import KitError
from llmd_oke.operations.recovery import Pending
from llmd_oke.rehearsal.engine_recovery import in_journal, is_wrong, remove_unfinished_locks
from llmd_oke.rehearsal.state_files import latest, mend

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


def test_a_lock_that_a_full_disk_left_unfinished_goes_and_a_whole_one_stays(tmp_path: Path) -> None:
    locks = tmp_path / ".pulumi" / "locks" / "organization" / "llmd-oke" / "s"
    locks.mkdir(parents=True)
    (locks / "1.json.18ea5aede4e025a6.tmp").touch()
    (locks / "2.json").touch()
    (locks / "3.json").write_text("{}")
    remove_unfinished_locks(tmp_path / ".pulumi" / "stacks" / "llmd-oke" / "s.json")
    assert [lock.name for lock in locks.iterdir()] == ["3.json"]


def test_a_state_that_a_full_disk_cut_off_is_taken_from_the_newest_whole_copy(tmp_path: Path) -> None:
    checkpoint = tmp_path / ".pulumi" / "stacks" / "llmd-oke" / "s.json"
    history = tmp_path / ".pulumi" / "history" / "llmd-oke" / "s"
    history.mkdir(parents=True)
    checkpoint.parent.mkdir(parents=True)
    whole = {"version": 3, "checkpoint": {"latest": {"resources": [VCN]}}}
    checkpoint.write_text(json.dumps(whole))
    assert mend(checkpoint) is None
    checkpoint.write_text(json.dumps(whole)[:60])
    with pytest.raises(KitError, match="is not whole, as where its disk was full, and no copy is"):
        mend(checkpoint)
    checkpoint.with_name("s.json.bak").write_text(json.dumps(whole)[:50])
    (history / "s-1.checkpoint.json").write_text("{}")
    (history / "s-2.checkpoint.json").write_text(json.dumps(whole))
    with pytest.raises(KitError, match="is not whole"):
        latest(checkpoint)
    assert mend(checkpoint) == history / "s-2.checkpoint.json"
    assert latest(checkpoint) == {"resources": [VCN]}
