"""Several models of one stack on one set of nodes."""

from collections import Counter

import pytest
from llmd_oke.planning.plan import Plan
from stack_files import StackObject, model, plan, problems

LLAMA = "llama-3.3-70b-instruct-fp8-dynamic"
MODELS = (
    model("2p-tp1-1d-tp2"),
    model("1p-tp2-1d-tp4", model=LLAMA),
    model("agg-tp1-2r", name="plain", router={"mode": "none"}),
)
"""Prefill and decode of different sizes, and aggregated servers without a router of a model that is there twice."""


@pytest.fixture(scope="module")
def three() -> Plan:
    return plan(*MODELS, nodes=2)


def test_servers_of_three_models_are_placed_on_the_same_nodes(three: Plan):
    placed = Counter(server.unit for node in three.nodes for server in node.servers)
    assert placed == {"gpt-oss-120b": 3, LLAMA.replace(".", "-"): 2, "plain": 2}
    assert (three.used_gpus, three.gpus) == (12, 16)
    for node in three.nodes:
        assert sum(server.gpus for server in node.servers) + node.free_gpus == 8


def test_pools_without_room_for_the_servers_of_all_models_are_refused():
    (problem,) = problems(*MODELS, nodes=1)
    assert (problem.path, problem.accepted) == ("gpuPools[0].size", "at least 2, or fewer or smaller servers")


def test_a_new_server_version_starts_beside_the_old_if_all_models_leave_room(three: Plan):
    assert {entry.name: entry.update_way for entry in three.models}["gpt-oss-120b"] == "outage"
    assert plan(*MODELS, nodes=4).models[0].update_way == "beside"


@pytest.mark.parametrize(
    ("models", "path", "value"),
    [
        ([model(), model("agg-tp1-1r")], "models[1].model", "gpt-oss-120b"),
        ([model(name="a"), model("agg-tp1-1r", name="a")], "models[1].name", "a"),
        ([model(name="gpt-oss-120b-1"), model("agg-tp1-1r", copies=2)], "models[1].model", "gpt-oss-120b"),
        ([model(name="a"), model("agg-tp1-1r", name="a-epp")], "models[1].name", "a-epp"),
    ],
)
def test_two_model_entries_that_give_objects_equal_names_are_refused(models: list[StackObject], path: str, value: str):
    (problem,) = problems(*models)
    assert (problem.path, problem.value, problem.accepted) == (path, value, "models[1].name with another name")
    unrouted = model("agg-tp1-1r", name="a", router={"mode": "none"})  # so that it has no object named a-epp
    assert problems(unrouted, model("agg-tp1-1r", name="a-epp")) == []
