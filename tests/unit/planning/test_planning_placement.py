"""Packing servers onto nodes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.planning.placement import place
from llmd_oke.planning.plan import Node, Server
from stacks_for_tests import model, plan

NODES = st.lists(st.integers(0, 8), min_size=1, max_size=6).map(
    lambda functions: [Node("pool", i, 8, (), count) for i, count in enumerate(functions)]
)


def servers_of(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[list[Server]]:
    servers = st.lists(st.tuples(sizes, st.booleans()), max_size=40)
    return servers.map(
        lambda drawn: [Server("unit", "decode", i, size, size if rdma else 0) for i, (size, rdma) in enumerate(drawn)]
    )


ANY = servers_of(st.integers(1, 9))
POWERS_OF_TWO = servers_of(st.sampled_from([1, 2, 4, 8]))


@given(ANY, NODES)
def test_nothing_is_lost_and_nothing_is_placed_twice(servers: list[Server], nodes: list[Node]):
    placed, left = place(servers, nodes)
    assert Counter([server for node in placed for server in node.servers] + left) == Counter(servers)
    assert [(node.pool, node.index, node.gpus) for node in placed] == [("pool", i, 8) for i in range(len(nodes))]


@given(ANY, NODES)
def test_no_node_is_over_its_capacity(servers: list[Server], nodes: list[Node]):
    placed, _ = place(servers, nodes)
    assert all(node.free_gpus >= 0 and node.free_virtual_functions >= 0 for node in placed)


@given(ANY, NODES)
def test_a_server_is_left_only_if_no_node_has_room(servers: list[Server], nodes: list[Node]):
    placed, left = place(servers, nodes)
    for server in left:
        assert all(
            node.free_gpus < server.gpus or node.free_virtual_functions < server.virtual_functions for node in placed
        )


@given(POWERS_OF_TWO, st.integers(1, 6))
def test_powers_of_two_pack_without_waste(servers: list[Server], count: int):
    nodes = [Node("pool", i, 8, (), 8) for i in range(count)]
    placed, left = place(servers, nodes)
    assert bool(left) == (sum(server.gpus for server in servers) > 8 * count)
    if left:
        assert sum(node.free_gpus for node in placed) < max(server.gpus for server in left)


@given(POWERS_OF_TWO)
def test_placing_in_two_goes_keeps_what_is_there(servers: list[Server]):
    nodes = [Node("pool", i, 8, (), 8) for i in range(3)]
    first, _ = place(servers[: len(servers) // 2], nodes)
    second, _ = place(servers[len(servers) // 2 :], first)
    assert all(
        after.servers[: len(before.servers)] == before.servers for before, after in zip(first, second, strict=True)
    )


def test_servers_with_virtual_functions_come_first():
    functionless = [Server("a", "aggregated", i, 2) for i in range(4)]
    functional = [Server("b", "decode", i, 1, 1) for i in range(8)]
    _, left = place([*functionless, *functional], [Node("pool", i, 8, (), 4) for i in range(2)])
    assert left == []


def test_the_guide_fills_its_two_nodes():
    made = plan(model("8p-tp1-2d-tp4"), nodes=2)
    assert [node.free_gpus for node in made.nodes] == [0, 0]
    assert [node.free_virtual_functions for node in made.nodes] == [0, 0]
    assert (made.gpus, made.used_gpus) == (16, 16)


def test_aggregated_servers_take_no_virtual_function():
    made = plan(model("agg-tp1-16r"), nodes=2)
    assert made.models[0].units[0].roles[0].virtual_functions == 0
    assert all(node.free_virtual_functions == 8 for node in made.nodes)


def test_without_rdma_no_server_takes_a_virtual_function():
    made = plan(model("1p-tp1-1d-tp2"), nodes=1, rdma="none")
    assert [role.virtual_functions for role in made.models[0].units[0].roles] == [0, 0]


def test_a_thousand_nodes_are_filled_in_no_time():
    nodes = [Node("pool", i, 8, (), 8) for i in range(1000)]
    servers = [Server("unit", "decode", i, 1, 1) for i in range(8001)]
    _, left = place(servers, nodes)
    assert len(left) == 1
