"""The control API that nodes come and go by."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from llmd_oke.errors import KitError
from llmd_oke.rehearsal.nodes.config import NodeConfig
from llmd_oke.rehearsal.nodes.control import NodeControl

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


async def test_nodes_are_added_listed_and_removed(client: TestClient[Any, Any]):
    assert (await client.post("/nodes", json={"nodes": [NODE]})).status == 201
    assert await (await client.get("/nodes")).json() == {"nodes": ["gpu-0"]}
    assert (await client.delete("/nodes/gpu-0")).status == 204
    assert await (await client.get("/healthz")).json() == {"nodes": 0}


@pytest.mark.parametrize("body", ["{", '{"nodes": [{"name": "x"}]}', '{"more": 1}'])
async def test_what_describes_no_node_is_refused(client: TestClient[Any, Any], body: str):
    assert (await client.post("/nodes", data=body)).status == 400


async def test_what_the_fleet_does_not_take_is_a_conflict(client: TestClient[Any, Any]):
    answer = await client.post("/nodes", json={"nodes": [NODE] * 3})
    assert (answer.status, await answer.text()) == (409, "there is no room for so many nodes")


async def test_a_node_that_is_not_there_cant_be_stopped(client: TestClient[Any, Any]):
    answer = await client.post("/nodes/gpu-9/stop")
    assert (answer.status, await answer.text()) == (404, "There is no node gpu-9.")
