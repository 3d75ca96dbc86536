"""Packing servers onto nodes."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from created_stacks import refusals
from hypothesis import given, settings
from hypothesis import strategies as st
from llmd_oke.catalogue import operators
from llmd_oke.config.pools import SystemPoolConfig
from llmd_oke.planning import placement
from llmd_oke.planning.model_plan import PlacedNode, PlacedServer
from llmd_oke.planning.placement import FRONT_DOOR_REQUESTS, place, places_on_node
from stack_files import existing_pool, known_release, model, plan

NODES = st.lists(st.integers(0, 8), min_size=1, max_size=6).map(
    lambda functions: [PlacedNode("pool", i, 8, (), count) for i, count in enumerate(functions)]
)


def servers_of(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[list[PlacedServer]]:
    servers = st.lists(st.tuples(sizes, st.booleans()), max_size=40)
    return servers.map(
        lambda drawn: [
            PlacedServer("unit", "decode", i, size, size if rdma else 0) for i, (size, rdma) in enumerate(drawn)
        ]
    )


ANY = servers_of(st.integers(1, 9))
POWERS_OF_TWO = servers_of(st.sampled_from([1, 2, 4, 8]))


@given(ANY, NODES)
def test_placement_puts_each_server_once_where_there_is_room_and_leaves_the_rest(
    servers: list[PlacedServer], nodes: list[PlacedNode]
):
    placed, left = place(servers, nodes)
    assert Counter([server for node in placed for server in node.servers] + left) == Counter(servers)
    assert [(node.pool, node.index, node.gpus) for node in placed] == [("pool", i, 8) for i in range(len(nodes))]
    assert all(node.free_gpus >= 0 and node.free_virtual_functions >= 0 for node in placed)
    for server in left:
        assert all(
            node.free_gpus < server.gpus or node.free_virtual_functions < server.virtual_functions for node in placed
        )


@given(POWERS_OF_TWO, st.integers(1, 6))
def test_servers_whose_sizes_are_powers_of_two_leave_no_usable_gpus_free(servers: list[PlacedServer], count: int):
    nodes = [PlacedNode("pool", i, 8, (), 8) for i in range(count)]
    placed, left = place(servers, nodes)
    assert bool(left) == (sum(server.gpus for server in servers) > 8 * count)
    if left:
        assert sum(node.free_gpus for node in placed) < max(server.gpus for server in left)


@given(POWERS_OF_TWO)
def test_placing_further_servers_moves_no_server_that_is_already_placed(servers: list[PlacedServer]):
    nodes = [PlacedNode("pool", i, 8, (), 8) for i in range(3)]
    first, _ = place(servers[: len(servers) // 2], nodes)
    second, _ = place(servers[len(servers) // 2 :], first)
    assert all(
        after.servers[: len(before.servers)] == before.servers for before, after in zip(first, second, strict=True)
    )


def test_servers_with_virtual_functions_are_placed_first():
    functionless = [PlacedServer("a", "aggregated", i, 2) for i in range(4)]
    functional = [PlacedServer("b", "decode", i, 1, 1) for i in range(8)]
    _, left = place([*functionless, *functional], [PlacedNode("pool", i, 8, (), 4) for i in range(2)])
    assert left == []


@pytest.mark.parametrize(("free_gpus", "functions"), [(8, 0), (0, 8)])
def test_pods_of_a_server_over_nodes_need_both_gpus_and_virtual_functions(free_gpus: int, functions: int):
    other = tuple(PlacedServer("other", "aggregated", i, 1) for i in range(8 - free_gpus))
    nodes = [PlacedNode("pool", i, 8, other, functions) for i in range(2)]
    pods = [PlacedServer("unit", "decode", 0, 8, 8, nodes=2, node_rank=rank) for rank in range(2)]
    assert place(pods, nodes) == (nodes, pods)


def test_the_topology_of_llm_ds_guide_uses_all_gpus_of_two_nodes():
    result = plan(model("8p-tp1-2d-tp4"), nodes=2)
    assert [node.free_gpus for node in result.nodes] == [0, 0]
    assert [node.free_virtual_functions for node in result.nodes] == [0, 0]
    assert (result.gpus, result.used_gpus) == (16, 16)


def test_aggregated_servers_and_servers_without_rdma_have_no_virtual_functions():
    aggregated = plan(model("agg-tp1-16r"), nodes=2)
    for result in (aggregated, plan(model("1p-tp1-1d-tp2"), nodes=1, rdma="none")):
        assert {role.virtual_functions for role in result.models[0].units[0].roles} == {0}
    assert all(node.free_virtual_functions == 8 for node in aggregated.nodes)


def test_eight_thousand_servers_of_one_gpu_fill_a_thousand_nodes_completely():
    nodes = [PlacedNode("pool", i, 8, (), 8) for i in range(1000)]
    servers = [PlacedServer("unit", "decode", i, 1, 1) for i in range(8001)]
    _, left = place(servers, nodes)
    assert len(left) == 1


COUNTS = st.integers(1, 1024)


@given(COUNTS, st.integers(0, 2000), st.integers(1, 7200))
def test_a_rollout_surges_within_the_room_or_replaces_one_pod_within_its_timeout(
    replicas: int, room: int, startup_s: int
):
    how = placement.rollout(replicas, room)
    assert 0 <= how.max_surge <= min(replicas, room)
    assert 0 <= how.max_unavailable <= 1
    step = how.max_surge + how.max_unavailable
    assert step >= 1
    assert not (how.max_surge and how.max_unavailable)
    limit_s = placement.update_timeout_s(startup_s, replicas, how)
    assert limit_s >= startup_s + placement.TERMINATION_GRACE_S
    assert limit_s <= replicas * (startup_s + placement.TERMINATION_GRACE_S) + placement.SCHEDULING_S
    assert limit_s >= replicas / step * startup_s


@given(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.sampled_from([1, 2, 4, 8]))
def test_the_guaranteed_number_of_further_servers_fits_however_free_gpus_are_spread(free: list[int], size: int):
    there = sum(gpus // size for gpus in free)
    mixed_nodes = sum(bool(gpus % size) for gpus in free)
    assert placement.sure_room(sum(free), size, mixed_nodes) <= there
    assert placement.sure_room(sum(free), size, len(free)) <= there


def test_an_updates_timeout_includes_one_download_of_weights():
    how = placement.rollout(4, 1)
    without, beside = (placement.update_timeout_s(600, 4, how, download_s) for download_s in (0, 5000))
    assert beside == without + 5000


@pytest.mark.parametrize(
    ("spare", "size", "mixed", "room"),
    [(0, 1, 9, 0), (1, 1, 9, 1), (5, 1, 9, 5), (16, 8, 0, 2), (15, 8, 0, 1), (15, 8, 2, 1), (14, 8, 2, 0)],
)
def test_nodes_with_servers_of_mixed_sizes_lower_the_guaranteed_number_of_servers(
    spare: int, size: int, mixed: int, room: int
):
    assert placement.sure_room(spare, size, mixed) == room


@pytest.mark.parametrize(
    ("topology", "pools", "surges", "way"),
    [
        ("1p-tp1dp16ep-1d-tp1dp16ep", 1, [1, 1], "beside"),
        ("1p-tp1dp16ep-1d-tp1dp16ep", 2, [0, 0], "outage"),
        ("agg-tp1dp16ep-1r", 1, [1], "beside"),
        ("agg-tp1dp16ep-1r", 2, [0], "rolling"),
        ("agg-tp4-2r", 2, [2], "beside"),
    ],
)
def test_only_servers_over_nodes_need_one_pool_to_surge_and_to_start_beside_old_ones(
    topology: str, pools: int, surges: list[int], way: str
):
    given = [existing_pool(name=f"pool-{i}", size=16 // pools) for i in range(pools)]
    (planned,) = plan(model(topology, model="qwen3-235b-a22b-fp8"), gpuPools=given).models
    assert [role.rollout.max_surge for role in planned.units[0].roles] == surges
    assert planned.update_way == way


@pytest.mark.parametrize(("small", "enough"), [(16, True), (17, False)])
@pytest.mark.parametrize(("gpus", "functions", "connected"), [(8, 0, False), (16, 8, True)])
def test_room_for_servers_beside_the_old_ones_is_what_larger_new_servers_leave(
    small: int, enough: bool, gpus: int, functions: int, connected: bool
):
    """Six nodes with 48 GPUs, or virtual functions, two servers of 4 and `small` of 1."""
    nodes = [PlacedNode("pool", i, gpus, (), functions) for i in range(6)]
    sizes = [4] * 2 + [1] * small
    servers = [PlacedServer("unit", "decode", i, size, size if connected else 0) for i, size in enumerate(sizes)]
    placed, left = place(servers, nodes)
    assert left == []
    assert placement.room_beside(placed) is enough


@pytest.mark.parametrize(("nodes", "enough"), [(2, False), (3, True)])
def test_small_servers_may_break_up_two_nodes_each_for_a_large_one_beside_the_old(nodes: int, enough: bool):
    """A server of 8 and one of 1, which may be on another node than the old one."""
    servers = [PlacedServer("unit", "decode", i, size) for i, size in enumerate((8, 1))]
    placed, _ = place(servers, [PlacedNode("pool", i, 8, ()) for i in range(nodes)])
    assert placement.room_beside(placed) is enough


@pytest.mark.parametrize(("nodes", "surge"), [(4, 0), (5, 1)])
def test_a_large_server_surges_only_with_room_beside_a_rollout_of_the_small_ones(nodes: int, surge: int):
    large, _ = plan(model("agg-tp8-1r", name="large"), model("agg-tp1-1r", name="small"), nodes=nodes).models
    assert large.units[0].roles[0].rollout.max_surge == surge


def test_rollouts_replace_one_pod_on_full_nodes_and_surge_all_with_enough_gpus():
    for role in plan(model("8p-tp1-2d-tp4"), nodes=2).models[0].units[0].roles:
        assert (role.rollout.max_surge, role.rollout.max_unavailable) == (0, 1)
    for role in plan(model("8p-tp1-4d-tp2"), nodes=9).models[0].units[0].roles:
        assert (role.rollout.max_surge, role.rollout.max_unavailable) == (role.replicas, 0)


TOPOLOGIES = st.sampled_from(
    ["1p-tp1-1d-tp2", "2p-tp1-1d-tp4", "agg-tp1-3r", "agg-tp2-2r", "agg-tp8-1r", "1p-tp2-1d-tp8"]
)


@settings(max_examples=80)
@given(st.lists(st.tuples(TOPOLOGIES, st.integers(1, 2)), min_size=1, max_size=3), st.integers(8, 16), st.randoms())
def test_pods_that_surge_and_new_servers_beside_old_ones_find_room_on_any_nodes(
    drawn: list[tuple[str, int]], nodes: int, chance: random.Random
):
    models = [model(topology, name=f"m{i}", copies=copies) for i, (topology, copies) in enumerate(drawn)]
    planned = plan(*models, nodes=nodes).models
    roles = [role for item in planned for unit in item.units for role in unit.roles]
    running = sorted((role.parallelism.gpus for role in roles for _ in range(role.replicas)), reverse=True)
    surging = [role.parallelism.gpus for role in roles for _ in range(role.rollout.max_surge)]
    chance.shuffle(surging)
    further = [surging, running] if all(item.update_way == "beside" for item in planned) else [surging]
    for beside in further:
        free = [8] * nodes
        for size in (*running, *beside):
            fitting = [i for i, gpus in enumerate(free) if gpus >= size]
            assert fitting, f"a server of {size} GPUs waits with {free} free"
            free[chance.choice(fitting)] -= size


@pytest.mark.parametrize(
    ("topology", "nodes", "changes", "way"),
    [
        ("8p-tp1-4d-tp2", 9, {}, "beside"),
        ("8p-tp1-2d-tp4", 2, {}, "outage"),
        ("4p-tp1-2d-tp2", 2, {"copies": 2}, "one by one"),
        ("agg-tp1-16r", 2, {}, "rolling"),
        ("agg-tp1-8r", 4, {}, "beside"),
        ("agg-tp8-2r", 4, {}, "beside"),
        ("agg-tp1-8r", 4, {"router": {"mode": "none"}}, "rolling"),
    ],
)
def test_the_update_strategy_for_a_new_server_version_follows_from_free_gpus(
    topology: str, nodes: int, changes: dict[str, Any], way: str
):
    (planned,) = plan(model(topology, **changes), nodes=nodes).models
    assert planned.update_way == way


def test_the_outage_by_an_update_to_a_new_server_version_is_given_in_minutes():
    (full,) = plan(model("8p-tp1-2d-tp4"), nodes=2).models
    roles = tuple(replace(role, startup_budget_s=3541) for role in full.units[0].roles)
    started = replace(full, units=(replace(full.units[0], roles=roles),))
    assert "outage of a start-up, at most 60 minutes" in started.update_note
    (roomy,) = plan(model("8p-tp1-2d-tp4"), nodes=5).models
    assert "no outage" in roomy.update_note


def of_pools(system: dict[str, Any], copies: int = 4, **changes: Any) -> dict[str, str]:
    models = [model("1p-tp1-1d-tp1", copies=copies)]
    return refusals(stack_changes={"systemPool": system, "models": models, **changes})


def test_a_system_node_keeps_room_for_the_system_and_a_front_door_beside_routers():
    requests = known_release("llm-d-0.7.0").router_requests
    assert (requests.cpus, requests.memory_gib) == (8, 16)
    assert places_on_node(SystemPoolConfig(), requests, 1) == 3
    kept = operators.system_nodes().allowance.cpus + FRONT_DOOR_REQUESTS.cpus
    ocpus = (kept + 2 * requests.cpus) / operators.system_nodes().cpus_per_ocpu
    places = [
        places_on_node(SystemPoolConfig(ocpus=given, memory_gib=512), requests, 1) for given in (ocpus - 1, ocpus)
    ]
    assert places == [1, 2]


@pytest.mark.parametrize(
    ("envoys", "missing_gib", "changes", "refused"),
    [
        (2, 0, {}, False),
        (2, 1, {}, True),
        (1, 0, {"frontDoor": {"exposure": "internal"}}, False),
        (1, 1, {"frontDoor": {"exposure": "internal"}}, True),
    ],
)
def test_system_nodes_need_memory_for_the_envoys_of_each_model_or_of_one_front_door(
    envoys: int, missing_gib: int, changes: dict[str, Any], refused: bool
):
    """Two models with two routers each, for two nodes: on each two routers, and Envoys of two models or of one."""
    release = known_release("llm-d-0.9.0")
    kept_gib = operators.system_nodes().allowance.memory_gib + envoys * FRONT_DOOR_REQUESTS.memory_gib
    memory_gib = kept_gib + 2 * release.router_requests.memory_gib - missing_gib
    models = [model("1p-tp1-1d-tp1", name=name) for name in ("one", "other")]
    stack = {"systemPool": {"size": 2, "memoryGib": memory_gib}, "models": models, **changes}
    assert ("systemPool.size" in refusals(stack_changes=stack)) is refused


def test_too_many_routers_for_the_system_pool_are_refused_with_a_size_that_suffices():
    assert of_pools({"size": 3}, copies=4) == {}
    assert "systemPool.size" in of_pools({"size": 3}, copies=5)
    assert "at least 5" in of_pools({"size": 1}, copies=7)["systemPool.size"]
    assert of_pools({"size": 5}, copies=7) == {}


@pytest.mark.parametrize(
    ("pool", "doors", "key"),
    [
        ({"ocpus": 4, "memoryGib": 16}, 1, "ocpus"),
        ({"ocpus": 16, "memoryGib": 20}, 1, "memoryGib"),
        ({"size": 1, "ocpus": 7, "memoryGib": 20}, 2, "memoryGib"),
    ],
    ids=["too few OCPUs", "too little memory", "just enough OCPUs"],
)
def test_a_system_node_too_small_for_a_router_is_refused_with_the_size_needed(
    pool: dict[str, Any], doors: int, key: str
):
    allowance, door = operators.system_nodes().allowance, FRONT_DOOR_REQUESTS
    cpus, memory_gib = 8 + allowance.cpus + doors * door.cpus, 16 + allowance.memory_gib + doors * door.memory_gib
    text = of_pools(pool)[f"systemPool.{key}"]
    assert f"{cpus / 2:g} OCPUs and {memory_gib} GiB" in text


def test_routers_may_run_in_further_cpu_pools_that_have_no_taints():
    small, large = {"ocpus": 4, "memoryGib": 16}, {"name": "routers", "size": 3}
    assert of_pools(small, cpuPools=[large]) == {}
    assert "systemPool.ocpus" in of_pools(small, cpuPools=[{**large, "taints": [{"key": "team"}]}])


def test_models_without_a_router_and_fixed_cpu_shapes_are_not_asked_for_room():
    models = [model("agg-tp1-4r", router={"mode": "none"})]
    assert refusals(stack_changes={"systemPool": {"ocpus": 4, "memoryGib": 16}, "models": models}) == {}
    assert of_pools({"shape": "BM.Standard.E5.192", "size": 1}, copies=9) == {}
