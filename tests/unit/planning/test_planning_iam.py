import pytest
from created_stacks import refusals, validated
from llmd_base.errors import KitError
from llmd_oke.catalogue.cluster import policies
from llmd_oke.planning.iam import Variables, groups_of, iam_needs, matching_rule, statements
from stack_files import COMPARTMENT, created_pool, model, ocid

KEY = ocid("key")

MAX_STATEMENTS = 50
"""OCI documentation, IAM limits: statements of one policy."""

VARIABLES = Variables(
    values={
        "compartment_id": "C",
        "tenancy_id": "T",
        "cluster_id": "K",
        "network_compartment_id": "N",
        "image_compartment_id": "I",
        "key_compartment_id": "V",
        "reservation_compartment_id": "R",
        "tag_namespaces": "tenancy",
    },
    groups={"nodes": "'Default'/'prod-nodes'", "clusters": "id G"},
    resource_ids={
        "cluster_key_id": ["KEY"],
        "boot_volume_key_id": ["KEY"],
        "managed_boot_volume_key_id": ["KEY"],
        "host_group_id": ["H1", "H2"],
        "tag_namespace": ["Operations"],
    },
)

AUTOSCALER = (
    "ALL {request.principal.type = 'workload', request.principal.namespace = 'kube-system', "
    "request.principal.service_account = 'cluster-autoscaler', request.principal.cluster_id = 'K'}"
)
CLUSTER = "ALL {request.principal.type = 'cluster', request.principal.id = 'K'}"

EXPECTED = {
    "defined-tags-of-cluster-networks": [
        "Allow service compute_management to use tag-namespaces in tenancy where target.tag-namespace.name = "
        "'Operations'",
    ],
    "self-managed-nodes": [
        "Allow dynamic-group 'Default'/'prod-nodes' to {CLUSTER_JOIN} in compartment id C "
        "where target.cluster.id = 'K'",
    ],
    "load-balancer-security-groups": [
        f"Allow any-user to manage network-security-groups in compartment id N where {CLUSTER}",
    ],
    "network-elsewhere": [
        "Allow any-user to manage instances in compartment id C where ALL {request.principal.id = 'K'}",
        "Allow any-user to use private-ips in compartment id N where ALL {request.principal.id = 'K'}",
        "Allow any-user to use network-security-groups in compartment id N where ALL {request.principal.id = 'K'}",
    ],
    "cluster-autoscaler-network-elsewhere": [
        f"Allow any-user to {right} in compartment id {place} where {AUTOSCALER}"
        for right, place in (("use subnets", "C"), ("use vnics", "C"), ("inspect compartments", "N"))
    ],
    "cluster-autoscaler-instance-pools": [
        f"Allow any-user to manage compute-management-family in compartment id C where {AUTOSCALER}",
    ],
    "oci-metrics": [
        f"Allow dynamic-group 'Default'/'prod-nodes' to {right}"
        for right in (
            "use metrics in compartment id C where target.metrics.namespace = 'gpu_infrastructure_health'",
            "use metrics in compartment id C where target.metrics.namespace = 'rdma_infrastructure_health'",
            "read metrics in compartment id C",
        )
    ],
}


def test_iam_permissions_that_no_golden_file_has_have_the_expected_policy_statements():
    granted = {need: statements([need], VARIABLES).values() for need in EXPECTED}
    assert {need: [text for texts in groups for text in texts] for need, groups in granted.items()} == EXPECTED


def test_all_iam_statements_of_a_compartment_fit_into_one_policy():
    result = statements(list(policies().needs), VARIABLES)
    assert set(result) == {"compartment", "network", "images", "keys", "reservations", "tags", "tenancy"}
    assert max(map(len, result.values())) <= MAX_STATEMENTS


def test_a_policy_statement_whose_variables_are_unknown_is_not_declared():
    with pytest.raises(KitError, match="self-managed-nodes needs a value for cluster_id"):
        statements(["self-managed-nodes"], Variables({"compartment_id": "C"}, {"nodes": "N"}, {}))
    with pytest.raises(KitError, match="host-groups needs a value for host_group_id"):
        statements(["host-groups"], Variables({"compartment_id": "C"}, {}, {}))


@pytest.mark.parametrize(
    ("needs", "groups"),
    [
        (["managed-compute-cluster", "custom-images", "file-storage"], []),
        (["self-managed-nodes"], ["nodes"]),
        (["cluster-encryption"], ["clusters"]),
        (["ocir", "cluster-encryption"], ["nodes", "clusters"]),
    ],
)
def test_only_dynamic_groups_that_policy_statements_name_are_created(needs, groups):
    assert groups_of(needs) == groups


def test_a_dynamic_group_contains_the_instances_or_clusters_of_a_compartment():
    assert matching_rule("nodes", "C") == "ALL {instance.compartment.id = 'C'}"
    tagged = "ALL {instance.compartment.id = 'C', tag.Operations.Cluster.value = 'prod'}"
    assert matching_rule("nodes", "C", ("Operations.Cluster", "prod")) == tagged
    assert matching_rule("clusters", "C", ("Operations.Cluster", "prod")) == matching_rule("clusters", "C")
    assert matching_rule("clusters", "C") == "ALL {resource.type = 'cluster', resource.compartment.id = 'C'}"


MANAGED = ("managed-compute-cluster", "custom-images")


def needs_of(*pools, stack_changes=None, **changes):
    config = validated(*pools, stack_changes=stack_changes, **changes)
    return iam_needs(config, config.cluster)


def test_the_default_gpu_pool_needs_iam_permissions_unless_others_grant_them():
    result = needs_of()
    assert (result.cluster, result.nodes) == (MANAGED, ())
    granted = needs_of(created_pool(launch="cluster-network"), kmsKeyId=KEY, iam={"create": False})
    assert (granted.cluster, granted.nodes) == ((), ())


def test_an_iam_statement_is_granted_before_the_cluster_unless_it_names_the_cluster():
    """OCI needs a while to act on a policy, so that all that can be granted is granted before the cluster is made."""
    knows_all_but = {name: value for name, value in VARIABLES.values.items() if name != "cluster_id"}
    without_cluster = Variables(knows_all_but, VARIABLES.groups, VARIABLES.resource_ids)
    for need, entry in policies().needs.items():
        try:
            statements([need], without_cluster)
            names_it = False
        except KitError:
            names_it = True
        assert entry.phase == ("nodes" if names_it else "cluster"), need


RESERVED = {"capacityReservationId": ocid("capacityreservation")}


@pytest.mark.parametrize(
    ("pool", "needs"),
    [
        ({"launch": "cluster-network"}, ("self-managed-nodes",)),
        ({"launch": "compute-cluster-instances"}, ("self-managed-nodes",)),
        ({"launch": "plain"}, ("custom-images",)),
        (RESERVED, (*MANAGED, "capacity-reservations")),
        ({"hostGroupId": ocid("computehostgroup")}, (*MANAGED, "host-groups")),
        (
            {"bootVolumeKmsKeyId": KEY},
            (*MANAGED, "boot-volume-encryption", "boot-volume-encryption-of-managed-pools"),
        ),
        (
            {"launch": "cluster-network", "bootVolumeKmsKeyId": KEY, **RESERVED},
            ("self-managed-nodes", "boot-volume-encryption"),
        ),
        ({"poolId": ocid("nodepool")}, ()),
    ],
)
def test_launch_mode_reservation_and_encryption_decide_a_pools_iam_permissions(pool, needs):
    result = needs_of(created_pool(**pool))
    assert {*result.cluster, *result.nodes} == set(needs)


def test_permissions_on_boot_volume_keys_are_limited_to_the_pools_keys():
    managed, own = ocid("key", "managed"), ocid("key", "own")
    pools = (
        created_pool(bootVolumeKmsKeyId=managed),
        created_pool(name="other", launch="cluster-network", bootVolumeKmsKeyId=own),
    )
    assert needs_of(*pools).resource_ids == {
        "boot_volume_key_id": (managed, own),
        "managed_boot_volume_key_id": (managed,),
    }


@pytest.mark.parametrize(
    ("kind", "needs"), [("none", set()), ("node-disk", set()), ("file-storage", set()), ("lustre", {"lustre"})]
)
def test_only_lustre_storage_needs_an_iam_permission_of_its_own(kind, needs):
    result = needs_of(stack_changes={"storage": {"modelCache": {"kind": kind}}})
    assert {*result.cluster, *result.nodes} == {*MANAGED} | needs


def test_an_encryption_key_for_kubernetes_secrets_needs_iam_before_the_cluster():
    result = needs_of(kmsKeyId=KEY)
    assert "cluster-encryption" in result.cluster
    assert result.resource_ids == {"cluster_key_id": (KEY,)}


ELSEWHERE = {"network": {"compartmentId": "ocid1.compartment.oc1..network"}}


def test_a_network_in_another_compartment_needs_permissions_there_and_of_autoscalers():
    scaled = created_pool(scaling={"mode": "cluster-autoscaler", "minSize": 1, "maxSize": 9})
    for pools, iam in (([scaled], {}), ([created_pool()], {"grants": ["cluster-autoscaler"]})):
        needed = needs_of(*pools, iam=iam, **ELSEWHERE).nodes
        assert {"network-elsewhere", "cluster-autoscaler-network-elsewhere"} <= set(needed)
    assert "network-elsewhere" not in needs_of(network={"compartmentId": COMPARTMENT}).nodes
    for needs in (needs_of(scaled), needs_of(**ELSEWHERE)):
        assert "cluster-autoscaler-network-elsewhere" not in needs.nodes


def test_iam_grants_add_the_policy_statements_of_the_named_permissions():
    assert needs_of(iam={"grants": ["ocir", "oci-metrics"]}).cluster[-2:] == ("ocir", "oci-metrics")
    assert needs_of(iam={"grants": ["file-storage"]}).nodes == ("file-storage",)


@pytest.mark.parametrize(
    ("iam", "keys"),
    [
        (
            {"style": "classic", "domain": "gpu", "domainUrl": "https://idcs-1.identity.oraclecloud.com"},
            {"domain", "domainUrl"},
        ),
        (
            {"create": False, "dynamicGroups": {"nodes": ocid("dynamicgroup")}, "grants": ["ocir"]},
            {"dynamicGroups.nodes", "grants"},
        ),
    ],
    ids=["an identity domain with classic IAM", "grants without IAM resources"],
)
def test_iam_settings_that_would_have_no_effect_are_refused(iam, keys):
    assert set(refusals(iam=iam)) == {f"cluster.iam.{key}" for key in keys}


@pytest.mark.parametrize(("exposure", "needed"), [("internal", True), ("cluster", False)])
def test_a_front_door_or_gateway_needs_security_groups_only_for_its_load_balancer(exposure: str, needed: bool):
    gateway = {"mode": "create", "provider": "istio", "exposure": exposure}
    behind = [model("2p-tp1-2d-tp1", router={"mode": "gateway"})]
    for changes in ({"frontDoor": {"exposure": exposure}}, {"gateway": gateway, "models": behind}):
        needs = needs_of(stack_changes=changes)
        assert ("load-balancer-security-groups" in {*needs.cluster, *needs.nodes}) is needed
