"""When an update reads first what OCI has."""

import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_oke import planning
from llmd_oke.config import validate
from llmd_oke.operations.refreshing import is_taken_back, reading_first
from previews_for_tests import STACK, Cli

sys.path.insert(0, str(Path(__file__).parents[1] / "planning"))
from created_stacks import gpu_pool, validated

NODE_POOL = "oci:ContainerEngine/nodePool:NodePool"
ADD_ON = {"type": "oci:ContainerEngine/addon:Addon", "inputs": {"addonName": "ClusterAutoscaler"}}
OTHER = {"type": "oci:ContainerEngine/addon:Addon", "inputs": {"addonName": "NvidiaGpuPlugin"}}
FIXED = planning.plan(validated(gpu_pool(size=2)))
SCALED = planning.plan(validated(gpu_pool(size=2, scaling={"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 9})))


def left(state: str, type_: str = NODE_POOL, **changes: Any) -> dict[str, Any]:
    """A resource whose work failed, with the state that OCI's plug-in saw last."""
    return {"type": type_, "inputs": {}, "outputs": {"state": state}, "initErrors": ["out of capacity"], **changes}


def reads(plan: planning.Plan, *resources: dict[str, Any]) -> bool:
    return reading_first(Cli("", resources).pulumi, plan).refresh


def test_sizes_that_the_autoscaler_changes_are_read():
    assert reads(SCALED)


def test_a_stack_that_goes_back_to_fixed_sizes_reads_what_the_autoscaler_left():
    assert reads(FIXED, ADD_ON)


@pytest.mark.parametrize("resources", [(), (OTHER,)])
def test_a_stack_without_autoscaler_reads_nothing(resources: tuple[dict[str, Any], ...]):
    assert not reads(FIXED, *resources)


def test_a_stack_that_creates_no_cluster_is_not_asked_for_its_state():
    cli = Cli("", [ADD_ON])
    assert not reading_first(cli.pulumi, planning.plan(validate(STACK))).refresh
    assert cli.asked == []


def test_a_pool_whose_creation_failed_is_read_because_it_is_gone():
    assert reads(FIXED, OTHER, left("CREATING"))


@pytest.mark.parametrize("type_", [NODE_POOL, "oci:ContainerEngine/cluster:Cluster", "oci:ContainerEngine/addon:Addon"])
@pytest.mark.parametrize("outputs", [{"state": "CREATING"}, {"state": "DELETING"}, {}, None])
def test_a_failed_creation_may_have_left_nothing(type_: str, outputs: dict[str, Any] | None):
    assert is_taken_back(left("", type_, outputs=outputs))


@pytest.mark.parametrize(
    "resource",
    [left("ACTIVE"), left("CREATING", initErrors=None), left("CREATING", "kubernetes:apps/v1:Deployment")],
    ids=["failed later", "well", "of another kind"],
)
def test_what_is_there_is_left_to_the_update(resource: dict[str, Any]):
    assert not is_taken_back(resource)
