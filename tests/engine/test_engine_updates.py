import pulumi
import pulumi_kubernetes as k8s
import pytest
from engine_servers import RecordingPlugin
from llmd_oke import AggregatedUnit

pytestmark = pytest.mark.engine


@pytest.fixture
def update(stack_with):
    """Bring the stack to a number and size of servers; return what happened to their Deployment."""
    plugin, wanted = RecordingPlugin(), {}

    def program():
        cluster = k8s.Provider("cluster", cluster_identifier="test")
        AggregatedUnit("m", unit(**wanted), pulumi.ResourceOptions(provider=cluster))

    def bring(replicas, size):
        plugin.calls.clear()
        wanted.update(replicas=replicas, size=size)
        stack.up()
        return [step for step, _ in plugin.calls]

    stack = stack_with(plugin, program)
    return bring


def unit(replicas, size):
    return {
        "release": "llm-d-0.9.0",
        "model": "gpt-oss-120b",
        "shape": "BM.GPU.MI300X.8",
        "namespace": "n",
        "service_account": "s",
        "servers": {"replicas": replicas, "tensor_parallel_size": size},
    }


def test_a_changed_gpu_count_of_servers_replaces_their_deployment_deleting_it_first(update):
    assert update(4, 1) == ["create"]
    assert update(6, 1) == ["update"]
    assert update(2, 4) == ["delete", "create"]
