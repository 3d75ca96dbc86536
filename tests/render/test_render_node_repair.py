from typing import Any

import pytest
from created_cluster import cluster_layer
from llmd_oke.cluster.pools import duration
from llmd_oke.testing import Declared, Rendered
from stack_files import created_pool

KIND = "kubernetes:oci.oraclecloud.com/v1beta1:NodeOperationRule"


@pytest.fixture
def repaired(rendered: Any) -> Rendered:
    """A cluster with node repair, and with pools of several kinds."""
    pools = [
        created_pool(),
        created_pool(name="other", launch="compute-cluster-instances"),
        created_pool(name="slow", evictionGraceMinutes=30),
        created_pool(name="fast", evictionGraceMinutes=0),
        created_pool(name="cycled", cycling={"mode": "replace-boot-volume"}),
    ]
    return rendered({**cluster_layer(cluster={"nodeRepair": "on-request"}), "gpuPools": pools})


def rules(stack: Rendered) -> dict[str, Declared]:
    return {item.inputs["metadata"]["name"]: item for item in stack.of_type(KIND)}


def test_no_node_repair_is_declared_by_default(rendered: Any):
    assert rules(rendered(cluster_layer())) == {}


def test_node_repair_is_requested_by_a_label_that_makes_oke_drain_and_reboot(repaired: Rendered):
    spec = rules(repaired)["llmd-oke-mi300x-reboot"].inputs["spec"]
    assert spec == {
        "actions": ["reboot"],
        "maxParallelism": 1,
        "nodeEvictionSettings": {"evictionGracePeriod": 5, "isForceActionAfterGraceDuration": True},
        "nodeSelector": {
            "matchTriggerLabel": {"oke.oraclecloud.com/node_operation": "reboot"},
            "matchCustomLabels": {"oke.oraclecloud.com/pool.name": "mi300x"},
        },
    }


def test_each_gpu_pool_has_repair_rules_for_reboot_and_boot_volume_replacement(repaired: Rendered):
    declared, pools = rules(repaired), ("mi300x", "other", "slow", "fast", "cycled")
    assert declared.keys() == {
        f"llmd-oke-{pool}-{what}" for pool in pools for what in ("reboot", "replace-boot-volume")
    }
    other = declared["llmd-oke-other-replace-boot-volume"].inputs["spec"]
    assert other["actions"] == ["replaceBootVolume"]
    assert other["nodeSelector"]["matchCustomLabels"] == {"oke.oraclecloud.com/pool.name": "other"}


@pytest.mark.parametrize(("pool", "minutes"), [("slow", 30), ("fast", 0), ("cycled", 60)])
def test_node_repair_drains_a_node_for_as_long_as_its_pool_does(repaired: Rendered, pool: str, minutes: int):
    for what in ("reboot", "replace-boot-volume"):
        spec = rules(repaired)[f"llmd-oke-{pool}-{what}"].inputs["spec"]
        assert spec["nodeEvictionSettings"]["evictionGracePeriod"] == minutes
    declared = repaired.resource("oci:ContainerEngine/nodePool:NodePool", f"{pool}-node-pool")
    assert declared.inputs["nodeEvictionNodePoolSettings"]["evictionGraceDuration"] == duration(minutes)


def test_a_changed_repair_rule_replaces_the_former_one(repaired: Rendered):
    """Neither can be changed (`self == oldSelf` of the definition)."""
    rule = rules(repaired)["llmd-oke-mi300x-reboot"]
    assert set(rule.replace_on_changes) == {"spec.nodeSelector", "spec.actions"}
    assert rule.delete_before_replace


def test_the_cluster_may_read_the_images_of_nodes_that_it_repairs(rendered: Any, repaired: Rendered):
    def granted(stack: Rendered) -> list[str]:
        policies = stack.of_type("oci:Identity/policy:Policy")
        texts = [text for policy in policies for text in policy.inputs["statements"]]
        return [text for text in texts if "to read instance-images" in text]

    assert granted(rendered(cluster_layer())) == []
    (text,) = granted(repaired)
    assert "request.principal.type = 'cluster', request.principal.id = " in text
