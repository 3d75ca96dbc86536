"""The engine of a rehearsal: what it takes up after one that was killed, and what it counts."""

import json
from pathlib import Path
from typing import Any

import pytest
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod
from llmd_base.errors import KitError
from llmd_oke import planning
from llmd_oke.operations.objects import SIMULATED_ANNOTATION
from llmd_oke.operations.recovery import Pending
from llmd_rehearsal.cluster_plan import SIMULATED_NODES, SIMULATED_VLLM, simulated
from llmd_rehearsal.engine import count_images, journal_finder, needs_refresh
from llmd_rehearsal.engine_project import latest, mend
from llmd_rehearsal.plugins import KubernetesPlugin
from stack_files import PROJECT

GIVEN: dict[str, Any] = {"displayName": "network", "cidrBlocks": ["10.0.0.0/16"]}
VCN: dict[str, Any] = {
    "urn": "urn:pulumi:s::p::oci:Core/vcn:Vcn::network-vcn",
    "type": "oci:Core/vcn:Vcn",
    "inputs": {"__defaults": [], **GIVEN},
}
PENDING = Pending("creating", VCN["urn"], VCN["type"], VCN["inputs"])
OVER = "llmd-oke rehearse down --stack s"
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


def test_a_resource_missing_from_pulumis_state_is_found_in_oci_by_its_inputs(tmp_path: Path) -> None:
    other, request = _record("ocid1.vcn.1", displayName="other"), _record("ocid1.vcn.2", **GIVEN)
    assert journal_finder(_journal(tmp_path, other, request))(PENDING, set()) == "ocid1.vcn.2"


def test_a_resource_that_oci_deleted_or_that_pulumis_state_has_is_not_adopted(tmp_path: Path) -> None:
    there = _record("ocid1.vcn.2", **GIVEN)
    assert journal_finder(_journal(tmp_path, there, {"id": "ocid1.vcn.2"}))(PENDING, set()) is None
    assert journal_finder(tmp_path / "none.jsonl")(PENDING, set()) is None
    assert journal_finder(_journal(tmp_path, there))(PENDING, {"ocid1.vcn.2"}) is None


@pytest.mark.parametrize(
    ("latest", "wrong"),
    [
        (None, False),
        ({"resources": [VCN, JOB]}, False),
        ({"resources": [VCN, {"type": "oci:ContainerEngine/nodePool:NodePool", "initErrors": ["no capacity"]}]}, True),
    ],
)
def test_a_state_with_a_resource_that_oci_deleted_needs_a_refresh(tmp_path: Path, latest: Any, wrong: bool) -> None:
    checkpoint = tmp_path / "stack.json"
    assert not needs_refresh(checkpoint)
    checkpoint.write_text(json.dumps({"version": 3, "checkpoint": {"latest": latest}}))
    assert needs_refresh(checkpoint) is wrong


def test_a_truncated_pulumi_state_is_restored_from_its_newest_intact_backup(tmp_path: Path) -> None:
    checkpoint = tmp_path / ".pulumi" / "stacks" / "llmd-oke" / "s.json"
    history = tmp_path / ".pulumi" / "history" / "llmd-oke" / "s"
    history.mkdir(parents=True)
    checkpoint.parent.mkdir(parents=True)
    whole = {"version": 3, "checkpoint": {"latest": {"resources": [VCN]}}}
    checkpoint.write_text(json.dumps(whole))
    assert mend(checkpoint, OVER) is None
    checkpoint.write_text(json.dumps(whole)[:60])
    with pytest.raises(KitError, match="is not whole, as where its disk was full, and no copy is") as lost:
        mend(checkpoint, OVER)
    assert lost.value.remedy == f"Start over: {OVER}"
    checkpoint.with_name("s.json.bak").write_text(json.dumps(whole)[:50])
    (history / "s-1.checkpoint.json").write_text("{}")
    (history / "s-2.checkpoint.json").write_text(json.dumps(whole))
    with pytest.raises(KitError, match="is not whole"):
        latest(checkpoint)
    assert mend(checkpoint, OVER) == history / "s-2.checkpoint.json"
    assert latest(checkpoint) == {"resources": [VCN]}


def pod(marked: str | None, **images: str) -> Pod:
    annotations = {SIMULATED_ANNOTATION: marked} if marked else None
    containers = [Container(name=name, image=image) for name, image in images.items()]
    return Pod(metadata=ObjectMeta(annotations=annotations), spec=PodSpec(containers=containers))


def test_the_report_counts_pods_for_each_image_that_has_no_rehearsed_program():
    pods = [pod("a,b", a="one:1", b="two:2", c="real:3"), pod("a", a="one:1"), pod(None, c="real:3")]
    assert count_images(pods) == {"one:1": 2, "two:2": 1}


def test_images_without_a_rehearsed_program_extend_the_report_of_simulated_parts():
    plan = planning.plan_stack_file(PROJECT, "rehearsal")
    output = simulated(plan, KubernetesPlugin("4.30.0"), {"one:1": 2, "two:2": 1})
    assert output[:2] == (SIMULATED_NODES, SIMULATED_VLLM)
    assert output[-2:] == ("one:1 (no program, pods: 2)", "two:2 (no program, pods: 1)")
