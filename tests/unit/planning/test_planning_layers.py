"""Which layer needs what."""

from typing import Any

import pytest
from created_stacks import created
from llmd_oke import config, planning
from llmd_oke.errors import Refused
from stacks_for_tests import stack

EXISTING = stack()
CREATED = created()


def found(value: dict[str, Any], **changes: Any) -> dict[str, str]:
    """What is wrong with a stack with some keys changed; None takes one away."""
    changed = {key: part for key, part in {**value, **changes}.items() if part is not None}
    try:
        planning.plan(config.validate(changed))
    except Refused as refused:
        return {problem.path: str(problem) for problem in refused.problems}
    return {}


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (EXISTING, {}),
        (EXISTING, {"layer": "serving"}),
        (EXISTING, {"layer": "cluster", "models": None}),
        (EXISTING, {"layer": "serving", "cluster": None, "clusterStack": "org/llmd-oke/prod-cluster"}),
        (CREATED, {}),
        (CREATED, {"layer": "cluster", "models": None}),
    ],
)
def test_what_a_layer_needs_is_enough(value: dict[str, Any], changes: dict[str, Any]):
    assert found(value, **changes) == {}


@pytest.mark.parametrize(
    ("value", "changes", "path"),
    [
        (EXISTING, {"cluster": None}, "cluster"),
        (EXISTING, {"clusterStack": "org/llmd-oke/prod-cluster"}, "clusterStack"),
        (EXISTING, {"layer": "serving", "cluster": None}, "clusterStack"),
        (EXISTING, {"layer": "serving", "clusterStack": "org/llmd-oke/prod-cluster"}, "clusterStack"),
        (CREATED, {"layer": "serving"}, "cluster.mode"),
        (EXISTING, {"models": None}, "models"),
        (EXISTING, {"layer": "serving", "models": None}, "models"),
        (CREATED, {"layer": "cluster"}, "models"),
    ],
)
def test_what_does_not_go_with_a_layer_is_refused(value: dict[str, Any], changes: dict[str, Any], path: str):
    assert list(found(value, **changes)) == [path]


def test_pools_of_the_serving_layer_only_say_what_is_there():
    pools = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 9, "launch": "plain", "cycling": {}}]
    assert found(EXISTING, layer="serving", gpuPools=pools) == {}
