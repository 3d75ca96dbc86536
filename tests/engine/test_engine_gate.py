from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pytest
from engine_servers import RecordingPlugin
from google.protobuf import json_format
from llmd_oke.cluster.gate import NodeGate
from pulumi.runtime.proto import provider_pb2

pytestmark = pytest.mark.engine

JOB = "kubernetes:batch/v1:Job"
POOL: dict[str, Any] = {
    "pool_name": "mi300x",
    "nodes": 6,
    "devices": {"amd.com/gpu": 8},
    "timeout_s": 5400,
    "system_pool_name": "system",
    "pool_id": "pool-a",
}


class ReplacingPlugin(RecordingPlugin):
    """An object with another name is another object, as with the real plug-in."""

    remembered = JOB

    def Diff(self, request, context):  # noqa: N802
        answer = super().Diff(request, context)
        old, new = json_format.MessageToDict(request.old_inputs), json_format.MessageToDict(request.news)
        if old.get("metadata", {}).get("name") != new.get("metadata", {}).get("name"):
            answer.detailedDiff["metadata.name"].kind = provider_pb2.PropertyDiff.UPDATE_REPLACE
            answer.replaces.append("metadata.name")
        return answer


@pytest.fixture
def bring(stack_with):
    """Bring the stack to a gate; return what happened to its Job."""
    wanted: dict[str, Any] = {}

    def program():
        cluster = k8s.Provider("cluster", cluster_identifier="test")
        NodeGate("gate", {**POOL, **wanted}, pulumi.ResourceOptions(provider=cluster))

    plugin = ReplacingPlugin()
    stack = stack_with(plugin, program)

    def up(**changes: Any) -> list[str]:
        plugin.calls.clear()
        wanted.clear()
        wanted.update(changes)
        stack.up()
        return [step for step, _ in plugin.calls]

    return up


def test_the_node_gate_waits_for_a_fixed_pool_again_after_each_change_of_the_pool(bring):
    assert bring() == ["create"]
    assert bring() == []
    assert bring(nodes=7) == ["delete", "create"]


def test_the_node_gate_waits_for_an_autoscaled_pool_once_and_again_if_it_is_replaced(bring):
    assert bring(once=True) == ["create"]
    assert bring(once=True, nodes=9, timeout_s=7200) == []
    assert bring(once=True, nodes=2, pool_id="pool-b") == ["delete", "create"]
    assert bring(once=True, nodes=1, pool_id="pool-b") == []


def test_the_node_gate_waits_once_more_when_a_fixed_pool_becomes_autoscaled(bring):
    bring()
    assert bring(once=True) == ["delete", "create"]
    assert bring(once=True, nodes=2) == []
