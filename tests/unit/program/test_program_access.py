import pytest
from llmd_base.errors import Problem
from llmd_oke.config import validate
from llmd_oke.planning import plan
from llmd_oke.program.access import unknown_taints
from stack_files import existing_pool, stack

OWN = {"key": "own", "value": "a", "effect": "NoSchedule"}


def unknown(effect: str, *, own: bool = False) -> list[Problem]:
    pool = existing_pool(taints=[OWN] if own else [])
    serving = stack(layer="serving", clusterStack="org/llmd-oke/cluster", gpuPools=[pool])
    del serving["cluster"]
    made = {"key": "team", "value": "search", "effect": effect}
    return list(unknown_taints(plan(validate(serving)), {"mi300x": {"taints": [made]}}))


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_taint_of_nodes_that_repels_pods_must_be_in_the_stack_file(effect: str):
    (problem,) = unknown(effect)
    assert (problem.path, problem.value) == ("gpuPools[0].taints", None)
    assert f"team=search:{effect}" in problem.accepted


def test_a_taint_of_nodes_with_effect_prefer_no_schedule_is_ignored():
    assert unknown("PreferNoSchedule") == []


def test_a_missing_taint_is_reported_with_the_taints_that_the_pool_has():
    (problem,) = unknown("NoSchedule", own=True)
    assert problem.value == "own=a:NoSchedule"
