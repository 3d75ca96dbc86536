"""How pods are replaced on full and on spacious nodes."""

import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from llmd_oke.planning import rollout
from stacks_for_tests import model, plan

COUNTS = st.integers(1, 1024)


@given(COUNTS, st.integers(0, 2000))
def test_a_rollout_always_moves_and_never_takes_more_than_there_is(replicas: int, room: int):
    how = rollout.rollout(replicas, room)
    assert 0 <= how.max_surge <= min(replicas, room)
    assert 0 <= how.max_unavailable <= 1
    assert how.max_surge + how.max_unavailable >= 1
    assert not (how.max_surge and how.max_unavailable)


@given(COUNTS, st.integers(0, 2000), st.integers(1, 7200))
def test_the_timeout_of_an_update_is_one_start_for_each_wave(replicas: int, room: int, startup_s: int):
    how = rollout.rollout(replicas, room)
    limit_s = rollout.update_timeout_s(startup_s, replicas, how)
    step = how.max_surge + how.max_unavailable
    assert limit_s >= startup_s + rollout.TERMINATION_GRACE_S
    assert limit_s <= replicas * (startup_s + rollout.TERMINATION_GRACE_S) + rollout.SCHEDULING_S
    assert limit_s >= replicas / step * startup_s


@given(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.sampled_from([1, 2, 4, 8]))
def test_sure_room_is_there_however_free_gpus_are_scattered(free: list[int], size: int):
    there = sum(gpus // size for gpus in free)
    mixed_nodes = sum(bool(gpus % size) for gpus in free)
    assert rollout.sure_room(sum(free), size, mixed_nodes) <= there
    assert rollout.sure_room(sum(free), size, len(free)) <= there


def test_one_gpu_always_fits_a_free_gpu():
    assert [rollout.sure_room(spare, 1, 9) for spare in (0, 1, 5)] == [0, 1, 5]


def test_whole_free_nodes_are_room_where_no_other_sizes_are():
    assert rollout.sure_room(16, 8, 0) == 2
    assert rollout.sure_room(15, 8, 0) == 1
    assert rollout.sure_room(15, 8, 2) == 1
    assert rollout.sure_room(14, 8, 2) == 0


def test_full_nodes_roll_one_pod_at_a_time_and_spacious_ones_all_at_once():
    for role in plan(model("8p-tp1-2d-tp4"), nodes=2).models[0].units[0].roles:
        assert (role.rollout.max_surge, role.rollout.max_unavailable) == (0, 1)
    for role in plan(model("8p-tp1-4d-tp2"), nodes=9).models[0].units[0].roles:
        assert (role.rollout.max_surge, role.rollout.max_unavailable) == (role.replicas, 0)


TOPOLOGIES = st.sampled_from(
    ["1p-tp1-1d-tp2", "2p-tp1-1d-tp4", "agg-tp1-3r", "agg-tp2-2r", "agg-tp8-1r", "1p-tp2-1d-tp8"]
)


@given(st.lists(st.tuples(TOPOLOGIES, st.integers(1, 2)), min_size=1, max_size=3), st.integers(8, 12), st.randoms())
def test_all_surges_find_room_at_once_wherever_the_pods_are(
    drawn: list[tuple[str, int]], nodes: int, chance: random.Random
):
    models = [model(topology, name=f"m{i}", copies=copies) for i, (topology, copies) in enumerate(drawn)]
    roles = [role for each in plan(*models, nodes=nodes).models for unit in each.units for role in unit.roles]
    running = [role.tensor_parallel_size for role in roles for _ in range(role.replicas)]
    surging = [role.tensor_parallel_size for role in roles for _ in range(role.rollout.max_surge)]
    chance.shuffle(surging)
    free = [8] * nodes
    for size in (*sorted(running, reverse=True), *surging):
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
        ("agg-tp1-8r", 4, {"router": {"mode": "none"}}, "rolling"),
    ],
)
def test_another_version_comes_as_there_is_room(topology: str, nodes: int, changes: dict[str, Any], way: str):
    (planned,) = plan(model(topology, **changes), nodes=nodes).models
    assert planned.update_way == way


def test_what_another_version_costs_is_told_in_minutes():
    (full,) = plan(model("8p-tp1-2d-tp4"), nodes=2).models
    minutes = full.units[0].roles[0].startup_budget_s // 60
    assert f"outage of a start-up, at most {minutes} minutes" in full.update_note
    (roomy,) = plan(model("8p-tp1-2d-tp4"), nodes=5).models
    assert "no outage" in roomy.update_note


@given(st.lists(st.tuples(TOPOLOGIES, st.integers(1, 2)), min_size=1, max_size=3), st.integers(8, 16), st.randoms())
def test_where_others_come_beside_all_servers_find_room_twice_wherever_the_first_are(
    drawn: list[tuple[str, int]], nodes: int, chance: random.Random
):
    models = [model(topology, name=f"m{i}", copies=copies) for i, (topology, copies) in enumerate(drawn)]
    planned = plan(*models, nodes=nodes).models
    assume(all(each.update_way == "beside" for each in planned))
    roles = [role for each in planned for unit in each.units for role in unit.roles]
    sizes = sorted((role.tensor_parallel_size for role in roles for _ in range(role.replicas)), reverse=True)
    free = [8] * nodes
    for size in (*sizes, *sizes):
        fitting = [i for i, gpus in enumerate(free) if gpus >= size]
        assert fitting, f"a server of {size} GPUs waits with {free} free"
        free[chance.choice(fitting)] -= size
