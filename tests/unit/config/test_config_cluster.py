"""The shape of a created cluster and of its pools."""

from typing import Any

import pytest
from llmd_base.errors import InvalidStack, Problem
from llmd_oke import config
from stack_files import cluster_layer, created_cluster, created_pool


def only(*, cluster: Any = None, pool: Any = None, **changes: Any) -> Problem:
    with pytest.raises(InvalidStack) as refused:
        config.validate({**cluster_layer(created_pool(**(pool or {})), cluster=cluster), **changes})
    (problem,) = refused.value.problems
    return problem


def test_a_created_cluster_is_protected_private_and_without_ssh_key_by_default():
    result = config.validate(cluster_layer())
    cluster = result.cluster
    assert (cluster.protect, cluster.api_endpoint.access, cluster.ssh_public_key) == (True, "private", None)
    assert result.gpu_pools[0].launch == "managed-compute-cluster"
    assert (result.system_pool.size, result.system_pool.shape) == (3, "VM.Standard.E5.Flex")


def test_a_node_image_to_import_is_configured_under_the_key_import():
    image = {"import": {"name": "ubuntu", "uri": "https://o/i.oci", "checksum": "sha256:" + "0" * 64}}
    result = config.validate(cluster_layer(created_pool(image=image))).gpu_pools[0].image
    assert result.import_.name == "ubuntu"


BAD_IMAGE = {"import": {"name": "ubuntu", "uri": "https://o/i.oci", "checksum": "0" * 32}}


@pytest.mark.parametrize(
    ("changes", "path", "accepted"),
    [
        ({"cluster": {"compartmentId": "prod"}}, "cluster.compartmentId", "an OCID"),
        ({"cluster": {"region": "Ashburn"}}, "cluster.region", "a region such as us-ashburn-1"),
        ({"cluster": {"kubernetesVersion": "1.34"}}, "cluster.kubernetesVersion", "a Kubernetes version"),
        ({"cluster": {"cni": "calico"}}, "cluster.cni", "'vcn-native' or 'flannel'"),
        ({"cluster": {"servicesCidr": "10.96.0.0"}}, "cluster.servicesCidr", "an IPv4 range"),
        ({"cluster": {"imagePolicy": {"kmsKeyIds": []}}}, "cluster.imagePolicy.kmsKeyIds", "at least 1 item"),
        ({"cluster": {"oidc": {"issuerUrl": "http://x", "clientId": "a"}}}, "cluster.oidc.issuerUrl", "begins with"),
        ({"pool": {"image": BAD_IMAGE}}, "gpuPools[0].image.import.checksum", "md5: or sha256:"),
        ({"cluster": {"colour": "red"}}, "cluster.colour", "one of"),
        ({"pool": {"availabilityDomain": "AD-1"}}, "gpuPools[0].availabilityDomain", "the whole name"),
        ({"pool": {"faultDomains": ["1"]}}, "gpuPools[0].faultDomains[0]", "FAULT-DOMAIN-1"),
        ({"pool": {"launch": "managed"}}, "gpuPools[0].launch", "'managed-compute-cluster'"),
        ({"pool": {"nvme": "raid-5"}}, "gpuPools[0].nvme", "'raid-0', 'raid-10' or 'none'"),
        ({"pool": {"taints": [{"key": "a b"}]}}, "gpuPools[0].taints[0].key", "a Kubernetes label key"),
        ({"pool": {"labels": {"a": "b c"}}}, "gpuPools[0].labels.a", "a Kubernetes label value"),
        ({"pool": {"cycling": {"maxSurge": 1}}}, "gpuPools[0].cycling.maxSurge", "text"),
        ({"layer": "network"}, "layer", "'cluster', 'serving' or 'all'"),
    ],
)
def test_invalid_cluster_settings_are_reported_in_terms_of_oci_and_kubernetes(
    changes: dict[str, Any], path: str, accepted: str
):
    problem = only(**changes)
    assert problem.path == path
    assert accepted in problem.accepted


def test_all_missing_cluster_settings_are_reported_at_once():
    with pytest.raises(InvalidStack) as refused:
        config.validate({**cluster_layer(), "cluster": {"mode": "create"}})
    paths = {problem.path for problem in refused.value.problems}
    assert paths == {f"cluster.{key}" for key in created_cluster() if key != "mode"}
