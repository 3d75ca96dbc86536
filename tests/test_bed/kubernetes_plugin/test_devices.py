"""Devices of simulated nodes, by what is really in a cluster."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import httpx2
import pytest
from kubernetes_api import ApiServer
from kubernetes_control_plane import ControlPlane
from kubernetes_engine import need_charts
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod
from llmd_oke import catalogue
from llmd_oke.catalogue import operators
from llmd_oke.operations.locks import until
from llmd_oke.operators import rdma_network
from llmd_oke.planning.gpu_stack import tolerations
from llmd_rehearsal.agent_config import NodeConfig, NodeTaint
from llmd_rehearsal.devices import DeviceProvider
from llmd_rehearsal.nodes import NodeFleet
from llmd_rehearsal.oci_plugin.local_cluster import LocalAddOns

pytestmark = pytest.mark.rehearsal

SHAPE = catalogue.shape("BM.GPU.MI300X.8")
assert SHAPE is not None
FUNCTION = SHAPE.rdma.resource


class Pods:
    """All pods of the cluster, as they are whenever somebody goes through them."""

    def __init__(self, api: httpx2.Client) -> None:
        self._api = api

    def __iter__(self) -> Iterator[Pod]:
        return (Pod.from_dict(item) for item in self._api.get("/api/v1/pods").json()["items"])


def pods_of(api: httpx2.Client, node: str) -> list[dict[str, Any]]:
    return api.get("/api/v1/pods", params={"fieldSelector": f"spec.nodeName={node}"}).json()["items"]


def play_ready(api: httpx2.Client, node: str) -> None:
    """Set the pods of the node Ready, as the kubelet does."""
    for pod in pods_of(api, node):
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
        patch = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        api.patch(path, json=patch, headers={"Content-Type": "application/strategic-merge-patch+json"})


async def test_nodes_advertise_virtual_functions_while_the_rdma_network_exists(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    helm = need_charts()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(control_plane.kubeconfig_text())
    client = AsyncClient(config=KubeConfig.from_file(kubeconfig).get(), trust_env=False)
    fleet = NodeFleet(client, IPv4Interface("10.244.0.1/16"))
    taints = tuple(NodeTaint(**taint.model_dump()) for taint in SHAPE.node.taints)
    capacity = {"cpu": "8", "memory": "8Gi", "pods": "64"}
    config = NodeConfig(
        name="devices-0", capacity=capacity, devices={FUNCTION: "8"}, labels=SHAPE.node.labels, taints=taints
    )
    await fleet.add([config])
    add_on = operators.gpu_stacks().rdma["sriov-vf"].add_ons[1].tolerating(tolerations(SHAPE.node.taints))
    add_ons = LocalAddOns(kubeconfig, str(helm))

    with control_plane.client() as api:
        provider = DeviceProvider(client, fleet, Pods(api))

        async def shown(looks: int = 20) -> str:
            """Return what the node shows after two looks; the API server needs a moment for new kinds."""
            for _ in range(looks):
                with suppress(ApiError):
                    await provider.look()
                    await provider.look()
                    break
                await asyncio.sleep(0.2)
            return api.get("/api/v1/nodes/devices-0").json()["status"]["allocatable"][FUNCTION]

        assert await shown() == "0"
        add_ons.install(add_on.name, add_on.configurations)
        assert until(lambda: bool(pods_of(api, "devices-0")), 30), "no pod came to the node"
        play_ready(api, "devices-0")
        server = ApiServer(api)
        for manifest in (rdma_network.ip_pool(), rdma_network.network(SHAPE)):
            server.apply(manifest)
        assert await shown() == "0"
        for manifest in (rdma_network.policy(SHAPE), rdma_network.pool_config([SHAPE])):
            server.apply(manifest)
        assert await shown() == "8"
        attachment = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions/sriov-rdma-vf"
        assert api.get(attachment).json()["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"] == FUNCTION
        api.delete(server.path(rdma_network.network(SHAPE))).raise_for_status()
        assert await shown() == "0"
        assert api.get(attachment).status_code == httpx2.codes.NOT_FOUND
        add_ons.remove(add_on.name)
    await fleet.remove("devices-0")
