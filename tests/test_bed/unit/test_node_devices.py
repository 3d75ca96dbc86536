"""Devices of simulated nodes."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta, Status
from lightkube.resources.core_v1 import Node, Pod
from llmd_oke import catalogue
from llmd_oke.operators import helm_operators, rdma_network
from llmd_oke.planning.gpu_stack import tolerations
from llmd_rehearsal.agent_config import NodeConfig, NodeTaint
from llmd_rehearsal.devices import ClusterObjects, DeviceProvider, NodeFacts, device_rules, node_devices

SHAPE = catalogue.shape("BM.GPU.MI300X.8")
assert SHAPE is not None
GPU, FUNCTION = SHAPE.gpu.resource, SHAPE.rdma.resource
TAINTS = [taint.model_dump() for taint in SHAPE.node.taints]
FOUND = {"feature.node.kubernetes.io/amd-gpu": "true"}
NODE = NodeFacts("gpu-0", {**SHAPE.node.labels, **FOUND}, TAINTS, {GPU: "8", FUNCTION: "8"})


def pod(labels: dict[str, str], node: str = "gpu-0", ready: str = "True") -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"labels": labels}, "spec": {"nodeName": node, "containers": []}, "status": status}


PLUGIN = pod({"app": "sriov-device-plugin"})
OPERATOR = {
    "metadata": {"labels": {"app.kubernetes.io/component": "amd-gpu", "control-plane": "controller-manager"}},
    "status": {"conditions": [{"type": "Available", "status": "True"}]},
}
CONFIG = helm_operators.device_config("kube-amd-gpu", None, tolerations(SHAPE.node.taints))
NETWORK = rdma_network.network(SHAPE)
ATTACHMENT = {
    "metadata": {
        "name": "sriov-rdma-vf",
        "namespace": "default",
        "annotations": {"k8s.v1.cni.cncf.io/resourceName": FUNCTION},
    }
}
GPU_STACK = {"DeviceConfig": [CONFIG]}
RDMA = {
    "SriovNetworkNodePolicy": [rdma_network.policy(SHAPE)],
    "SriovNetwork": [NETWORK],
    "IPPool": [rdma_network.ip_pool()],
    "NetworkAttachmentDefinition": [ATTACHMENT],
}


def device_config(selector: dict[str, str] | None = None, *, tolerated: bool = True, enabled: bool = True) -> Any:
    config = helm_operators.device_config("kube-amd-gpu", selector, tolerations(SHAPE.node.taints) if tolerated else [])
    config["spec"]["devicePlugin"]["enableDevicePlugin"] = enabled
    return config


OTHER_NAME = copy.deepcopy(rdma_network.policy(SHAPE))
OTHER_NAME["spec"]["resourceName"] = "other"
BY_SHAPE = device_config({"node.kubernetes.io/instance-type": SHAPE.name})
NOTHING = (0, 0)


@pytest.mark.parametrize(
    ("pods", "deployments", "objects", "gpus_and_functions"),
    [
        pytest.param([], [], {}, NOTHING, id="an empty cluster"),
        pytest.param([], [OPERATOR], GPU_STACK, (8, 0), id="the GPU operator"),
        pytest.param([], [], GPU_STACK, NOTHING, id="no GPU operator"),
        pytest.param([], [OPERATOR], {}, NOTHING, id="no DeviceConfig"),
        pytest.param([], [OPERATOR], {"DeviceConfig": [device_config(tolerated=False)]}, NOTHING, id="no toleration"),
        pytest.param([], [OPERATOR], {"DeviceConfig": [device_config(enabled=False)]}, NOTHING, id="plug-in disabled"),
        pytest.param([], [OPERATOR], {"DeviceConfig": [BY_SHAPE]}, (8, 0), id="nodes by their shape"),
        pytest.param([pod({"k8s-app": "amdgpu-device-plugin"})], [], {}, (8, 0), id="OKE's device plug-in"),
        pytest.param([PLUGIN], [], RDMA, (0, 8), id="the RDMA network"),
        pytest.param([], [], RDMA, NOTHING, id="no pod of the RDMA network"),
        *(
            pytest.param([PLUGIN], [], {kind: RDMA[kind] for kind in RDMA.keys() - {gone}}, NOTHING, id=f"no {gone}")
            for gone in RDMA
        ),
        pytest.param([PLUGIN], [], {**RDMA, "SriovNetworkNodePolicy": [OTHER_NAME]}, NOTHING, id="another resource"),
    ],
)
def test_nodes_advertise_devices_only_while_all_parts_of_their_operators_are_there(
    pods: Sequence[Any], deployments: Sequence[Any], objects: dict[str, Any], gpus_and_functions: tuple[int, int]
) -> None:
    found = node_devices(NODE, ClusterObjects(pods, deployments, objects), device_rules())
    assert found == dict(zip((GPU, FUNCTION), map(str, gpus_and_functions), strict=True))


def test_a_node_on_which_discovery_found_no_gpu_advertises_none_unless_chosen() -> None:
    unlabelled = replace(NODE, labels=SHAPE.node.labels)
    by_discovery, by_shape = (
        node_devices(unlabelled, ClusterObjects([], [OPERATOR], {"DeviceConfig": [config]}), device_rules())[GPU]
        for config in (CONFIG, BY_SHAPE)
    )
    assert (by_discovery, by_shape) == ("0", "8")


class Nodes:
    """A fleet of one node, which remembers what it was told to show."""

    def __init__(self, **devices: str) -> None:
        taints = tuple(NodeTaint(**taint) for taint in TAINTS)
        self.config = NodeConfig(name="gpu-0", capacity={"cpu": "8"}, devices=devices, taints=taints)
        self.shown: list[Mapping[str, str]] = []

    def configs(self) -> list[NodeConfig]:
        return [self.config]

    async def show_devices(self, name: str, devices: Mapping[str, str]) -> None:
        self.shown.append(devices)


class Found(dict[str, Any]):
    def to_dict(self) -> dict[str, Any]:
        return self


class Client:
    """A cluster with these objects by kind; kinds that aren't there have no definition."""

    def __init__(self, **objects: list[Any]) -> None:
        self.objects: dict[str, list[Any]] = {"Pod": [], "Deployment": [], **objects}

    def __iter__(self) -> Iterator[Pod]:
        return (Pod.from_dict(pod) for pod in self.objects["Pod"])

    async def list(self, kind: Any, **_: Any) -> Any:
        name = kind._api_info.resource.kind
        if name not in self.objects:
            raise ApiError(status=Status(code=404, message="the server could not find the requested resource"))
        for item in self.objects[name]:
            yield Found(item)

    async def create(self, obj: Any) -> None:
        self.objects.setdefault("NetworkAttachmentDefinition", []).append(dict(obj))

    async def delete(self, kind: Any, name: str, namespace: str) -> None:
        self.objects["NetworkAttachmentDefinition"] = []


def provider(client: Client, nodes: Nodes, node_objects: Sequence[Node] = ()) -> DeviceProvider:
    return DeviceProvider(cast("Any", client), nodes, client, node_objects)


async def test_a_nodes_status_is_written_only_when_its_devices_change() -> None:
    nodes, client = Nodes(**{GPU: "8"}), Client()
    looking = provider(client, nodes)
    await looking.look()
    await looking.look()
    client.objects["Pod"] = [pod({"k8s-app": "amdgpu-device-plugin"})]
    await looking.look()
    assert nodes.shown == [{GPU: "0"}, {GPU: "8"}]


async def test_devices_are_advertised_again_for_a_new_instance_under_a_known_node_name() -> None:
    nodes, client = Nodes(**{GPU: "8"}), Client(Pod=[pod({"k8s-app": "amdgpu-device-plugin"})])
    looking = provider(client, nodes)
    await looking.look()
    nodes.config = nodes.config.model_copy(update={"provider_id": "ocid1.instance.another"})
    await looking.look()
    assert nodes.shown == [{GPU: "8"}] * 2


async def test_nodes_advertise_gpus_once_node_feature_discovery_has_labelled_them() -> None:
    nodes, client = Nodes(**{GPU: "8"}), Client(Deployment=[OPERATOR], DeviceConfig=[CONFIG])
    node_objects = [Node(metadata=ObjectMeta(name="gpu-0"))]
    looking = provider(client, nodes, node_objects)
    await looking.look()
    node_objects[0] = Node(metadata=ObjectMeta(name="gpu-0", labels=FOUND))
    await looking.look()
    assert nodes.shown == [{GPU: "0"}, {GPU: "8"}]


async def test_nodes_without_gpus_or_rdma_stay_unchanged() -> None:
    nodes = Nodes()
    await provider(Client(), nodes).look()
    assert nodes.shown == []


async def test_a_networkattachmentdefinition_exists_exactly_while_its_sriovnetwork_does() -> None:
    client = Client(SriovNetwork=[NETWORK], NetworkAttachmentDefinition=[])
    looking = provider(client, Nodes(**{FUNCTION: "8"}))
    await looking.look()
    [created] = client.objects["NetworkAttachmentDefinition"]
    assert (created["metadata"]["namespace"], created["metadata"]["name"]) == ("default", "sriov-rdma-vf")
    assert created["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/resourceName": FUNCTION}
    client.objects["SriovNetwork"] = []
    await looking.look()
    assert client.objects["NetworkAttachmentDefinition"] == []


async def test_networkattachmentdefinitions_of_no_sriovnetwork_of_the_kit_stay_unchanged() -> None:
    client = Client(NetworkAttachmentDefinition=[ATTACHMENT])
    await provider(client, Nodes(**{FUNCTION: "8"})).look()
    assert client.objects["NetworkAttachmentDefinition"] == [ATTACHMENT]
