"""What a stack costs at list price."""

from typing import Any

import pytest
from created_stacks import created, gpu_pool, ocid
from llmd_oke import config, planning
from llmd_oke.planning.cost import Costs, costs
from stacks_for_tests import plan


def of(*pools: dict[str, Any], **changes: Any) -> Costs:
    return costs(planning.plan(config.validate(created(*pools, stack_changes=changes))))


def by_part(found: Costs) -> dict[str, float | None]:
    return {cost.part.split(":")[0]: cost.usd_per_hour for cost in found.parts}


def test_a_created_cluster_costs_its_nodes_their_volumes_and_itself():
    parts = by_part(of())
    assert parts["mi300x"] == 9 * 48
    assert parts["system"] == pytest.approx(3 * (16 * 0.03 + 64 * 0.002))
    assert parts["boot volumes"] == pytest.approx((9 * 512 + 3 * 128) * (0.0255 + 10 * 0.0017) / 744)
    assert parts["OKE cluster"] == 0.10


def test_the_sum_is_that_of_the_parts():
    found = of()
    assert found.usd_per_hour == pytest.approx(sum(price or 0 for price in by_part(found).values()))


def test_faster_boot_volumes_cost_more():
    slow, fast = (
        by_part(of(gpu_pool(launch="cluster-network", bootVolumeVpusPerGb=vpus)))["boot volumes"] for vpus in (10, 20)
    )
    assert fast is not None
    assert slow is not None
    assert fast - slow == pytest.approx(9 * 512 * 10 * 0.0017 / 744)


def test_boot_volumes_of_a_pool_that_is_there_are_not_counted():
    with_pool, without = (of(gpu_pool(**more)) for more in ({}, {"poolId": ocid("nodepool")}))
    assert (with_pool.usd_per_hour - without.usd_per_hour) == pytest.approx(9 * 512 * (0.0255 + 0.017) / 744)


def test_a_shape_without_a_public_price_is_named_and_not_guessed():
    found = of(systemPool={"shape": "BM.Standard.E5.192"})
    assert by_part(found)["system"] is None
    assert any("BM.Standard.E5.192" in left_out for left_out in found.not_included)


def test_of_an_existing_cluster_only_the_gpu_nodes_are_known():
    found = costs(plan(nodes=2))
    assert by_part(found) == {"mi300x": 96}
    assert "there already" in found.not_included[0]
