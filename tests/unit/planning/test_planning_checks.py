from pathlib import Path
from typing import Any

import pytest
from created_stacks import created
from llmd_base.errors import InvalidStack
from llmd_oke import config, planning
from stack_files import existing_pool, model, stack

EXISTING = stack()
CREATED = created()


def refused_paths(value: dict[str, Any], **changes: Any) -> list[str]:
    """Return where a stack with some keys changed is wrong; None takes one away."""
    changed = {key: part for key, part in {**value, **changes}.items() if part is not None}
    try:
        planning.plan(config.validate(changed))
    except InvalidStack as refused:
        return [problem.path for problem in refused.problems]
    return []


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (EXISTING, {}),
        (EXISTING, {"layer": "serving"}),
        (EXISTING, {"layer": "cluster", "models": None}),
        (EXISTING, {"layer": "serving", "cluster": None, "clusterStack": "org/llmd-oke/prod-cluster"}),
        (CREATED, {}),
        (CREATED, {"layer": "cluster", "models": None}),
        (EXISTING, {"layer": "serving", "gpuPools": [existing_pool(launch="plain", cycling={})]}),
    ],
)
def test_a_stack_file_with_the_keys_that_its_layer_needs_is_accepted(value: dict[str, Any], changes: dict[str, Any]):
    assert refused_paths(value, **changes) == []


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
def test_keys_that_do_not_belong_to_a_layer_are_refused(value: dict[str, Any], changes: dict[str, Any], path: str):
    assert refused_paths(value, **changes) == [path]


def test_a_missing_gpupools_key_does_not_hide_an_unknown_release_or_model() -> None:
    value = stack(model(model="gpt"), release="llm-d-9", gpuPool=[])
    del value["gpuPools"]
    with pytest.raises(InvalidStack) as refused:
        planning.plan_object(value)
    assert {"gpuPools", "gpuPool", "release", "models[0].model"} <= {problem.path for problem in refused.value.problems}


PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize("stack", ["reference", "small", "existing"])
def test_the_stacks_reference_small_and_existing_cache_weights_on_node_disks(stack: str):
    assert config.load(PROJECT, stack).storage.model_cache.kind == "node-disk"
