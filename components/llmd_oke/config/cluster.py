"""The cluster that a stack deploys to: one that is there, or one that it creates with its network and its rights."""

import base64
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit

import yaml
from llmd_base.documents import require_bounded
from llmd_base.errors import KitError
from pydantic import Field, StringConstraints

from llmd_oke.config.base import Cidr, ConfigPart, DnsLabel, HttpsUrl, Items, KubernetesVersion, Ocid, Region, matching
from llmd_oke.config.tags import DefinedTagName

Cni = Literal["vcn-native", "flannel"]

IdentityDomainUrl = Annotated[
    str,
    matching(
        r"^https://[A-Za-z0-9.-]+(:[0-9]+)?/?$",
        "the URL of an identity domain such as https://idcs-0a1b.identity.oraclecloud.com:443",
    ),
]

IdentityDomainName = Annotated[
    str, matching(r"^[A-Za-z0-9_.-]+$", "letters, digits, underscores, dots and dashes", max_length=100)
]


class Subnets(ConfigPart):
    """Subnets that are there already. One that is left out is created."""

    api: Ocid | None = None
    """The API endpoint's."""

    workers: Ocid | None = None
    """The nodes'."""

    pods: Ocid | None = None
    """The pods', with a VCN-native network only."""

    load_balancers: Ocid | None = None
    """That of internal load balancers."""

    public_load_balancers: Ocid | None = None
    """That of public load balancers."""

    bastion: Ocid | None = None
    """That of the OCI Bastion service's endpoint."""

    bastion_host: Ocid | None = None
    """That of a bastion host."""

    operator: Ocid | None = None
    """That of an operator host."""

    storage: Ocid | None = None
    """That of File Storage mount targets."""

    lustre: Ocid | None = None
    """That of Lustre file systems."""


class SecurityGroups(ConfigPart):
    """Network security groups that are there already, with rules of their own. One that is left out is created."""

    api: Ocid | None = None
    """The API endpoint's."""

    workers: Ocid | None = None
    """The nodes'."""

    pods: Ocid | None = None
    """The pods', with a VCN-native network only."""

    load_balancers: Ocid | None = None
    """That of internal load balancers."""

    public_load_balancers: Ocid | None = None
    """That of public load balancers."""

    bastion_host: Ocid | None = None
    """That of a bastion host."""

    operator: Ocid | None = None
    """That of an operator host."""

    storage: Ocid | None = None
    """That of File Storage mount targets."""

    lustre: Ocid | None = None
    """That of Lustre file systems."""


class RouteTables(ConfigPart):
    """Route tables that are there already. With one of them no gateway is created for its subnets."""

    private: Ocid | None = None
    """Leads to a NAT gateway and to a service gateway."""

    public: Ocid | None = None
    """Leads to an internet gateway."""


class BastionService(ConfigPart):
    """A bastion of the OCI Bastion service, through which `llmd-oke tunnel` reaches a private API endpoint."""

    client_cidrs: Annotated[Items[Cidr], Field(max_length=20)] = ()
    """Who may open tunnels; with none no bastion is created. The service takes 20 ranges at most (OCI's Bastion API,
    CreateBastionDetails)."""

    ocid: Ocid | None = None
    """A bastion that is there already, in an existing VCN; none is created then."""

    subnet_cidr: Cidr | None = None
    """Range of `subnets.bastion`, which then alone may reach the API endpoint from there; if left out, all that is in
    the network's range may."""


class NetworkConfig(ConfigPart):
    """A VCN with subnets, gateways and security groups; any of them may be there already."""

    cidr: Cidr | None = None
    """Range of the VCN, or that range of an existing VCN that the subnets are created in; 10.140.0.0/16 for a VCN that
    is created if left out."""

    vcn_id: Ocid | None = None
    """A VCN that is there already. Its default security list is left as it is."""

    compartment_id: Ocid | None = None
    """Compartment of the network; the cluster's if left out."""

    subnets: Subnets = Subnets()
    """Subnets that are there already; only in an existing VCN."""

    security_groups: SecurityGroups = SecurityGroups()
    """Network security groups that are there already; only in an existing VCN."""

    route_tables: RouteTables = RouteTables()
    """Route tables that are there already; only in an existing VCN."""

    public_load_balancers: bool = False
    """A public subnet for load balancers whose ports 80 and 443 clients may reach."""

    public_load_balancer_cidrs: Annotated[Items[Cidr], Field(min_length=1)] = ("0.0.0.0/0",)
    """Clients of public load balancers."""

    bastion: bool = True
    """A subnet from which the OCI Bastion service (`llmd-oke tunnel`) reaches the API endpoint."""

    bastion_service: BastionService = BastionService()
    """The bastion in that subnet."""

    bastion_host_cidrs: Items[Cidr] = ()
    """Who may sign in to a bastion host by SSH; with none there is no subnet for such a host."""

    operator: bool = False
    """A private subnet for a host that administrators or CI runners work from."""

    worker_internet: bool = True
    """Nodes may open connections to the internet, through a NAT gateway. Without it images come from OCI's own registry
    only."""

    pod_internet: bool = True
    """Pods may open connections to the internet, through a NAT gateway, for example to download weights."""

    protect: bool | None = None
    """Refuse to delete or replace the VCN and its subnets; as the cluster's `protect` if left out."""


Grant = Literal[
    "ocir",
    "oci-metrics",
    "load-balancer-security-groups",
    "file-storage",
    "cluster-autoscaler",
    "cluster-autoscaler-instance-pools",
]


class DynamicGroups(ConfigPart):
    """Dynamic groups that are there already. One that is left out is created where a policy needs it."""

    nodes: Ocid | None = None
    """The nodes."""

    clusters: Ocid | None = None
    """The cluster."""


class IamConfig(ConfigPart):
    """Dynamic groups and policies: least privilege, only what the stack's choices need."""

    create: bool = True
    """Create them; otherwise an administrator has done so (`llmd-oke preflight` shows what is needed)."""

    style: Literal["identity-domain", "classic"] = "identity-domain"
    """Where dynamic groups live: in an identity domain, or in the root compartment of a tenancy without domains."""

    domain: IdentityDomainName = "Default"
    """Name of the identity domain."""

    domain_url: IdentityDomainUrl | None = None
    """URL of the identity domain; asked of OCI at preview if left out."""

    home_region: Region | None = None
    """The tenancy's home region, the only one where groups and policies can be made; asked of OCI at preview if left
    out."""

    dynamic_groups: DynamicGroups = DynamicGroups()
    """Dynamic groups that are there already."""

    image_compartment_id: Ocid | None = None
    """Compartment of images that are there already; the cluster's if left out."""

    key_compartment_id: Ocid | None = None
    """Compartment of the keys that Secrets and boot volumes are encrypted with; the cluster's if left out."""

    node_tag: DefinedTagName | None = None
    """Key of a defined tag that an administrator has set up, as `Namespace.Key`: all that this stack creates gets it,
    with a name of the cluster as its value, and only instances that have it may join the cluster by themselves. If left
    out, every instance of the compartment may.
    """

    reservation_compartment_id: Ocid | None = None
    """Compartment of capacity reservations; the cluster's if left out."""

    grants: Items[Grant] = ()
    """Rights beside those that the stack's choices need. `ocir`: nodes pull from private repositories. `oci-metrics`:
    nodes publish the health of GPUs and RDMA as OCI metrics. `load-balancer-security-groups`: Services manage rules in
    security groups. `file-storage`: the File Storage driver makes volumes on demand. `cluster-autoscaler`: one of your
    own changes the sizes of managed pools (pools with `scaling` need no grant), and with
    `cluster-autoscaler-instance-pools` those of cluster networks.
    """


class ApiEndpoint(ConfigPart):
    """Exposure of the API server."""

    access: Literal["private", "public"] = "private"
    """`private`: from the VCN and what is joined to it; `public`: also from the ranges of `allowedCidrs`."""

    allowed_cidrs: Items[Cidr] = ()
    """Ranges that may reach the API server, beside the VCN: of the internet for a public one."""


class ImagePolicy(ConfigPart):
    """Policy by which only signed images may run."""

    kms_key_ids: Annotated[Items[Ocid], Field(min_length=1)]
    """Keys that images are signed with."""


class Oidc(ConfigPart):
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


class AddOn(ConfigPart):
    """An add-on that OKE installs and keeps up to date."""

    name: str
    """Its name in OKE's catalogue, such as `NodeProblemDetector`."""

    version: str | None = None
    """Its version; OKE's choice if left out."""

    configurations: dict[str, str] = Field(default_factory=dict[str, str])
    """Its settings: text, or JSON as text where OKE wants an object."""

    def tolerating(self, tolerations: list[dict[str, str]]) -> Self:
        """The add-on with these tolerations wherever it has a place for the GPU nodes'."""
        text = json.dumps(tolerations)
        filled = {key: text if value == "<gpu-tolerations>" else value for key, value in self.configurations.items()}
        return self.model_copy(update={"configurations": filled})


class LookupResults(ConfigPart):
    """Results of what a preview looks up in OCI. With all of them a preview needs no credentials."""

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


class CreateCluster(ConfigPart):
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

    network: NetworkConfig = NetworkConfig()
    """The network of the cluster."""

    iam: IamConfig = IamConfig()
    """Dynamic groups and policies."""

    protect: bool = True
    """Refuse to delete or replace the cluster and its pools, until `destroy --unprotect`."""

    node_repair: Literal["none", "on-request"] = "none"
    """`on-request`: OKE reboots a GPU node, or gives it a new boot volume, once somebody labels it
    `oke.oraclecloud.com/node_operation=reboot` or `replace-boot-volume`: drained first, one node of a pool at a time.
    `none`: such a label does nothing."""

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

    lookup_results: LookupResults = LookupResults()
    """Results of what a preview looks up in OCI."""


class ExistingCluster(ConfigPart):
    """A cluster that is there already and that the environment's kubeconfig reaches."""

    mode: Literal["existing"]
    """`existing`: nothing of the cluster itself is created or changed."""

    identifier: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    """What identifies the cluster, preferably its OCID. It must stay the same when the kubeconfig changes (a tunnel,
    CI): a changed identifier replaces every object in the cluster.
    """

    kubeconfig_context: str | None = None
    """Context of the kubeconfig; its current context if left out."""

    virtual_functions: Literal["oci-hpc-oke"] | None = None
    """Whose names the cluster's virtual functions have, with `rdma: sriov-vf`: `oci-hpc-oke`, the resource
    `nvidia.com/rdma-vf` and the network `default/rdma-vf`. If left out, the names of this kit and of the llm-d guides.
    """

    control_plane_cidrs: Annotated[Items[Cidr], Field(max_length=20)] = ()
    """Addresses that the API server speaks to pods from, such as the subnet of its endpoint. NetworkPolicies let them
    in beside the kit's own pods; without them commands that ask pods through the API server don't reach any.
    """


Cluster = Annotated[ExistingCluster | CreateCluster, Field(discriminator="mode")]
"""One of the two, by `mode`."""


KUBECONFIG_CREDENTIALS = frozenset({"token", "password", "client-key-data", "auth-provider"})
"""Keys of a kubeconfig's user that let in whoever reads them."""


@dataclass(frozen=True)
class KubeconfigAccess:
    """Address of an API server and what its certificate is checked against (base64 of PEM text)."""

    server: str
    certificate_authority: str
    user: dict[str, Any]

    @property
    def host(self) -> str:
        """The server's host without its port."""
        return urlsplit(self.server).hostname or ""


def read_kubeconfig(text: str) -> KubeconfigAccess:
    """The way to the API server in the kubeconfig that OKE gives for a cluster.

    Raises:
        KitError: it is no kubeconfig of one cluster. The text itself, which may hold credentials, is not in its words.
    """
    try:
        require_bounded(text)
        document = cast("dict[str, Any]", yaml.safe_load(text))
        cluster = document["clusters"][0]["cluster"]
        user = dict(document["users"][0]["user"].items())
        access = KubeconfigAccess(cluster["server"], cluster.get("certificate-authority-data", ""), user)
        _require_usable(access)
    except (yaml.YAMLError, KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise KitError("The kubeconfig of the cluster can't be read.", "OKE gave something unexpected.") from error
    return access


def _require_usable(access: KubeconfigAccess) -> None:
    """A server's address and an authority in base 64, in objects of the right kinds; ValueError otherwise."""
    base64.b64decode(access.certificate_authority.encode(), validate=True)
    if urlsplit(access.server).scheme != "https" or not access.host:
        raise ValueError("no address of an API server")
