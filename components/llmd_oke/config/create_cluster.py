"""A cluster that this stack creates."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import Items, Part
from llmd_oke.config.iam import Iam
from llmd_oke.config.names import DnsLabel
from llmd_oke.config.network import Network
from llmd_oke.config.oci_names import Cidr, HttpsUrl, KubernetesVersion, Ocid, Region

Cni = Literal["vcn-native", "flannel"]


class ApiEndpoint(Part):
    """How the API server is reached."""

    access: Literal["private", "public"] = "private"
    """`private`: from the VCN and what is joined to it; `public`: also from the ranges of `allowedCidrs`."""

    allowed_cidrs: Items[Cidr] = ()
    """Ranges that may reach the API server, beside the VCN: of the internet for a public one."""


class ImagePolicy(Part):
    """Only signed images may run."""

    kms_key_ids: Annotated[Items[Ocid], Field(min_length=1)]
    """Keys that images are signed with."""


class Oidc(Part):
    """Users and workflows that sign in with tokens of an identity provider."""

    issuer_url: HttpsUrl
    """Issuer of the tokens."""

    client_id: str
    """Audience that tokens must be for."""

    username_claim: str = "sub"
    """Claim that is the user's name."""

    username_prefix: str | None = None
    """What user names begin with in the cluster."""

    groups_claim: str | None = None
    """Claim that has the user's groups."""

    groups_prefix: str | None = None
    """What group names begin with in the cluster."""

    required_claims: dict[str, str] = Field(default_factory=dict[str, str])
    """Claims that a token must have, such as `repository: my-org/my-repository`."""


class AddOn(Part):
    """An add-on that OKE installs and keeps up to date."""

    name: str
    """Its name in OKE's catalogue, such as `NodeProblemDetector`."""

    version: str | None = None
    """Its version; OKE's choice if left out."""

    configurations: dict[str, str] = Field(default_factory=dict[str, str])
    """Its settings: text, or JSON as text where OKE wants an object."""


class Given(Part):
    """Answers that OCI would give at preview. With all of them a preview needs no credentials."""

    availability_domains: Items[str] = ()
    """The region's availability domains, by their whole names."""

    system_image_id: Ocid | None = None
    """The OKE image of the pools without GPUs."""

    kubeconfig: str | None = None
    """The kubeconfig of a cluster that `clusterId` names, as text. Only its server and authority are used."""

    services_gateway_id: Ocid | None = None
    """The service that the service gateway leads to (all services of the region in the Oracle Services Network)."""

    services_gateway_cidr: str | None = None
    """Its CIDR label, such as `all-iad-services-in-oracle-services-network`."""


class CreateCluster(Part):
    """A cluster with all that it needs, created in an empty compartment."""

    mode: Literal["create"]
    """`create`: network, rights, cluster and pools are resources of this stack, except where an OCID is given."""

    name: DnsLabel
    """Name of the cluster, and beginning of the names of all that belongs to it."""

    region: Region
    """Region of the cluster."""

    compartment_id: Ocid
    """Compartment of all resources."""

    tenancy_id: Ocid
    """Tenancy, whose root compartment dynamic groups live in."""

    kubernetes_version: KubernetesVersion
    """Version of the control plane, and of the pools that don't say otherwise."""

    cluster_id: Ocid | None = None
    """A cluster that is there already, whose pools and operators this stack creates."""

    cni: Cni = "vcn-native"
    """Pod network: `vcn-native`, pods have addresses of the VCN; `flannel`, an overlay."""

    pods_cidr: Cidr = "10.240.0.0/12"
    """Addresses of pods, with `flannel` only."""

    services_cidr: Cidr = "10.96.0.0/16"
    """Addresses of Services."""

    api_endpoint: ApiEndpoint = ApiEndpoint()
    """How the API server is reached."""

    network: Network = Network()
    """The network of the cluster."""

    iam: Iam = Iam()
    """Dynamic groups and policies."""

    protect: bool = True
    """Refuse to delete or replace the cluster and its pools, until `destroy --unprotect`."""

    kms_key_id: Ocid | None = None
    """Key that Secrets are encrypted with at rest; Oracle's own if left out. It can't be changed later."""

    image_policy: ImagePolicy | None = None
    """Which images may run; all if left out."""

    oidc: Oidc | None = None
    """Sign in with an identity provider, beside OCI's users."""

    oidc_discovery: bool = True
    """Publish the keys that service account tokens are signed with, so that other clouds can trust pods."""

    add_ons: Items[AddOn] = ()
    """Add-ons beside the essential ones."""

    ssh_public_key: str | None = None
    """Key that may sign in to nodes; nobody may if left out."""

    given: Given = Given()
    """Answers that OCI would give at preview."""
