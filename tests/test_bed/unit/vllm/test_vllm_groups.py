"""Containers of a server that spans nodes: they meet, and lose each other."""

import asyncio

import pytest
from free_ports import free_port
from llmd_rehearsal.vllm.command import ServerNode
from llmd_rehearsal.vllm.flags import StartRefusal
from llmd_rehearsal.vllm.groups import RankGroup

NODES = 3


@pytest.fixture
def port() -> int:
    return free_port()


async def join(port: int, rank: int, wait_s: float = 20) -> RankGroup:
    return await RankGroup.join(ServerNode(rank, "127.0.0.1", port, wait_s), NODES, None, wait_s)


async def test_containers_of_one_server_on_several_nodes_connect_in_any_start_order(port: int):
    groups = await asyncio.gather(*(join(port, rank) for rank in (2, 0, 1)))
    for group in groups:
        group.close()


@pytest.mark.parametrize("gone", range(NODES))
async def test_losing_one_container_of_a_server_over_nodes_ends_its_other_containers(port: int, gone: int):
    groups = await asyncio.gather(*(join(port, rank) for rank in range(NODES)))
    losses = [asyncio.Event() for _ in groups]
    for group, lost in zip(groups, losses, strict=True):
        group.on_loss(lost.set)
    groups[gone].close()
    told = [losses[rank] for rank in (range(1, NODES) if gone == 0 else (0,))]
    await asyncio.wait_for(asyncio.gather(*(lost.wait() for lost in told)), 20)
    for group in groups:
        group.close()


async def test_a_server_over_nodes_does_not_start_if_not_all_of_its_containers_connect(port: int):
    with pytest.raises(StartRefusal, match="Timed out waiting for engine core processes"):
        await join(port, 0, wait_s=0.05)
