"""Servers that LeaderWorkerSets' controller makes, in a status: numbers, waits for a dead node, and commands."""

from typing import Any

from lightkube.resources.core_v1 import Node, Pod
from llmd_oke.operations.status.reading import LeaderWorkerSet
from llmd_oke.operations.status.servers import DeploymentPods, group_symptoms, server_groups, shortages
from llmd_oke.operations.status.symptoms import Severity, Symptom
from llmd_oke.serving.leader_worker_set import GROUP_LABEL
from stack_cluster import LONG_AGO, node, pod
from stack_files import model, plan


def dead(name: str) -> Any:
    lost = {"type": "Ready", "status": "Unknown", "lastTransitionTime": LONG_AGO}
    return Node.from_dict({**node(name), "status": {"conditions": [lost]}})


def ending(name: str, on: str, **own: str) -> Any:
    described = pod(name, own, {"vllm": "v"})
    described["metadata"]["deletionTimestamp"] = LONG_AGO
    return Pod.from_dict({**described, "spec": {"nodeName": on, "containers": []}})


def test_a_group_of_pods_that_waits_for_a_lost_node_is_reported_with_the_node():
    nodes = [dead("node-1"), Node.from_dict(node("node-2"))]
    pods = [ending(f"decode-{name}", on, **{GROUP_LABEL: "k"}) for name, on in (("0", "node-1"), ("0-1", "node-2"))]
    pods.append(ending("prefill-abc", "node-1"))
    (symptom,) = group_symptoms(pods, nodes)
    assert symptom.what.startswith("decode-0 can't end on node-1, which isn't Ready")
    assert "kubectl delete node node-1" in symptom.remedy


def test_a_leaderworkerset_without_ready_pods_is_reported_with_a_describe_command():
    wide = plan(model("agg-tp1dp16ep-2r"), nodes=4)
    name = f"{wide.models[0].units[0].name}-aggregated"
    group = DeploymentPods(name, wide.models[0].name, wide.models[0].units[0].name, "aggregated", 1, 2, 2)
    (symptom,) = shortages(wide, [group], [])
    assert f"describe leaderworkerset {name}" in symptom.remedy


def set_of_role(role: str, revision: str, ready: int, wanted: int, unit: str) -> Any:
    """A LeaderWorkerSet as the controller of DisaggregatedSets makes it."""
    own = {
        "llm-d.ai/inference-serving": "true",
        "llm-d.ai/role": role,
        "llmd-oke/unit": unit,
        "llmd-oke/model": "gpt-oss-120b",
    }
    return LeaderWorkerSet.from_dict(
        {
            "metadata": {"name": f"{unit}-{revision}-{role}", "labels": {"disaggregatedset.x-k8s.io/role": role}},
            "spec": {"replicas": wanted, "leaderWorkerTemplate": {"workerTemplate": {"metadata": {"labels": own}}}},
            "status": {"readyReplicas": ready},
        }
    )


def test_servers_of_a_disaggregatedset_are_counted_by_role_and_missing_ones_named():
    made = plan(model("8p-tp1-4d-tp2", disaggregatedSet=True), release="llm-d-0.10.0", nodes=2)
    unit = made.models[0].units[0].name
    sets = [
        set_of_role("prefill", "aaaaaaaa", 6, 6, unit),
        set_of_role("prefill", "bbbbbbbb", 1, 2, unit),
        set_of_role("decode", "aaaaaaaa", 4, 4, unit),
    ]
    groups = server_groups(made, [], sets)
    counted = [(group.name, group.role, group.ready, group.desired, group.planned) for group in groups]
    assert counted == [(f"{unit}-prefill", "prefill", 7, 8, 8), (f"{unit}-decode", "decode", 4, 4, 4)]
    (symptom,) = shortages(made, groups, [])
    chosen = f"disaggregatedset.x-k8s.io/name={unit},disaggregatedset.x-k8s.io/role=prefill"
    assert symptom.remedy.endswith(f"describe leaderworkersets -l {chosen}")
    known = Symptom(Severity.DEGRADED, f"{unit}-0a1b2c3d-prefill-3 doesn't start", "")
    assert list(shortages(made, groups, [known])) == []
