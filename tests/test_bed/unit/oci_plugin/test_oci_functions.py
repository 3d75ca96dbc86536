"""Functions of the OCI stand-in: what each answers, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from llmd_rehearsal.oci_plugin.functions import FunctionCall, invoke
from llmd_rehearsal.plugin_values import OperationRefusal
from oci_region import COMPARTMENT, Region


def ask(region: Region, name: str, kubeconfig: Path | None = None, **arguments: Any) -> dict[str, Any]:
    return invoke(f"oci:Any/{name}:{name}", FunctionCall(arguments, "eu-frankfurt-1", region.records, kubeconfig))


def test_the_kubeconfig_function_returns_the_rehearsals_kubeconfig(region: Region, tmp_path: Path):
    file = tmp_path / "kubeconfig.yaml"
    file.write_text("a: kubeconfig")
    cluster = region.cluster(region.vcn())
    answer = ask(region, "getClusterKubeConfig", file, clusterId=cluster["id"], tokenVersion="2.0.0")
    assert (answer["content"], answer["clusterId"]) == ("a: kubeconfig", cluster["id"])
    region.delete(cluster)
    with pytest.raises(OperationRefusal, match="404-NotAuthorizedOrNotFound"):
        ask(region, "getClusterKubeConfig", file, clusterId=cluster["id"])


def test_the_oci_stand_in_returns_the_availability_domains_of_the_region(region: Region):
    domains = ask(region, "getAvailabilityDomains", compartmentId="t")["availabilityDomains"]
    assert [domain["name"] for domain in domains] == [f"Uocm:EU-FRANKFURT-1-AD-{number}" for number in (1, 2, 3)]


def test_oci_list_functions_apply_the_filters_in_their_arguments(region: Region):
    filters = [{"name": "name", "values": ["All .* Services In Oracle Services Network"], "regex": True}]
    (service,) = ask(region, "getServices", filters=filters)["services"]
    assert service["cidrBlock"] == "all-fra-services-in-oracle-services-network"


def test_the_oci_stand_in_lists_only_images_that_fit_the_shape(region: Region):
    images = ask(region, "getImages", compartmentId="c", shape="BM.GPU.MI300X.8")["images"]
    assert images
    assert all("AMD-ROCM" in image["displayName"] for image in images)


def test_the_oci_stand_in_says_which_region_is_the_home_region(region: Region):
    subscriptions = ask(region, "getRegionSubscriptions", tenancyId="t")["regionSubscriptions"]
    home = {item["regionName"]: item["isHomeRegion"] for item in subscriptions}
    assert home == {"us-ashburn-1": True, "eu-frankfurt-1": False}


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("getAddonOptions", {"kubernetesVersion": "v1.34.2", "addonName": "CertManager"}, "addonOptions"),
        ("getClusterOption", {"clusterOptionId": "all"}, "kubernetesVersions"),
        ("getDomains", {"compartmentId": "t"}, "domains"),
        ("getFaultDomains", {"compartmentId": "t", "availabilityDomain": "a"}, "faultDomains"),
        ("getLimitValues", {"compartmentId": "t", "serviceName": "compute"}, "limitValues"),
        ("getNamespace", {}, "namespace"),
        ("getNodePoolOption", {"nodePoolOptionId": "all"}, "sources"),
        ("getResourceAvailability", {"serviceName": "vcn", "limitName": "vcn-count"}, "available"),
        ("getShapes", {"compartmentId": "c"}, "shapes"),
        ("getTenancy", {"tenancyId": "t"}, "homeRegionKey"),
    ],
)
def test_every_oci_function_that_the_program_calls_is_answered(region: Region, name: str, arguments: Any, key: str):
    assert ask(region, name, **arguments)[key]


def test_the_oci_stand_in_lists_existing_resources(region: Region):
    cluster = region.cluster(region.vcn())
    assert [item["id"] for item in ask(region, "getClusters", compartmentId=COMPARTMENT)["clusters"]] == [cluster["id"]]
    assert ask(region, "getVcn", vcnId=cluster["vcnId"])["cidrBlock"] == "10.0.0.0/16"
    assert ask(region, "getInstances", compartmentId=COMPARTMENT)["instances"] == []
    assert ask(region, "getNodePools", compartmentId=COMPARTMENT)["nodePools"] == []


def test_the_error_for_an_unsupported_oci_function_lists_the_supported_functions(region: Region):
    with pytest.raises(OperationRefusal, match=r"getWallet is not in this rehearsal; .* answers getAddonOptions, "):
        ask(region, "getWallet")
