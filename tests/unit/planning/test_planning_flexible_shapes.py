"""Nodes of flexible shapes are no larger than OCI has them."""

from math import isfinite

import pytest
from created_stacks import refusals
from llmd_oke.catalogue.flexible_shapes import flexible_shape
from llmd_oke.catalogue.prices import prices


def of_system_pool(**changes: object) -> dict[str, str]:
    return refusals(stack_changes={"systemPool": changes})


@pytest.mark.parametrize(
    ("ocpus", "memory_gib", "good"), [(16, 64, True), (4, 257, False), (32, 16, False), (126, 2098, True)]
)
def test_memory_goes_by_ocpus(ocpus: int, memory_gib: int, good: bool):
    found = of_system_pool(shape="VM.Standard.E5.Flex", ocpus=ocpus, memoryGib=memory_gib)
    assert ("systemPool.memoryGib" not in found) is good


def test_memory_ends_at_the_largest_node_of_the_shape():
    found = of_system_pool(shape="VM.Standard.E6.Flex", ocpus=100, memoryGib=2048)
    assert "accepted: 100 to 1454" in found["systemPool.memoryGib"]


def test_more_ocpus_than_any_node_of_the_shape_are_refused_once():
    found = of_system_pool(shape="VM.Standard3.Flex", ocpus=64, memoryGib=1024)
    assert list(found) == ["systemPool.ocpus"]
    assert "accepted: at most 56" in found["systemPool.ocpus"]


def test_pools_of_the_stack_file_are_judged_each_for_itself():
    found = refusals(stack_changes={"cpuPools": [{"name": "large", "shape": "VM.Optimized3.Flex", "ocpus": 32}]})
    assert list(found) == ["cpuPools[0].ocpus"]


def test_the_size_of_a_shape_without_public_figures_is_left_to_oci():
    assert of_system_pool(shape="VM.Standard.E9.Flex", ocpus=200, memoryGib=2048) == {}


def test_memory_goes_by_ocpus_whatever_the_flexible_shape():
    found = of_system_pool(shape="VM.Standard.E9.Flex", ocpus=16, memoryGib=2048)
    assert "1 to 64 GB for each OCPU, so 16 to 1024 with 16 OCPUs" in found["systemPool.memoryGib"]


def test_a_shape_of_one_size_is_not_judged():
    assert flexible_shape("VM.Standard2.16") is None


def test_the_limits_of_every_shape_with_a_price_are_known():
    for name in prices().flexible_shapes:
        limits = flexible_shape(name)
        assert limits is not None, name
        assert isfinite(limits.memory_gb), name
