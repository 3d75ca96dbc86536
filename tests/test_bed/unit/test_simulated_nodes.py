"""Simulated nodes: their objects, and the API that they come by."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Interface
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import Status
from lightkube.resources.coordination_v1 import Lease
from llmd_base.errors import KitError
from llmd_rehearsal import nodes
from llmd_rehearsal.agent_config import NodeConfig, NodeTaint, node_address
from llmd_rehearsal.nodes import NodeControl
from llmd_rehearsal.pods.networks import AddressPool

NOW = datetime(2026, 11, 21, 6, 1, 2, 345678, tzinfo=UTC)
BRIDGE = IPv4Interface("10.244.0.1/16")
CONFIG = NodeConfig(
    name="gpu-0",
    capacity={"amd.com/gpu": "8", "nvidia.com/sriov-rdma-vf": "8", "cpu": "112"},
    labels={"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8"},
    taints=(NodeTaint(key="amd.com/gpu", value="present", effect="NoSchedule"), NodeTaint(key="x", effect="NoExecute")),
)


def test_a_simulated_node_has_the_shapes_resources_labels_and_taints() -> None:
    node = nodes.node_object(CONFIG, "10.244.0.10", NOW)
    assert node["status"]["allocatable"] == CONFIG.capacity
    labels = {"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8", "kubernetes.io/hostname": "gpu-0"}
    assert labels.items() <= node["metadata"]["labels"].items()
    taint = {"key": "amd.com/gpu", "value": "present", "effect": "NoSchedule"}
    assert node["spec"]["taints"] == [taint, {"key": "x", "effect": "NoExecute"}]


def test_a_simulated_node_is_ready_and_has_an_address() -> None:
    status = nodes.node_status(CONFIG, "10.244.0.10", NOW)
    conditions = {item["type"]: item["status"] for item in status["conditions"]}
    assert conditions == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    assert {"type": "InternalIP", "address": "10.244.0.10"} in status["addresses"]


def test_with_many_nodes_leases_are_renewed_less_often_but_in_time() -> None:
    assert [nodes.renew_s(count) for count in (1, 128, 192, 5000)] == [10.0, 10.0, 15.0, 20.0]


class _Patches:
    """An API server that takes everything, and the names of what was patched."""

    def __init__(self) -> None:
        self.patched: list[str] = []
        self.changed = asyncio.Event()

    async def patch(self, kind: type, *_: object, **__: object) -> None:
        self.patched.append(kind.__name__)
        if kind.__name__ == "NodeStatus":
            self.changed.set()


async def test_after_a_pause_of_the_machine_leases_and_statuses_are_renewed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller manager may have run meanwhile, and taken the nodes for lost."""
    monkeypatch.setattr(nodes, "_STANDSTILL_LOOK_S", 0.01)
    stood_still_s, server = iter([0.0, 60.0]), _Patches()
    fleet = nodes.NodeFleet(cast("Any", server), BRIDGE, lambda: next(stood_still_s, 60.0))
    fleet._configs[CONFIG.name], fleet._indexes[CONFIG.name] = CONFIG, 0
    running = asyncio.create_task(fleet.run())
    await asyncio.wait_for(server.changed.wait(), 5)
    running.cancel()
    assert server.patched == ["Lease", "NodeStatus"]


def test_a_nodes_lease_has_a_time_in_microseconds_and_is_deleted_with_the_node() -> None:
    lease = nodes.lease("gpu-0", "uid-1", NOW)
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert lease["spec"]["renewTime"] == "2026-11-21T06:01:02.345678Z"


def test_nodes_and_pods_have_unique_addresses() -> None:
    pool = AddressPool(BRIDGE)
    assert [node_address(BRIDGE, index) for index in (0, 8)] == ["10.244.0.10", "10.244.0.18"]
    assert [pool.take(0), pool.take(0), pool.take(8)] == ["10.244.4.1", "10.244.4.2", "10.244.8.1"]


def test_a_pod_gets_its_preferred_address_if_free_and_released_addresses_are_reused() -> None:
    pool = AddressPool(BRIDGE)
    assert pool.take(0, preferred="10.244.4.9") == "10.244.4.9"
    assert pool.take(0, preferred="10.244.4.9") == "10.244.4.1"
    pool.give_back("10.244.4.1")
    assert pool.take(0) == "10.244.4.1"


def test_a_simulated_node_without_free_pod_addresses_refuses_further_pods() -> None:
    pool = AddressPool(BRIDGE)
    for _ in range(126):
        pool.take(0)
    with pytest.raises(KitError, match="no free pod address"):
        pool.take(0)


NODE = {"name": "gpu-0", "capacity": {"cpu": "2"}, "labels": {"a": "b"}}


class Fleet:
    """Nodes in a list."""

    def __init__(self) -> None:
        self.nodes: list[NodeConfig] = []

    def configs(self) -> list[NodeConfig]:
        return self.nodes

    async def add(self, configs: Sequence[NodeConfig]) -> None:
        if len(configs) > 2:
            raise KitError("there is no room for so many nodes")
        self.nodes += configs

    async def stop(self, name: str) -> None:
        raise KitError(f"There is no node {name}.")

    async def remove(self, name: str) -> None:
        self.nodes = [node for node in self.nodes if node.name != name]


@pytest.fixture
async def client() -> AsyncIterator[TestClient[Any, Any]]:
    fleet: Any = Fleet()
    change: Any = {"remove": fleet.remove, "stop": fleet.stop}
    async with TestClient(TestServer(NodeControl(fleet, fleet.add, change).application())) as client:
        yield client


async def test_simulated_nodes_can_be_added_listed_and_removed(client: TestClient[Any, Any]):
    assert (await client.post("/nodes", json={"nodes": [NODE]})).status == 201
    assert await (await client.get("/nodes")).json() == {"nodes": ["gpu-0"]}
    assert (await client.delete("/nodes/gpu-0")).status == 204
    assert await (await client.get("/healthz")).json() == {"nodes": 0}


@pytest.mark.parametrize("body", ["{", '{"nodes": [{"name": "x"}]}', '{"more": 1}'])
async def test_adding_a_simulated_node_with_an_invalid_description_is_refused(client: TestClient[Any, Any], body: str):
    assert (await client.post("/nodes", data=body)).status == 400


async def test_adding_more_simulated_nodes_than_there_is_room_for_is_a_conflict(client: TestClient[Any, Any]):
    answer = await client.post("/nodes", json={"nodes": [NODE] * 3})
    assert (answer.status, await answer.text()) == (409, "there is no room for so many nodes")


async def test_stopping_a_simulated_node_that_does_not_exist_is_an_error(client: TestClient[Any, Any]):
    answer = await client.post("/nodes/gpu-9/stop")
    assert (answer.status, await answer.text()) == (404, "There is no node gpu-9.")


class ForgetfulServer:
    """An API server that loses a node's lease, and has the node removed before it says so."""

    def __init__(self) -> None:
        self.fleet: nodes.NodeFleet | None = None
        self.created: list[str] = []

    async def create(self, item: Any) -> Any:
        self.created.append(type(item).__name__)
        return item

    async def delete(self, *_: object, **__: object) -> None:
        pass

    async def patch(self, kind: type, name: str, *_: object, **__: object) -> None:
        if kind is Lease and self.fleet is not None:
            await self.fleet.remove(name)
            raise ApiError(status=Status(code=404, message="not found"))


async def test_a_node_removed_during_its_lease_renewal_does_not_come_back():
    server = ForgetfulServer()
    fleet = nodes.NodeFleet(cast("Any", server), BRIDGE)
    await fleet.add([CONFIG])
    server.fleet, before = fleet, list(server.created)
    await fleet._beat(CONFIG, with_status=True)
    await fleet._beat(CONFIG, with_status=True)
    assert "gpu-0" not in fleet
    assert server.created == before
