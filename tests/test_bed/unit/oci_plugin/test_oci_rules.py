from typing import Any

import pytest
from llmd_rehearsal.oci_plugin.facts import image_id
from llmd_rehearsal.plugin_values import InitFailed, OperationRefusal
from oci_region import COMPARTMENT, DOMAIN, FLEXIBLE, RDMA_SHAPE, Parts, Region, pool


def test_a_subnets_range_must_lie_in_that_of_its_vcn(region: Region):
    outside = r"400-InvalidParameter, .* not within the CIDRs of the VCN, 10.0.0.0/16"
    with pytest.raises(OperationRefusal, match=outside):
        region.subnet(region.vcn(), "10.1.0.0/24")


def test_subnets_of_a_vcn_must_not_overlap(region: Region):
    vcn = region.vcn()
    other = region.subnet(vcn, "10.0.0.0/20")
    with pytest.raises(OperationRefusal, match=f"subnet {other['id']} with CIDR 10.0.0.0/20 overlaps with this CIDR"):
        region.subnet(vcn, "10.0.1.0/24")


def test_a_changed_subnet_does_not_overlap_with_itself(region: Region):
    subnet = region.subnet(region.vcn(), "10.0.0.0/24")
    wider = region.update("Subnet", subnet, compartmentId=COMPARTMENT, vcnId=subnet["vcnId"], cidrBlock="10.0.0.0/23")
    assert (wider["cidrBlock"], wider["ipv4cidrBlocks"]) == ("10.0.0.0/23", ["10.0.0.0/23"])


def test_a_vcn_range_that_contains_a_subnet_cannot_be_removed(region: Region):
    vcn = region.vcn("10.0.0.0/16", "10.1.0.0/16")
    region.subnet(vcn, "10.1.0.0/24")
    with pytest.raises(OperationRefusal, match="409-Conflict"):
        region.update("Vcn", vcn, compartmentId=COMPARTMENT, cidrBlocks=["10.0.0.0/16"])


@pytest.mark.parametrize("cidr", ["10.0.0.0/8", "10.0.0.0/31", "10.0.0.1/16", "ten"])
def test_subnet_ranges_have_prefixes_from_16_to_30_bits(region: Region, cidr: str):
    with pytest.raises(OperationRefusal, match="400-InvalidParameter"):
        region.vcn(cidr)


def test_a_second_internet_gateway_of_one_vcn_is_refused(region: Region):
    where = {"compartmentId": COMPARTMENT, "vcnId": region.vcn()["id"]}
    region.create("InternetGateway", **where)
    with pytest.raises(OperationRefusal, match=r"400-LimitExceeded, .*internet-gateway-count"):
        region.create("InternetGateway", **where)


TCP = {"direction": "INGRESS", "protocol": "6", "source": "10.0.0.0/16"}


def test_a_security_rule_may_refer_only_to_a_security_group_of_its_own_vcn(region: Region):
    group, stranger = region.group(region.vcn()), region.group(region.vcn("10.9.0.0/16"))
    rule = {"networkSecurityGroupId": group["id"], "direction": "INGRESS", "protocol": "all"}
    peer = {"source": stranger["id"], "sourceType": "NETWORK_SECURITY_GROUP"}
    with pytest.raises(OperationRefusal, match="is not in VCN"):
        region.create("NetworkSecurityGroupSecurityRule", **rule, **peer)


def test_a_deleted_oci_resource_cannot_be_referred_to(region: Region):
    vcn = region.vcn()
    region.delete(vcn)
    with pytest.raises(OperationRefusal, match="404-NotAuthorizedOrNotFound"):
        region.subnet(vcn, "10.0.0.0/24")


def test_ocids_of_resources_that_the_oci_stand_in_did_not_create_are_accepted(region: Region):
    region.subnet({"id": "ocid1.vcn.oc1.iad.of-somebody"}, "10.0.0.0/24")


def test_a_vcn_that_contains_resources_cannot_be_deleted(region: Region):
    vcn = region.vcn()
    subnet = region.subnet(vcn, "10.0.0.0/24")
    gateway = region.create("NatGateway", compartmentId=COMPARTMENT, vcnId=vcn["id"])
    with pytest.raises(OperationRefusal, match="409-"):
        region.delete(vcn)
    region.delete(subnet)
    with pytest.raises(OperationRefusal, match=r"409-IncorrectState, .* is associated with Gateway that is in use"):
        region.delete(vcn)
    region.delete(gateway)
    region.delete(vcn)
    assert region.records.all_of("Vcn") == []


def test_a_gateway_that_a_route_rule_refers_to_cannot_be_deleted(region: Region):
    vcn = region.vcn()
    gateway = region.create("NatGateway", compartmentId=COMPARTMENT, vcnId=vcn["id"])
    rule = {"networkEntityId": gateway["id"], "destination": "0.0.0.0/0"}
    table = region.create("RouteTable", compartmentId=COMPARTMENT, vcnId=vcn["id"], routeRules=[rule])
    with pytest.raises(OperationRefusal, match=f"references the RouteTable {table['id']}"):
        region.delete(gateway)


def test_deleting_a_security_group_deletes_its_rules(region: Region):
    group = region.group(region.vcn())
    region.create("NetworkSecurityGroupSecurityRule", networkSecurityGroupId=group["id"], **TCP)
    region.delete(group)
    assert region.records.all_of("NetworkSecurityGroupSecurityRule") == []


OTHER_DOMAIN = "Uocm:US-ASHBURN-AD-2"
ROOT = "ocid1.tenancy.oc1..a"


def test_only_kubernetes_versions_that_oke_offers_are_accepted(region: Region):
    with pytest.raises(OperationRefusal, match=r"Invalid kubernetesVersion: v1.2.3, supported versions: .*v1.34.2"):
        region.cluster(region.vcn(), kubernetesVersion="v1.2.3")


@pytest.mark.parametrize("version", ["v1.36.1", "v1.33.1"])
def test_an_oke_cluster_cannot_skip_or_lower_a_minor_kubernetes_version(region: Region, version: str):
    vcn = region.vcn()
    cluster = region.cluster(vcn)
    with pytest.raises(OperationRefusal, match=f"Cannot change the Kubernetes version from v1.34.2 to {version}"):
        region.update("Cluster", cluster, compartmentId=COMPARTMENT, vcnId=vcn["id"], kubernetesVersion=version)


def test_a_clusters_service_range_and_its_vcn_range_must_not_overlap(region: Region):
    with pytest.raises(OperationRefusal, match=r"services CIDR 10.96.0.0/16 overlaps"):
        region.cluster(region.vcn("10.96.0.0/16"))


def test_a_private_subnet_cannot_have_a_public_endpoint(region: Region, parts: Parts):
    endpoint = {"subnetId": parts[1]["id"], "isPublicIpEnabled": True}
    with pytest.raises(OperationRefusal, match="private subnet"):
        region.cluster({"id": parts[1]["vcnId"]}, endpointConfig=endpoint)


def test_nodes_may_have_older_kubernetes_versions_than_the_cluster_but_no_newer(region: Region, parts: Parts):
    with pytest.raises(OperationRefusal, match=r"at most that of the cluster, v1.34.2"):
        region.create("NodePool", **pool(*parts, kubernetesVersion="v1.35.2"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodeShape": "BM.GPU.Dream.8"}, "Node shape BM.GPU.Dream.8 is not available"),
        ({"nodeMetadata": {"user_data": "x" * 33000}}, "32000 bytes together"),
    ],
)
def test_a_pools_unknown_shape_and_too_much_metadata_are_refused(region: Region, parts: Parts, change: Any, words: str):
    with pytest.raises(OperationRefusal, match=words):
        region.create("NodePool", **pool(*parts, **change))


def oke_image(version: str) -> dict[str, Any]:
    """The image that OKE has for a version of Kubernetes."""
    return {"imageId": image_id(f"Oracle-Linux-8.10-2026.06.30-0-OKE-{version}-1100", "IAD"), "sourceType": "IMAGE"}


def test_an_oke_image_fits_only_its_own_kubernetes_version(region: Region, parts: Parts):
    words = "409-Conflict, Kubernetes version does not match Kubernetes version of OKE worker node image"
    with pytest.raises(OperationRefusal, match=words):
        region.create("NodePool", **pool(*parts, nodeSourceDetails=oke_image("1.33.1"), **FLEXIBLE))
    inputs = pool(*parts, nodeSourceDetails=oke_image("1.34.2"), kubernetesVersion="v1.34.2", **FLEXIBLE)
    before = region.create("NodePool", **inputs)
    with pytest.raises(OperationRefusal, match=words):
        region.update("NodePool", before, **{**inputs, "kubernetesVersion": "v1.33.1"})


@pytest.mark.parametrize(
    ("written", "answered"), [("PT60M", "PT1H"), ("PT0M", "PT0S"), ("PT90M", "PT1H30M"), ("PT5M", "PT5M")]
)
def test_oci_returns_durations_in_the_largest_whole_units(region: Region, parts: Parts, written: str, answered: str):
    inputs = pool(*parts, nodeEvictionNodePoolSettings={"evictionGraceDuration": written})
    before = region.create("NodePool", **inputs)
    again = region.update("NodePool", before, **inputs)
    for state in (before, again):
        assert state["nodeEvictionNodePoolSettings"]["evictionGraceDuration"] == answered


def test_a_dynamic_group_read_from_an_identity_domain_has_schemas_and_no_tags(region: Region):
    tags = [{"key": "llmd-oke/stack", "value": "test"}]
    domain = {"idcsEndpoint": "https://idcs-0.identity.oraclecloud.com", "displayName": "nodes"}
    schemas = ["urn:ietf:params:scim:schemas:oracle:idcs:DynamicResourceGroup"]
    rule = {"matchingRule": "ALL {instance.compartment.id = 'c'}"}
    before = region.create("DomainsDynamicResourceGroup", **domain, **rule, schemas=schemas, tags=tags)
    assert [schema.rpartition(":")[2] for schema in before["schemas"]] == ["DynamicResourceGroup", "OCITags"]
    result = region.operations.read(before["id"], {})
    assert result is not None
    assert (before["tags"], result[0]["tags"]) == (tags, [])


def test_nodes_of_a_compute_cluster_must_be_in_its_availability_domain(region: Region, parts: Parts):
    compute = region.compute_cluster(OTHER_DOMAIN)
    with pytest.raises(OperationRefusal, match=f"is in availability domain {OTHER_DOMAIN}"):
        region.create("NodePool", **pool(*parts, details={"computeClusterId": compute["id"]}))
    places = [{"availabilityDomain": domain, "subnetId": parts[1]["id"]} for domain in (DOMAIN, OTHER_DOMAIN)]
    details = {"computeClusterId": compute["id"], "placementConfigs": places}
    with pytest.raises(OperationRefusal, match="one availability domain only"):
        region.create("NodePool", **pool(*parts, details=details))


def test_a_compute_cluster_accepts_only_shapes_with_rdma(region: Region, parts: Parts):
    details = {"computeClusterId": region.compute_cluster()["id"]}
    with pytest.raises(OperationRefusal, match="not supported in a compute cluster"):
        region.create("NodePool", **pool(*parts, details=details, **FLEXIBLE))


def test_an_availability_domain_must_belong_to_the_region(region: Region):
    with pytest.raises(OperationRefusal, match="Invalid availabilityDomain Uocm:PHX-AD-1"):
        region.compute_cluster("Uocm:PHX-AD-1")
    region.compute_cluster("AbCd:US-ASHBURN-AD-3")


def test_only_known_oke_add_ons_are_accepted_and_only_once_for_each_cluster(region: Region, parts: Parts):
    region.add_on(parts[0], "CertManager")
    with pytest.raises(OperationRefusal, match="is installed already"):
        region.add_on(parts[0], "CertManager")
    with pytest.raises(OperationRefusal, match="404-NotAuthorizedOrNotFound, Addon Nonsense is not available"):
        region.add_on(parts[0], "Nonsense")


@pytest.mark.parametrize("name", ["NvidiaNetworkOperator", "AmdGpuOperator"])
def test_an_add_on_whose_dependency_is_not_active_fails_and_is_removed(region: Region, parts: Parts, name: str):
    with pytest.raises(InitFailed, match="Dependency check failed: NodeFeatureDiscovery"):
        region.add_on(parts[0], name)
    assert region.records.all_of("Addon") == []
    region.add_on(parts[0], "NodeFeatureDiscovery")
    assert region.add_on(parts[0], name)["state"] == "ACTIVE"


def test_an_oke_add_on_can_skip_the_check_of_its_dependency(region: Region, parts: Parts):
    skip = {"key": "skipNodeFeatureDiscoveryDependencyCheck", "value": "true"}
    assert region.add_on(parts[0], "AmdGpuOperator", configurations=[skip])["state"] == "ACTIVE"


def test_a_basic_cluster_accepts_no_add_ons(region: Region):
    cluster = region.cluster(region.vcn(), type="BASIC_CLUSTER")
    with pytest.raises(OperationRefusal, match="enhanced clusters only"):
        region.add_on(cluster, "CertManager")


def test_a_subnet_or_security_group_that_a_node_pool_uses_cannot_be_deleted(region: Region, parts: Parts):
    group = region.group({"id": parts[1]["vcnId"]})
    before = region.create("NodePool", **pool(*parts, details={"nsgIds": [group["id"]]}))
    with pytest.raises(OperationRefusal, match=r"references the VNIC .* You must remove the reference to proceed"):
        region.delete(parts[1])
    with pytest.raises(OperationRefusal, match="cannot be deleted since it still has vnics attached to it"):
        region.delete(group)
    region.delete(before)
    region.delete(group)
    region.delete(parts[1])


def test_a_cluster_network_accepts_only_shapes_with_rdma(region: Region):
    with pytest.raises(OperationRefusal, match="not supported in a cluster network"):
        region.cluster_network(shape="VM.Standard.E5.Flex", shapeConfig={"ocpus": 2.0})


@pytest.mark.parametrize("key", ["user_data", "ssh_authorized_keys"])
def test_an_instances_boot_source_cannot_be_changed(region: Region, key: str):
    metadata = {"user_data": "Zm9v", "ssh_authorized_keys": "ssh-ed25519 A", "oke-max-pods": "31"}
    inputs = {"compartmentId": COMPARTMENT, "availabilityDomain": DOMAIN, "shape": RDMA_SHAPE, "displayName": "gpu-0"}
    before = region.create("Instance", **inputs, metadata=metadata)
    region.update("Instance", before, **inputs, metadata={**metadata, "oke-max-pods": "40"})
    with pytest.raises(OperationRefusal, match=f"The metadata {key} can't be changed"):
        region.update("Instance", before, **inputs, metadata={**metadata, key: "YmFy"})


def policy(region: Region, statement: str):
    region.create("Policy", compartmentId=COMPARTMENT, name="p", description="d", statements=[statement])


@pytest.mark.parametrize(
    "statement",
    [
        "Allow dynamic-group id ocid1.x.oc1..a to {CLUSTER_JOIN} in compartment id x where target.cluster.id='y'",
        "Allow dynamic-group 'Default'/'nodes' to read repos in tenancy",
        "allow any-user to {A_B, C_D} in compartment name where ALL {request.principal.type='nodepool'}",
        "Allow service lustrefs to use virtual-network-family in tenancy",
    ],
)
def test_a_valid_iam_policy_is_accepted_but_not_a_second_one_of_the_same_name(region: Region, statement: str):
    policy(region, statement)
    with pytest.raises(OperationRefusal, match="409-PolicyAlreadyExists"):
        policy(region, statement)


@pytest.mark.parametrize(
    "statement", ["Permit nobody", "Allow group g to look repos in tenancy", "Allow dynamic-group d to manage x"]
)
def test_invalid_iam_policy_statements_are_refused(region: Region, statement: str):
    with pytest.raises(OperationRefusal, match="Failed to parse the policy statement"):
        policy(region, statement)


def test_dynamic_groups_must_be_in_the_tenancys_root(region: Region):
    group = {"description": "d", "matchingRule": "ANY {instance.compartment.id = 'x'}"}
    region.create("DynamicGroup", compartmentId=ROOT, name="g", **group)
    with pytest.raises(OperationRefusal, match="root compartment"):
        region.create("DynamicGroup", compartmentId=COMPARTMENT, name="h", **group)
    with pytest.raises(OperationRefusal, match="matching rule"):
        region.create("DynamicGroup", compartmentId=ROOT, name="h", **group | {"matchingRule": "x"})


BUDGET = {"amount": 1, "resetPeriod": "MONTHLY", "targetType": "COMPARTMENT", "displayName": "b"}


def test_a_compartment_has_one_budget_in_the_tenancys_root(region: Region):
    with pytest.raises(OperationRefusal, match="root compartment"):
        region.create("Budget", compartmentId=COMPARTMENT, targets=[COMPARTMENT], **BUDGET)
    with pytest.raises(OperationRefusal, match="Invalid name"):
        region.create("Budget", compartmentId=ROOT, targets=[COMPARTMENT], **BUDGET | {"displayName": "9 b"})
    region.create("Budget", compartmentId=ROOT, targets=[COMPARTMENT], **BUDGET)
    with pytest.raises(OperationRefusal, match="has a budget already"):
        region.create("Budget", compartmentId=ROOT, targets=[COMPARTMENT], **BUDGET)
    region.create("Budget", compartmentId=ROOT, targets=[ROOT], **BUDGET)


@pytest.mark.parametrize("other", [{"threshold": 10_000.5}, {"threshold": 99.555}, {"message": "m" * 1001}])
def test_budget_alert_rules_beyond_ocis_limits_are_refused(region: Region, other: dict[str, Any]):
    budget = region.create("Budget", compartmentId=ROOT, targets=[COMPARTMENT], **BUDGET)
    rule = {"budgetId": budget["id"], "type": "ACTUAL", "threshold": 99.5, "thresholdType": "PERCENTAGE"}
    region.create("Rule", **rule)
    with pytest.raises(OperationRefusal, match=r"Invalid threshold|longer than"):
        region.create("Rule", **rule | other)


def test_a_file_system_with_exports_cannot_be_deleted(region: Region):
    where = {"compartmentId": COMPARTMENT, "availabilityDomain": DOMAIN}
    subnet = region.subnet(region.vcn(), "10.0.0.0/24")
    system, target = region.create("FileSystem", **where), region.create("MountTarget", **where, subnetId=subnet["id"])
    export = {"fileSystemId": system["id"], "exportSetId": target["exportSetId"], "path": "/models"}
    state = region.create("Export", **export)
    with pytest.raises(OperationRefusal, match="Another export with path /models"):
        region.create("Export", **export)
    with pytest.raises(OperationRefusal, match="409-Conflict"):
        region.delete(system)
    region.delete(state)
    region.delete(system)
    assert target["ipAddress"] == "10.0.0.10"
