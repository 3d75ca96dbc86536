"""Nodes that are tested by the command: sound ones, and one for each fault that nodes can have in a rehearsal."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from llmd_rehearsal.oci_plugin.faults import NODE, Fault, FaultRule, write_rules
from user_project import Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "accepted"
NODES = 9
FAULTS = (
    *(Fault.DEAD_GPU, Fault.WRONG_GID, Fault.MISSING_VIRTUAL_FUNCTION, Fault.SLOW_LINK),
    *(Fault.SLOW_GPU, Fault.MISSING_DISK),
)


@dataclass(frozen=True)
class Runs:
    """Answers of the command about sound nodes, nodes with a fault each, and one of these once it is sound again;
    and the taints that nodes had before the last."""

    sound: Ended
    faulty: Ended
    by_fault: dict[Fault, str]
    tainted: set[str]
    again: Ended
    tainted_after: set[str]


def accept(project: Project, *options: str) -> Ended:
    return project.command("rehearse", "run", "--stack", STACK, "--", "llmd-oke", "accept", "-s", STACK, *options)


def ask(project: Project, expression: str) -> Any:
    """The value of an expression over the cluster's nodes and pods."""
    code = (
        "import json, os, lightkube; from lightkube.resources.core_v1 import Node, Pod\n"
        "config = lightkube.KubeConfig.from_file(os.environ['KUBECONFIG']).get()\n"
        "client = lightkube.Client(config, trust_env=False)\n"
        "nodes, pods = list(client.list(Node)), list(client.list(Pod, namespace='llm-d'))\n"
        f"print(json.dumps({expression}))"
    )
    asked = project.command("rehearse", "run", "--stack", STACK, "--", "python", "-c", code)
    assert asked.status == 0, asked.errors
    return json.loads(asked.output.splitlines()[-1])


def tainted(project: Project) -> set[str]:
    """The nodes with the taint of acceptance."""
    has_taint = "any(t.key == 'llmd-oke/acceptance' for t in n.spec.taints or [])"
    return set(ask(project, f"[n.metadata.name for n in nodes if {has_taint}]"))


def serving(project: Project) -> str:
    """The node of the model's server."""
    has_gpu = "'amd.com/gpu' in (p.spec.containers[0].resources.limits or {})"
    return ask(project, f"[p.spec.nodeName for p in pods if {has_gpu}][0]")


@pytest.fixture(scope="module")
def runs(project: Project) -> Runs:
    pool = {"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": NODES}
    project.write(STACK, gpuPools=[pool], models=[model(topology="agg-tp1-1r")], smoke={"where": "none"})
    rehearsed = project.rehearse(STACK)
    assert rehearsed.status == 0, rehearsed.errors
    busy = serving(project)
    free = [name for name in (f"mi300x-{number}" for number in range(NODES)) if name != busy]
    sound = accept(project, "--json", *(word for name in (busy, *free[-2:]) for word in ("--node", name)))
    assert sound.status == 0, sound.output + sound.errors
    by_fault = dict(zip(FAULTS, free, strict=False))
    faults = project.folder / ".rehearsal" / STACK / "oci-faults.yaml"
    write_rules(faults, [FaultRule(resource=NODE, name=name, operation="*", fault=f) for f, name in by_fault.items()])
    faulty = accept(project, "--json")
    before = tainted(project)
    write_rules(faults, [])
    again = accept(project, "--node", by_fault[Fault.DEAD_GPU])
    return Runs(sound, faulty, by_fault, before, again, tainted(project))


def pool_of(ended: Ended) -> dict[str, Any]:
    return ended.document["pools"][0]


def test_sound_nodes_pass_and_the_one_that_serves_is_left_alone(runs: Runs) -> None:
    pool = pool_of(runs.sound)
    assert {result["verdict"] for result in pool["results"]} == {"passed"}
    assert len(pool["results"]) == 2
    ((_, reason),) = pool["untested"].items()
    assert "in use" in reason


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault.DEAD_GPU, "gpus: amd-smi sees 7 of 8 GPUs"),
        (Fault.WRONG_GID, "rdma: mlx5_2: GID 3 is"),
        (Fault.MISSING_VIRTUAL_FUNCTION, "rdma: 7 of 8 virtual functions are in the pod"),
        (Fault.SLOW_GPU, "memory: GPU 5: 1060 of at least 3710 GB/s"),
        (Fault.MISSING_DISK, "disks: 7 of 8 NVMe disks are whole"),
        (Fault.SLOW_LINK, "links: GPU 2 (mlx5_2): 12.5 of at least 40 GB/s at best"),
    ],
)
def test_a_node_with_a_fault_is_named_with_what_is_wrong(runs: Runs, fault: Fault, text: str) -> None:
    results = {result["node"]: result for result in pool_of(runs.faulty)["results"]}
    assert results[runs.by_fault[fault]]["verdict"] == "failed"
    assert text in results[runs.by_fault[fault]]["reason"]


def test_only_nodes_with_faults_fail_and_are_tainted(runs: Runs) -> None:
    failed = {result["node"] for result in pool_of(runs.faulty)["results"] if result["verdict"] == "failed"}
    assert failed == runs.tainted == set(runs.by_fault.values())
    assert runs.faulty.status == 1


def test_serving_goes_on_where_spares_suffice(runs: Runs) -> None:
    assert pool_of(runs.faulty)["problem"] is None


def test_a_node_that_passes_again_loses_its_taint(runs: Runs) -> None:
    repaired = runs.by_fault[Fault.DEAD_GPU]
    assert runs.tainted_after == runs.tainted - {repaired}
    assert all(len(line) <= 80 for line in runs.again.output.splitlines())
