"""Servers that span nodes in a status: those that wait for a dead node, and where more is told of them."""

from typing import Any

from lightkube.resources.core_v1 import Node, Pod
from llmd_oke.operations.status.servers import DeploymentPods, group_symptoms, shortages
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
