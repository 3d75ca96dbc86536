"""The cluster as it is declared to OCI, and the way to its API server."""

import json
from typing import Any

import pulumi
import pytest
from llmd_oke.cluster.oke_cluster import AddOns, OkeCluster
from llmd_oke.testing import KUBECONFIG, Declared, Rendered, declared
from oci_contract import OciMocks, oci_resources, require_known_arguments

ADD_ON = "oci:ContainerEngine/addon:Addon"
CLUSTER = "oci:ContainerEngine/cluster:Cluster"
KUBECONFIG_CALL = "oci:ContainerEngine/getClusterKubeConfig:getClusterKubeConfig"

BASE: dict[str, Any] = {
    "cluster_name": "prod",
    "region": "us-ashburn-1",
    "compartment_id": "compartment",
    "kubernetes_version": "v1.34.2",
    "network": {"vcn_id": "vcn", "api_subnet_id": "api", "api_nsg_ids": ["api-nsg"]},
}
EVERYTHING: dict[str, Any] = {
    "public_api": True,
    "services_cidr": "10.97.0.0/16",
    "network": {**BASE["network"], "load_balancer_subnet_ids": ["lb"]},
    "kms_key_id": "key",
    "image_policy_key_ids": ["signer"],
    "oidc": {
        "issuer_url": "https://token.example.com",
        "client_id": "kubernetes",
        "username_claim": "sub",
        "username_prefix": "ci:",
        "groups_claim": "groups",
        "groups_prefix": "ci:",
        "required_claims": {"repository": "org/repo"},
    },
    "protect": True,
}


class Oke(OciMocks):
    """OCI that gives another kubeconfig for the public endpoint; `asked` are the endpoints asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def call(self, args: Any) -> dict[str, Any]:
        assert args.token == KUBECONFIG_CALL
        self.asked.append(args.args["endpoint"])
        public = args.args["endpoint"] == "PUBLIC_ENDPOINT"
        return {"content": KUBECONFIG.replace("10.140.0.5", "203.0.113.9") if public else KUBECONFIG}


def oke(mocks: Oke | None = None, **changes: Any) -> Rendered:
    def program() -> None:
        made = OkeCluster("oke", {**BASE, **changes})
        for name in ("cluster_id", "kubeconfig", "endpoint", "api_server_host", "ca_certificate"):
            pulumi.export(name, getattr(made, name))

    return declared(program, cluster=mocks or Oke())


def cluster(**changes: Any) -> Declared:
    (made,) = oci_resources(oke(**changes))
    return made


@pytest.mark.parametrize("changes", [{}, EVERYTHING, {"flannel": True, "pods_cidr": "10.240.0.0/12"}])
def test_both_supported_oci_plug_in_versions_know_every_argument_of_a_cluster(changes: dict[str, Any]):
    require_known_arguments([cluster(**changes)])


def test_a_cluster_is_enhanced_and_private_by_default():
    assert cluster().inputs == {
        "name": "prod",
        "freeformTags": {"llmd-oke/stack": "llmd-oke/test"},
        "type": "ENHANCED_CLUSTER",
        "compartmentId": "compartment",
        "kubernetesVersion": "v1.34.2",
        "vcnId": "vcn",
        "clusterPodNetworkOptions": [{"cniType": "OCI_VCN_IP_NATIVE"}],
        "endpointConfig": {"subnetId": "api", "isPublicIpEnabled": False, "nsgIds": ["api-nsg"]},
        "options": {
            "openIdConnectDiscovery": {"isOpenIdConnectDiscoveryEnabled": True},
            "persistentVolumeConfig": {"freeformTags": {"llmd-oke/stack": "llmd-oke/test"}},
            "serviceLbConfig": {"freeformTags": {"llmd-oke/stack": "llmd-oke/test"}},
        },
    }


def test_outputs_of_a_cluster_contain_its_private_endpoint():
    mocks = Oke()
    outputs = oke(mocks).outputs
    assert mocks.asked == ["PRIVATE_ENDPOINT"]
    assert outputs["cluster_id"] == "id-of-oke-cluster"
    assert outputs["endpoint"] == "https://10.140.0.5:6443"
    assert outputs["api_server_host"] == "10.140.0.5"
    made = json.loads(outputs["kubeconfig"])
    assert made["clusters"][0]["cluster"]["server"] == "https://10.140.0.5:6443"
    assert made["users"][0]["user"]["exec"]["args"][:3] == ["token", "--cluster-id", "id-of-oke-cluster"]


def test_nodes_use_the_private_endpoint_even_if_there_is_a_public_one():
    outputs = oke(public_api=True).outputs
    assert outputs["api_server_host"] == "10.140.0.5"
    assert json.loads(outputs["kubeconfig"])["clusters"][0]["cluster"]["server"] == "https://203.0.113.9:6443"


def test_an_open_tunnel_is_used_as_the_address_of_the_cluster():
    outputs = oke(api_server="https://127.0.0.1:6443").outputs
    entry = json.loads(outputs["kubeconfig"])["clusters"][0]["cluster"]
    assert (entry["server"], entry["tls-server-name"]) == ("https://127.0.0.1:6443", "10.140.0.5")
    assert outputs["endpoint"] == "https://10.140.0.5:6443"


def test_an_existing_cluster_with_a_given_kubeconfig_is_neither_changed_nor_queried():
    mocks = Oke()
    made = oke(mocks, cluster_id="ocid1.cluster.oc1.iad.there", kubeconfig=KUBECONFIG)
    assert oci_resources(made) == []
    assert mocks.asked == []
    assert made.outputs["cluster_id"] == "ocid1.cluster.oc1.iad.there"


def test_the_kubeconfig_is_a_secret_output():
    def program() -> None:
        made = OkeCluster("oke", {**BASE})
        pulumi.export("secret", pulumi.Output.from_input(made.kubeconfig.is_secret()))

    assert declared(program, cluster=Oke()).outputs["secret"] is True


def test_add_ons_that_oke_preinstalls_are_adopted_and_removed_with_their_resource():
    add_ons: Any = [
        {"name": "NodeProblemDetector"},
        {"name": "CoreDNS", "version": "v1.13.1", "configurations": {"nodesPerReplica": "8", "minReplica": "3"}},
    ]
    made = declared(lambda: AddOns("add-ons", {"cluster_id": "c", "add_ons": add_ons}), cluster=OciMocks())
    dns, detector = oci_resources(made)
    assert dns.inputs == {
        "addonName": "CoreDNS",
        "clusterId": "c",
        "version": "v1.13.1",
        "configurations": [{"key": "minReplica", "value": "3"}, {"key": "nodesPerReplica", "value": "8"}],
        "overrideExisting": True,
        "removeAddonResourcesOnDelete": True,
    }
    assert "configurations" not in detector.inputs
    assert dns.timeouts["create"] == "30m"
    require_known_arguments([dns, detector])


def test_add_ons_are_installed_one_after_the_other():
    add_ons: Any = [{"name": name} for name in ("NodeFeatureDiscovery", "NvidiaNetworkOperator", "CertManager")]
    made = declared(lambda: AddOns("a", {"cluster_id": "c", "add_ons": add_ons}), cluster=OciMocks())
    first, second, third = (made.resource(ADD_ON, f"a-{add_on['name'].lower()}") for add_on in add_ons)
    assert (first.depends_on, second.depends_on, third.depends_on) == ((), (first.urn,), (second.urn,))


def test_add_ons_inherit_the_option_deleted_with_from_their_component():
    def program() -> None:
        oke = OkeCluster("oke", {**BASE})
        opts = pulumi.ResourceOptions(deleted_with=oke.created)
        AddOns("a", {"cluster_id": oke.cluster_id, "add_ons": [{"name": "CoreDNS"}]}, opts)

    made = declared(program, cluster=Oke())
    assert made.resource(ADD_ON, "a-coredns").deleted_with == made.of_type(CLUSTER)[0].urn
