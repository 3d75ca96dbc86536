"""When an update reads first how many nodes pools have."""

import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_oke import planning
from llmd_oke.config import validate
from llmd_oke.operations.pool_sizes import reading_sizes
from test_updates import STACK, Cli

sys.path.insert(0, str(Path(__file__).parents[1] / "planning"))
from created_stacks import gpu_pool, validated

ADD_ON = {"type": "oci:ContainerEngine/addon:Addon", "inputs": {"addonName": "ClusterAutoscaler"}}
OTHER = {"type": "oci:ContainerEngine/addon:Addon", "inputs": {"addonName": "NvidiaGpuPlugin"}}
FIXED = planning.plan(validated(gpu_pool(size=2)))
SCALED = planning.plan(validated(gpu_pool(size=2, scaling={"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 9})))


def reads(plan: planning.Plan, *resources: dict[str, Any]) -> bool:
    return reading_sizes(Cli("", resources).pulumi, plan).refresh


def test_sizes_that_the_autoscaler_changes_are_read():
    assert reads(SCALED)


def test_a_stack_that_goes_back_to_fixed_sizes_reads_what_the_autoscaler_left():
    assert reads(FIXED, ADD_ON)


@pytest.mark.parametrize("resources", [(), (OTHER,)])
def test_a_stack_without_autoscaler_reads_nothing(resources: tuple[dict[str, Any], ...]):
    assert not reads(FIXED, *resources)


def test_a_stack_that_creates_no_cluster_is_not_asked_for_its_state():
    cli = Cli("", [ADD_ON])
    assert not reading_sizes(cli.pulumi, planning.plan(validate(STACK))).refresh
    assert cli.asked == []
