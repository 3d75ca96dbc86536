from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from kubernetes_control_plane import ControlPlane
from llmd_rehearsal.kubernetes_plugin.server import start
from llmd_rehearsal.plugin_protocol import Empty, Stub, encode, provider

pytestmark = pytest.mark.rehearsal

TYPE = "kubernetes:apps/v1:Deployment"
POD = {"nodeSelector": {"no": "such"}, "containers": [{"name": "c", "image": "i"}]}


@pytest.fixture
def stub(control_plane: ControlPlane) -> Iterator[Any]:
    server = start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = Stub(channel)
        stub.Configure(provider.ConfigureRequest(args=encode({"kubeconfig": control_plane.kubeconfig_text()})))
        yield stub
    server.stop()


def pending(name: str) -> Any:
    labels = {"app": name}
    inputs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": POD}},
    }
    urn = f"urn:pulumi:dev::p::{TYPE}::{name}"
    return provider.CreateRequest(urn=urn, type=TYPE, name=name, properties=encode(inputs))


def test_cancelling_a_pulumi_operation_ends_its_waits_for_kubernetes_objects(stub: Any, control_plane: ControlPlane):
    calls = [stub.Create.future(pending(f"cancel-{number}")) for number in range(20)]
    with control_plane.client() as api:
        path = "/apis/apps/v1/namespaces/default/deployments?watch=1&timeoutSeconds=20"
        with api.stream("GET", path) as events:
            seen: set[str] = set()
            for line in events.iter_lines():
                seen |= {call for call in (f"cancel-{number}" for number in range(20)) if f'"{call}"' in line}
                if len(seen) == 20:
                    break
    stub.Cancel(Empty())
    messages = [str(call.exception(timeout=10).details()) for call in calls]
    assert all("Resource operation was cancelled" in message for message in messages)
