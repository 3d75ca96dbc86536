"""Previews that would take a cluster or a pool away, and those that don't."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.operations.guards import (
    GPU,
    SERVERS,
    cycles,
    displacement,
    losses,
    refuse_failing_cycles,
    refuse_losses,
    refuse_skipped_versions,
    value_at,
)
from llmd_oke.operations.previews import UNKNOWN, Preview, of_document, parse
from previews_for_tests import document, recorded, replaced_pool, step

CLUSTER = "oci:ContainerEngine/cluster:Cluster"


def test_an_update_that_replaces_a_pool_or_deletes_a_cluster_is_refused_with_causes():
    changes = (replaced_pool(), step("delete", CLUSTER, "prod"))
    for change in changes:
        with pytest.raises(KitError):
            refuse_losses(parse(document(change)))
    with pytest.raises(KitError) as refused:
        refuse_losses(parse(document(*changes)))
    cause = "nodeConfigDetails.computeClusterId changes from 'ocid1.old' to 'ocid1.new'"
    assert f"replace node pool prod-mi300x, because {cause}" in refused.value.message
    assert "delete cluster prod, because the stack file no longer has it" in refused.value.message
    assert "size" not in refused.value.message
    assert "--allow-replace" in (refused.value.remedy or "")


def test_one_replacement_and_one_deleted_protected_resource_each_count_as_one_loss():
    parts = [{**replaced_pool(), "op": op} for op in ("delete-replaced", "replace", "create-replacement")]
    assert len(losses(parse(document(*parts)))) == 1
    protected = step("delete", "kubernetes:core/v1:Namespace", "n", oldState={"protect": True, "inputs": {}})
    assert len(losses(parse(document(protected)))) == 1


def test_an_update_that_keeps_pools_and_cluster_or_is_allowed_by_option_is_permitted():
    refuse_losses(parse(document({**replaced_pool(), "op": "update"})))
    refuse_losses(recorded("replace"))
    refuse_losses(parse(document(replaced_pool())), allowed=True)


POOL = "oci:ContainerEngine/nodePool:NodePool"


@pytest.mark.parametrize(
    ("type_", "after", "refused"),
    [
        *((CLUSTER, after, True) for after in ("v1.36.1", "v1.33.10", "v1.34.1")),
        *((CLUSTER, after, False) for after in ("v1.34.2", "v1.34.10", "v1.35.2")),
        (POOL, "v1.36.2", False),
    ],
)
def test_a_control_plane_may_be_upgraded_by_one_minor_version_and_pools_by_more(type_: str, after: str, refused: bool):
    versions = {"oldState": "v1.34.2", "newState": after}
    states = {state: {"inputs": {"kubernetesVersion": version}} for state, version in versions.items()}
    with pytest.raises(KitError, match=f"oke-cluster from v1.34.2 to {after}") if refused else nullcontext():
        refuse_skipped_versions(parse(document(step("update", type_, "oke-cluster", **states))))


NODES: dict[str, Any] = {
    "name": "mi300x",
    "kubernetesVersion": "v1.34.2",
    "nodeMetadata": {"user_data": "IyE=", "apiserver_host": "10.0.0.5"},
    "nodeSourceDetails": {"imageId": "a", "bootVolumeSizeInGbs": "512"},
    "nodeConfigDetails": {"size": 9, "nsgIds": ["a"], "placementConfigs": [{"subnetId": "a"}]},
}


def cycled(mode: str, *, enabled: bool = True, **changes: Any) -> Preview:
    """The preview of an update of a pool with cycling; keys with two underscores are those of inner objects."""
    after = json.loads(json.dumps(NODES))
    for key, value in changes.items():
        outer, _, inner = key.partition("__")
        after[outer] = {**after[outer], inner: value} if inner else value
    after["nodePoolCyclingDetails"] = {"isNodeCyclingEnabled": enabled, "cycleModes": [mode], "__defaults": []}
    states: Any = {"oldState": {"inputs": NODES}, "newState": {"inputs": after}}
    return parse(document(step("update", POOL, "gpu-node-pool", **states)))


BY_BOOT_VOLUME: list[dict[str, Any]] = [
    {"kubernetesVersion": "v1.35.0"},
    {"nodeMetadata__user_data": "IyEv"},
    {"nodeSourceDetails__imageId": "b"},
    {"nodeSourceDetails__bootVolumeSizeInGbs": "600"},
    {"nodeConfigDetails__kmsKeyId": "key"},
    {"sshPublicKey": "ssh-ed25519 A"},
]
BY_NODE: list[dict[str, Any]] = [
    {"initialNodeLabels": [{"key": "a", "value": "b"}]},
    {"nodeShapeConfig": {"ocpus": 8}},
    {"nodeConfigDetails__nsgIds": ["b"]},
    {"nodeConfigDetails__isPvEncryptionInTransitEnabled": True},
    {"nodeConfigDetails__nodePoolPodNetworkOptionDetails": {"maxPodsPerNode": 31}},
]


@pytest.mark.parametrize("changes", BY_BOOT_VOLUME)
def test_an_update_names_the_pools_whose_nodes_oke_will_cycle_and_why(changes: dict[str, Any]):
    ((key, _),) = changes.items()
    for mode, how in (("BOOT_VOLUME_REPLACE", "new boot volumes"), ("INSTANCE_REPLACE", "replaced by others")):
        (cycle,) = cycles(cycled(mode, **changes))
        assert how in str(cycle)
        assert str(cycle).endswith(f"because of {key.replace('__', '.')}")
        assert "gpu-node-pool: each of its 9 nodes" in str(cycle)
        refuse_failing_cycles(cycled(mode, **changes))


@pytest.mark.parametrize("changes", BY_NODE)
def test_pool_changes_that_boot_volume_replacement_cannot_apply_are_refused(changes: dict[str, Any]):
    ((key, _),) = changes.items()
    with pytest.raises(KitError, match=f"gpu-node-pool: {key.replace('__', '.')}\n?") as refused:
        refuse_failing_cycles(cycled("BOOT_VOLUME_REPLACE", kubernetesVersion="v1.35.0", **changes))
    assert "kubernetesVersion" not in refused.value.message
    refuse_failing_cycles(cycled("INSTANCE_REPLACE", **changes))


@pytest.mark.parametrize("mode", ["BOOT_VOLUME_REPLACE", "INSTANCE_REPLACE"])
def test_a_changed_placement_of_nodes_that_are_cycled_is_refused(mode: str):
    moved = {"nodeConfigDetails__placementConfigs": [{"subnetId": "a", "capacityReservationId": "b"}]}
    with pytest.raises(KitError, match=r"gpu-node-pool: nodeConfigDetails\.placementConfigs"):
        refuse_failing_cycles(cycled(mode, **moved))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"name": "other"},
        {"nodeConfigDetails__size": 8},
        {"nodeConfigDetails__freeformTags": {"team": "a"}},
        {"nodeMetadata__apiserver_host": UNKNOWN},
        {"kubernetesVersion": "v1.35.0", "initialNodeLabels": [], "enabled": False},
    ],
)
def test_changes_of_a_pools_name_size_or_tags_or_without_cycling_cycle_no_nodes(changes: dict[str, Any]):
    assert list(cycles(cycled("BOOT_VOLUME_REPLACE", **changes))) == []


def test_a_preview_that_pulumis_engine_or_an_older_one_wrote_is_parsed():
    preview = recorded("replace")
    (change,) = preview.effective
    assert change.short_name == "Deployment m-aggregated"
    assert change.replaced_by == ('metadata.labels["llmd-oke/tensor-parallel-size"]',)
    assert preview.counts == {"same": 4, "replace": 1}
    old = {"op": "replace", "urn": replaced_pool()["urn"], "replaceReasons": ["nodeShape"], "diffReasons": ["size"]}
    (change,) = of_document({"steps": [old]}).changes
    assert (change.replaced_by, change.changed) == (("nodeShape",), ("size",))


@pytest.mark.parametrize("text", ["", "error: no stack named 'x'", "[]", '{"steps": [{}]}'])
def test_output_that_is_no_pulumi_preview_is_refused(text: str):
    with pytest.raises(KitError, match="no preview"):
        parse(text)


def test_values_in_a_pulumi_preview_are_found_by_property_path():
    inputs = json.loads('{"a": [{"b": {"x/y.z": 1}}]}')
    assert value_at(inputs, 'a[0].b["x/y.z"]') == 1
    assert value_at(inputs, "a[7].b") is None


SWITCH = recorded("switch")
"""16 aggregated servers with one GPU become 8 prefill servers with one and 4 decode servers with two."""


def test_servers_to_delete_first_are_listed_in_a_fixed_order():
    def deployment(operation: str, name: str) -> dict[str, Any]:
        state = {"inputs": {"spec": {"template": {"spec": {"containers": [{"resources": {"limits": {GPU: "1"}}}]}}}}}
        return step(operation, SERVERS[0], name, **{"newState" if operation == "create" else "oldState": state})

    steps = [deployment("delete", "m-b"), deployment("create", "m-c"), deployment("delete", "m-a")]
    for order in (steps, steps[::-1]):
        servers = displacement(parse(document(*order)), gpus=2)
        assert servers is not None
        assert [change.name for change in servers.first] == ["m-a", "m-b"]


def test_servers_of_the_old_version_are_deleted_first_only_with_too_few_free_gpus():
    servers = displacement(SWITCH, gpus=16)
    assert servers is not None
    assert [change.name for change in servers.first] == ["m-aggregated"]
    assert (servers.wanted_gpus, servers.free_gpus) == (16, 0)
    assert "m-aggregated must go before they come" in str(servers)
    assert displacement(SWITCH, gpus=24) is not None
    assert displacement(SWITCH, gpus=32) is None
    assert displacement(recorded("replace"), gpus=16) is None
