from typing import Any

import pytest
from created_cluster import cluster_layer, created
from llmd_oke.cluster.pools import duration
from llmd_oke.testing import Declared, Rendered
from stack_files import created_pool

ON_REQUEST = {"nodeRepair": "on-request"}
KIND = "kubernetes:oci.oraclecloud.com/v1beta1:NodeOperationRule"


def rules(stack: Rendered) -> dict[str, Declared]:
    return {item.inputs["metadata"]["name"]: item for item in stack.of_type(KIND)}


def test_no_node_repair_is_declared_by_default(rendered: Any):
    assert rules(rendered(created())) == {}


def test_node_repair_is_requested_by_a_label_that_makes_oke_drain_and_reboot(rendered: Any):
    spec = rules(rendered(created(cluster=ON_REQUEST)))["llmd-oke-mi300x-reboot"].inputs["spec"]
    assert spec == {
        "actions": ["reboot"],
        "maxParallelism": 1,
        "nodeEvictionSettings": {"evictionGracePeriod": 5, "isForceActionAfterGraceDuration": True},
        "nodeSelector": {
            "matchTriggerLabel": {"oke.oraclecloud.com/node_operation": "reboot"},
            "matchCustomLabels": {"oke.oraclecloud.com/pool.name": "mi300x"},
        },
    }


def test_each_gpu_pool_has_repair_rules_for_reboot_and_boot_volume_replacement(rendered: Any):
    pools = [created_pool(), created_pool(name="other", launch="compute-cluster-instances")]
    declared = rules(rendered({**created(cluster=ON_REQUEST), "gpuPools": pools}))
    expected = {f"llmd-oke-{pool}-{what}" for pool in ("mi300x", "other") for what in ("reboot", "replace-boot-volume")}
    assert declared.keys() == expected
    other = declared["llmd-oke-other-replace-boot-volume"].inputs["spec"]
    assert other["actions"] == ["replaceBootVolume"]
    assert other["nodeSelector"]["matchCustomLabels"] == {"oke.oraclecloud.com/pool.name": "other"}


@pytest.mark.parametrize(
    ("pool", "minutes"),
    [
        ({"evictionGraceMinutes": 30}, 30),
        ({"evictionGraceMinutes": 0}, 0),
        ({"cycling": {"mode": "replace-boot-volume"}}, 60),
    ],
)
def test_node_repair_drains_a_node_for_as_long_as_its_pool_does(rendered: Any, pool: dict[str, Any], minutes: int):
    stack = rendered(created(cluster=ON_REQUEST, pool=pool))
    for rule in rules(stack).values():
        assert rule.inputs["spec"]["nodeEvictionSettings"]["evictionGracePeriod"] == minutes
    declared = stack.resource("oci:ContainerEngine/nodePool:NodePool", "mi300x-node-pool")
    assert declared.inputs["nodeEvictionNodePoolSettings"]["evictionGraceDuration"] == duration(minutes)


def test_a_changed_repair_rule_replaces_the_former_one(rendered: Any):
    """Neither can be changed (`self == oldSelf` of the definition)."""
    rule = rules(rendered(created(cluster=ON_REQUEST)))["llmd-oke-mi300x-reboot"]
    assert set(rule.replace_on_changes) == {"spec.nodeSelector", "spec.actions"}
    assert rule.delete_before_replace


def test_the_cluster_may_read_the_images_of_nodes_that_it_repairs(rendered: Any):
    def granted(**cluster: object) -> list[str]:
        policies = rendered(cluster_layer(cluster=cluster)).of_type("oci:Identity/policy:Policy")
        texts = [text for policy in policies for text in policy.inputs["statements"]]
        return [text for text in texts if "to read instance-images" in text]

    assert granted() == []
    (text,) = granted(**ON_REQUEST)
    assert "request.principal.type = 'cluster', request.principal.id = " in text
