"""What nodes register with beside what the kit relies on."""

from typing import Any

import pytest
from created_stacks import gpu_pool, refusals, validated
from llmd_oke.planning.gpu_stack import gpu_stack

TEAM = {"key": "example.com/team", "value": "a", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("oci.oraclecloud.com/disable-gpu-device-plugin", "false"),
        ("amd.com/gpu", "false"),
        ("node.kubernetes.io/instance-type", "other"),
        ("oke.oraclecloud.com/pool.name", "other"),
    ],
)
def test_a_label_of_the_kit_keeps_its_value(label: str, value: str):
    assert "the kit sets this label" in refusals(gpu_pool(labels={label: value}))[f"gpuPools[0].labels.{label}"]


def test_a_label_that_says_what_the_kit_says_is_accepted():
    assert refusals(gpu_pool(labels={"amd.com/gpu": "true"})) == {}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"systemPool": {"labels": {"oke.oraclecloud.com/pool.name": "other"}}}, "systemPool"),
        ({"cpuPools": [{"name": "more", "labels": {"oke.oraclecloud.com/pool.name": "other"}}]}, "cpuPools[0]"),
    ],
)
def test_pools_without_gpus_keep_their_pools_name_too(changes: dict[str, Any], path: str):
    assert f"{path}.labels.oke.oraclecloud.com/pool.name" in refusals(stack_changes=changes)


def test_a_taint_of_the_shape_is_not_given_twice():
    found = refusals(gpu_pool(taints=[{"key": "amd.com/gpu", "value": "mine"}]))
    assert "the shape has this key" in found["gpuPools[0].taints[0]"]


def test_a_key_may_have_each_effect_once():
    taints = [TEAM, {**TEAM, "effect": "NoExecute"}, {**TEAM, "value": "b"}]
    found = refusals(stack_changes={"cpuPools": [{"name": "more", "taints": taints}]})
    assert [path for path in found if "taints" in path] == ["cpuPools[0].taints[2]"]


def test_operators_tolerate_the_taints_of_all_gpu_pools():
    config = validated(gpu_pool(taints=[TEAM]), gpu_pool(name="other"))

    taints = [(taint.key, taint.value) for taint in gpu_stack(config).tolerations]

    assert taints == [("amd.com/gpu", "present"), ("example.com/team", "a")]


@pytest.mark.parametrize("changes", [{}, {"layer": "cluster", "models": []}])
def test_a_pool_may_have_taints_of_its_own(changes: dict[str, Any]):
    found = refusals(gpu_pool(taints=[TEAM]), stack_changes=changes)
    assert [path for path in found if "taints" in path] == []
