"""Limits of servers that come and go with the load: what is refused, and what is advised."""

import pytest
from stacks_for_tests import model, plan, problems

PREFILL = {"minReplicas": 4, "maxReplicas": 10, "promptTokensPerS": 20000}
DECODE = {"minReplicas": 2, "maxReplicas": 6, "requests": 40}
BOTH = {"prefill": PREFILL, "decode": DECODE}


def scaled(scaling=None, topology="8p-tp1-4d-tp2", **changes):
    return model(topology, scaling=BOTH if scaling is None else scaling, **changes)


def paths(*models, **changes):
    return [problem.path for problem in problems(*models, **changes)]


def advised(scaling, **changes):
    return [item.text for item in plan(scaled(scaling, **changes)).advice if "scaling" in item.path]


def test_limits_around_the_topology_are_accepted():
    assert problems(scaled()) == []
    roles = plan(scaled()).models[0].units[0].roles
    assert [(role.replicas, role.most_replicas) for role in roles] == [(8, 10), (4, 6)]


def test_the_topology_lies_within_the_limits():
    wrong = {"prefill": {**PREFILL, "minReplicas": 9}, "decode": {**DECODE, "maxReplicas": 3}}
    found = [(p.path, p.value, p.accepted) for p in problems(scaled(wrong))]
    assert found == [
        ("models[0].scaling.prefill.minReplicas", 9, "at most 8"),
        ("models[0].scaling.decode.maxReplicas", 3, "at least 4"),
    ]


def test_a_role_that_the_topology_lacks_cannot_be_scaled():
    assert paths(scaled({"decode": DECODE}, "agg-tp1-16r")) == ["models[0].scaling.decode"]


def test_a_role_needs_a_threshold():
    (problem,) = problems(scaled({"decode": {"minReplicas": 1, "maxReplicas": 4}}))
    assert problem.path == "models[0].scaling.decode"
    assert problem.accepted == "at least one of requests, kvCacheUsage"


def test_scaling_names_a_role():
    assert paths(scaled({})) == ["models[0].scaling"]


@pytest.mark.parametrize(("nodes", "most"), [(3, 12), (4, 20)])
def test_the_pools_have_room_for_the_most_servers(nodes: int, most: int):
    just = {"prefill": {**PREFILL, "maxReplicas": most}, "decode": {**DECODE, "maxReplicas": 6}}
    assert problems(scaled(just), nodes=nodes) == []
    more = {**just, "prefill": {**PREFILL, "maxReplicas": most + 1}}
    found = {p.path: p for p in problems(scaled(more), nodes=nodes)}
    problem = found["models[0].scaling.prefill.maxReplicas"]
    assert (problem.value, problem.accepted) == (most + 1, f"at most {most}, or more nodes in gpuPools")
    assert f"{nodes * 8 + 1} GPUs" in problem.why


def test_the_most_servers_have_room_beside_other_models_and_in_all_copies():
    fits = scaled(copies=2)
    assert problems(fits, nodes=6) == []
    other = model("agg-tp8-2r", name="other")
    assert paths(fits, other, nodes=7) == [
        "models[0].scaling.prefill.maxReplicas",
        "models[0].scaling.decode.maxReplicas",
    ]


def test_pools_without_room_for_what_is_started_with_are_told_so():
    assert paths(scaled(), nodes=1) == ["gpuPools[0].size"]


def test_room_for_rollouts_is_what_the_most_servers_leave():
    roles = (
        plan(scaled({"prefill": {**PREFILL, "maxReplicas": 20}, "decode": DECODE}), nodes=4).models[0].units[0].roles
    )
    assert [role.rollout.max_surge for role in roles] == [0, 0]


def test_scaling_one_role_of_two_is_advised_against():
    (text,) = advised({"prefill": {**PREFILL, "minReplicas": 8}})
    assert text == "only prefill servers are scaled: where decode servers are too few, more don't help"


def test_limits_in_another_proportion_than_the_topology_are_told():
    (text,) = advised({"prefill": {**PREFILL, "maxReplicas": 20}, "decode": {**DECODE, "maxReplicas": 4}})
    assert text.startswith("maxReplicas has 20 prefill for 4 decode servers where 8p-tp1-4d-tp2 has 8 for 4")


def test_a_threshold_that_only_waiting_requests_reach_is_told():
    (text,) = advised({**BOTH, "decode": {**DECODE, "requests": 300}})
    assert "one server runs 256 at a time" in text


def test_sensible_limits_need_no_advice():
    assert advised(BOTH) == []
