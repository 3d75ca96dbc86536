"""What OCI refuses of clusters and pools."""

from typing import Any

import pytest
from llmd_oke.rehearsal.oci_plugin.region import image_id
from llmd_oke.rehearsal.plugin_protocol.errors import InitFailed, Refusal
from oci_region import DOMAIN, PLACE, RDMA_SHAPE, Region, pool

OTHER_DOMAIN = "Uocm:US-ASHBURN-AD-2"


@pytest.fixture
def region() -> Region:
    return Region()


@pytest.fixture
def parts(region: Region) -> tuple[dict[str, Any], dict[str, Any]]:
    """A cluster and a subnet of its network."""
    vcn = region.vcn()
    return region.cluster(vcn), region.subnet(vcn, "10.0.0.0/19", prohibitPublicIpOnVnic=True)


def test_versions_are_those_that_there_are(region: Region):
    with pytest.raises(Refusal, match=r"Invalid kubernetesVersion: v1.2.3, supported versions: .*v1.34.2"):
        region.cluster(region.vcn(), kubernetesVersion="v1.2.3")


@pytest.mark.parametrize("version", ["v1.36.1", "v1.33.1"])
def test_a_cluster_goes_up_one_minor_version_at_a_time(region: Region, version: str):
    vcn = region.vcn()
    cluster = region.cluster(vcn)
    with pytest.raises(Refusal, match=f"Cannot change the Kubernetes version from v1.34.2 to {version}"):
        region.update("Cluster", cluster, compartmentId=PLACE, vcnId=vcn["id"], kubernetesVersion=version)


def test_services_must_not_overlap_with_the_network(region: Region):
    with pytest.raises(Refusal, match=r"services CIDR 10.96.0.0/16 overlaps"):
        region.cluster(region.vcn("10.96.0.0/16"))


def test_a_private_subnet_has_no_public_endpoint(region: Region, parts: tuple[dict[str, Any], dict[str, Any]]):
    _, subnet = parts
    endpoint = {"subnetId": subnet["id"], "isPublicIpEnabled": True}
    with pytest.raises(Refusal, match="private subnet"):
        region.cluster({"id": subnet["vcnId"]}, endpointConfig=endpoint)


def test_nodes_may_lag_behind_the_cluster_but_not_lead(region: Region, parts: tuple[dict[str, Any], dict[str, Any]]):
    with pytest.raises(Refusal, match=r"at most that of the cluster, v1.34.2"):
        region.create("NodePool", **pool(*parts, kubernetesVersion="v1.35.2"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodeShape": "BM.GPU.Dream.8"}, "Node shape BM.GPU.Dream.8 is not available"),
        ({"nodeShape": "VM.Standard.E5.Flex"}, "ocpus must be given"),
        ({"nodeShape": "VM.Standard.E5.Flex", "nodeShapeConfig": {"ocpus": 900.0}}, "to 94 OCPUs"),
        ({"nodeMetadata": {"user_data": "x" * 33000}}, "32000 bytes together"),
    ],
)
def test_machines_must_be_such_as_there_are(
    region: Region, parts: tuple[dict[str, Any], dict[str, Any]], change: dict[str, Any], words: str
):
    with pytest.raises(Refusal, match=words):
        region.create("NodePool", **pool(*parts, **change))


def test_an_image_must_have_the_drivers_of_the_shape(region: Region, parts: tuple[dict[str, Any], dict[str, Any]]):
    source = {"sourceType": "objectStorageUri", "sourceUri": "https://example.com/AMD-ROCM-724.oci"}
    image = region.create("Image", compartmentId=PLACE, imageSourceDetails=source)
    details = {"imageId": image["id"], "sourceType": "IMAGE"}
    region.create("NodePool", **pool(*parts, nodeSourceDetails=details))
    small: dict[str, Any] = {"nodeShape": "VM.Standard.E5.Flex", "nodeShapeConfig": {"ocpus": 4.0}, "name": "system"}
    with pytest.raises(Refusal, match=r"is not compatible with shape VM.Standard.E5.Flex"):
        region.create("NodePool", **pool(*parts, nodeSourceDetails=details, **small))


SYSTEM: dict[str, Any] = {"nodeShape": "VM.Standard.E5.Flex", "nodeShapeConfig": {"ocpus": 4.0}, "name": "system"}


def oke_image(version: str) -> dict[str, Any]:
    """The image that OKE has for a version of Kubernetes."""
    return {"imageId": image_id(f"Oracle-Linux-8.10-2026.06.30-0-OKE-{version}-1100", "IAD"), "sourceType": "IMAGE"}


def test_an_image_of_oke_is_for_its_own_version_only(region: Region, parts: tuple[dict[str, Any], dict[str, Any]]):
    words = "409-Conflict, Kubernetes version does not match Kubernetes version of OKE worker node image"
    with pytest.raises(Refusal, match=words):
        region.create("NodePool", **pool(*parts, nodeSourceDetails=oke_image("1.33.1"), **SYSTEM))
    inputs = pool(*parts, nodeSourceDetails=oke_image("1.34.2"), kubernetesVersion="v1.34.2", **SYSTEM)
    made = region.create("NodePool", **inputs)
    with pytest.raises(Refusal, match=words):
        region.update("NodePool", made, **{**inputs, "kubernetesVersion": "v1.33.1"})


@pytest.mark.parametrize(
    ("told", "answered"), [("PT60M", "PT1H"), ("PT0M", "PT0S"), ("PT90M", "PT1H30M"), ("PT5M", "PT5M")]
)
def test_times_are_answered_in_the_largest_units(
    region: Region, parts: tuple[dict[str, Any], dict[str, Any]], told: str, answered: str
):
    inputs = pool(*parts, nodeEvictionNodePoolSettings={"evictionGraceDuration": told})
    made = region.create("NodePool", **inputs)
    again = region.update("NodePool", made, **inputs)
    for state in (made, again):
        assert state["nodeEvictionNodePoolSettings"]["evictionGraceDuration"] == answered


def test_an_identity_domain_adds_a_schema_and_tells_no_tags(region: Region):
    tags = [{"key": "llmd-oke/stack", "value": "test"}]
    made = region.create(
        "DomainsDynamicResourceGroup",
        idcsEndpoint="https://idcs-0.identity.oraclecloud.com",
        displayName="nodes",
        matchingRule="ALL {instance.compartment.id = 'c'}",
        schemas=["urn:ietf:params:scim:schemas:oracle:idcs:DynamicResourceGroup"],
        tags=tags,
    )
    assert [schema.rpartition(":")[2] for schema in made["schemas"]] == ["DynamicResourceGroup", "OCITags"]
    told = region.operations.read(made["id"], {})
    assert told is not None
    assert (made["tags"], told[0]["tags"]) == (tags, [])


def test_a_compute_cluster_has_one_availability_domain(region: Region, parts: tuple[dict[str, Any], dict[str, Any]]):
    compute = region.create("ComputeCluster", compartmentId=PLACE, availabilityDomain=OTHER_DOMAIN)
    with pytest.raises(Refusal, match=f"is in availability domain {OTHER_DOMAIN}"):
        region.create("NodePool", **pool(*parts, details={"computeClusterId": compute["id"]}))
    places = [{"availabilityDomain": domain, "subnetId": parts[1]["id"]} for domain in (DOMAIN, OTHER_DOMAIN)]
    details = {"computeClusterId": compute["id"], "placementConfigs": places}
    with pytest.raises(Refusal, match="one availability domain only"):
        region.create("NodePool", **pool(*parts, details=details))


def test_only_machines_with_rdma_are_in_compute_clusters(region: Region, parts: tuple[dict[str, Any], dict[str, Any]]):
    compute = region.create("ComputeCluster", compartmentId=PLACE, availabilityDomain=DOMAIN)
    small: dict[str, Any] = {"nodeShape": "VM.Standard.E5.Flex", "nodeShapeConfig": {"ocpus": 4.0}}
    with pytest.raises(Refusal, match="not supported in a compute cluster"):
        region.create("NodePool", **pool(*parts, details={"computeClusterId": compute["id"]}, **small))


def test_an_availability_domain_must_be_the_regions(region: Region):
    with pytest.raises(Refusal, match="Invalid availabilityDomain Uocm:PHX-AD-1"):
        region.create("ComputeCluster", compartmentId=PLACE, availabilityDomain="Uocm:PHX-AD-1")
    region.create("ComputeCluster", compartmentId=PLACE, availabilityDomain="AbCd:US-ASHBURN-AD-3")


def test_pods_have_the_network_of_the_cluster(region: Region, parts: tuple[dict[str, Any], dict[str, Any]]):
    options = {"cniType": "FLANNEL_OVERLAY"}
    with pytest.raises(Refusal, match="cniType FLANNEL_OVERLAY is not the cluster's, OCI_VCN_IP_NATIVE"):
        region.create("NodePool", **pool(*parts, details={"nodePoolPodNetworkOptionDetails": options}))


def test_more_gpus_than_the_service_limit_are_refused(region: Region, parts: tuple[dict[str, Any], dict[str, Any]]):
    region.create("NodePool", **pool(*parts, size=295))
    with pytest.raises(Refusal, match=r"400-LimitExceeded, .* gpu-mi300x-count\. Request a service limit increase"):
        region.create("NodePool", **pool(*parts, size=6, name="more"))


def test_add_ons_are_those_of_the_catalogue_each_once(region: Region, parts: tuple[dict[str, Any], dict[str, Any]]):
    inputs = {"clusterId": parts[0]["id"], "removeAddonResourcesOnDelete": True}
    region.create("Addon", addonName="CertManager", **inputs)
    with pytest.raises(Refusal, match="is installed already"):
        region.create("Addon", addonName="CertManager", **inputs)
    with pytest.raises(Refusal, match="404-NotAuthorizedOrNotFound, Addon Nonsense is not available"):
        region.create("Addon", addonName="Nonsense", **inputs)


@pytest.mark.parametrize("name", ["NvidiaNetworkOperator", "AmdGpuOperator"])
def test_an_add_on_fails_and_is_gone_where_the_one_that_it_needs_is_not_active(
    region: Region, parts: tuple[dict[str, Any], dict[str, Any]], name: str
):
    inputs = {"clusterId": parts[0]["id"], "removeAddonResourcesOnDelete": True}
    with pytest.raises(InitFailed, match="Dependency check failed: NodeFeatureDiscovery"):
        region.create("Addon", addonName=name, **inputs)
    assert region.records.all_of("Addon") == []
    region.create("Addon", addonName="NodeFeatureDiscovery", **inputs)
    assert region.create("Addon", addonName=name, **inputs)["state"] == "ACTIVE"


def test_an_add_on_may_be_told_not_to_look_for_the_one_that_it_needs(
    region: Region, parts: tuple[dict[str, Any], dict[str, Any]]
):
    skip = {"key": "skipNodeFeatureDiscoveryDependencyCheck", "value": "true"}
    inputs = {"clusterId": parts[0]["id"], "removeAddonResourcesOnDelete": True, "configurations": [skip]}
    assert region.create("Addon", addonName="AmdGpuOperator", **inputs)["state"] == "ACTIVE"


def test_basic_clusters_have_no_add_ons(region: Region):
    cluster = region.cluster(region.vcn(), type="BASIC_CLUSTER")
    with pytest.raises(Refusal, match="enhanced clusters only"):
        region.create("Addon", addonName="CertManager", clusterId=cluster["id"], removeAddonResourcesOnDelete=True)


def test_a_subnet_and_a_group_go_after_the_pool_that_uses_them(
    region: Region, parts: tuple[dict[str, Any], dict[str, Any]]
):
    group = region.group({"id": parts[1]["vcnId"]})
    made = region.create("NodePool", **pool(*parts, details={"nsgIds": [group["id"]]}))
    with pytest.raises(Refusal, match=r"references the VNIC .* You must remove the reference to proceed"):
        region.delete(parts[1])
    with pytest.raises(Refusal, match="cannot be deleted since it still has vnics attached to it"):
        region.delete(group)
    region.delete(made)
    region.delete(group)
    region.delete(parts[1])


def test_a_cluster_network_takes_machines_with_rdma_only(region: Region):
    launch = {"shape": "VM.Standard.E5.Flex", "shapeConfig": {"ocpus": 2.0}}
    details = {"instanceType": "compute", "launchDetails": launch}
    configuration = region.create("InstanceConfiguration", compartmentId=PLACE, instanceDetails=details)
    inputs = {
        "compartmentId": PLACE,
        "instancePools": [{"instanceConfigurationId": configuration["id"], "size": 2}],
        "placementConfiguration": {"availabilityDomain": DOMAIN},
    }
    with pytest.raises(Refusal, match="not supported in a cluster network"):
        region.create("ClusterNetwork", **inputs)
    assert launch["shape"] != RDMA_SHAPE


@pytest.mark.parametrize("key", ["user_data", "ssh_authorized_keys"])
def test_what_an_instance_boots_with_can_not_be_changed(region: Region, key: str):
    metadata = {"user_data": "Zm9v", "ssh_authorized_keys": "ssh-ed25519 A", "oke-max-pods": "31"}
    inputs = {"compartmentId": PLACE, "availabilityDomain": DOMAIN, "shape": RDMA_SHAPE, "displayName": "gpu-0"}
    made = region.create("Instance", **inputs, metadata=metadata)
    region.update("Instance", made, **inputs, metadata={**metadata, "oke-max-pods": "40"})
    with pytest.raises(Refusal, match=f"The metadata {key} can't be changed"):
        region.update("Instance", made, **inputs, metadata={**metadata, key: "YmFy"})
