"""The kit's own stacks: what each of them plans."""

from pathlib import Path

import pytest
from llmd_oke import config, planning
from llmd_oke.config import CreateCluster

PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize("stack", config.stacks(PROJECT))
def test_every_stack_can_be_deployed(stack: str):
    assert planning.plan_stack_file(PROJECT, stack).models


def test_the_reference_fills_eight_nodes_with_four_units_and_keeps_one_spare():
    plan = planning.plan_stack_file(PROJECT, "reference")
    (model,) = plan.models
    assert isinstance(plan.cluster, CreateCluster)
    assert (len(plan.nodes), len(plan.idle_nodes), plan.used_gpus) == (9, 1, 64)
    assert (str(model.topology), len(model.units)) == ("8p-tp1-4d-tp2", 4)


def test_the_small_stack_is_one_node():
    plan = planning.plan_stack_file(PROJECT, "small")
    (model,) = plan.models
    assert (len(plan.nodes), str(model.topology)) == (1, "2p-tp1-1d-tp2")


@pytest.mark.parametrize("stack", ["reference", "small", "existing"])
def test_deployed_stacks_keep_weights_on_the_nodes(stack: str):
    assert planning.plan_stack_file(PROJECT, stack).config.storage.model_cache.kind == "node-disk"
