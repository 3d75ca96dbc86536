"""Cluster of a stack: an existing one, or one that the stack creates with its network and IAM policies."""

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
    """Existing subnets. A subnet that is left out is created."""

    api: Ocid | None = None
    """Subnet of the API endpoint."""

    workers: Ocid | None = None
    """Subnet of the nodes."""

    pods: Ocid | None = None
    """Subnet of the pods, with a VCN-native pod network only."""

    load_balancers: Ocid | None = None
    """Subnet of internal load balancers."""

    public_load_balancers: Ocid | None = None
    """Subnet of public load balancers."""

    bastion: Ocid | None = None
    """Subnet of the OCI Bastion service's endpoint."""

    bastion_host: Ocid | None = None
    """Subnet of a bastion host."""

    operator: Ocid | None = None
    """Subnet of an operator host."""

    storage: Ocid | None = None
    """Subnet of File Storage mount targets."""

    lustre: Ocid | None = None
    """Subnet of Lustre file systems."""


class SecurityGroups(ConfigPart):
    """Existing network security groups, with their own rules. A group that is left out is created."""

    api: Ocid | None = None
    """Security group of the API endpoint."""

    workers: Ocid | None = None
    """Security group of the nodes."""

    pods: Ocid | None = None
    """Security group of the pods, with a VCN-native pod network only."""

    load_balancers: Ocid | None = None
    """Security group of internal load balancers."""

    public_load_balancers: Ocid | None = None
    """Security group of public load balancers."""

    bastion_host: Ocid | None = None
    """Security group of a bastion host."""

    operator: Ocid | None = None
    """Security group of an operator host."""

    storage: Ocid | None = None
    """Security group of File Storage mount targets."""

    lustre: Ocid | None = None
    """Security group of Lustre file systems."""


class RouteTables(ConfigPart):
    """Existing route tables. For subnets with an existing route table no gateway is created."""

    private: Ocid | None = None
    """Route table with routes to a NAT gateway and a service gateway."""

    public: Ocid | None = None
    """Route table with a route to an internet gateway."""


class BastionService(ConfigPart):
    """Bastion of the OCI Bastion service, through which `llmd-oke tunnel` reaches a private API endpoint."""

    client_cidrs: Annotated[Items[Cidr], Field(max_length=20)] = ()
    """IP ranges of clients that may open tunnels; if empty, no bastion is created. The service accepts at most 20
    ranges (OCI's Bastion API, CreateBastionDetails).
    """

    ocid: Ocid | None = None
    """OCID of an existing bastion in an existing VCN; if given, the stack creates no bastion."""

    subnet_cidr: Cidr | None = None
    """IP range of the existing `subnets.bastion`. The API endpoint's security group then admits only this range; if
    left out, it admits the network's whole range.
    """


class NetworkConfig(ConfigPart):
    """VCN with subnets, gateways and security groups; each of them may exist already."""

    cidr: Cidr | None = None
    """IP range of the VCN, or the range of an existing VCN in which subnets are created; 10.140.0.0/16 for a created
    VCN if left out.
    """

    vcn_id: Ocid | None = None
    """Existing VCN. Its default security list is not changed."""

    compartment_id: Ocid | None = None
    """Compartment of the network; the cluster's if left out."""

    subnets: Subnets = Subnets()
    """Existing subnets; only in an existing VCN."""

    security_groups: SecurityGroups = SecurityGroups()
    """Existing network security groups; only in an existing VCN."""

    route_tables: RouteTables = RouteTables()
    """Existing route tables; only in an existing VCN."""

    public_load_balancers: bool = False
    """Create a public subnet for load balancers, with ports 80 and 443 open to clients."""

    public_load_balancer_cidrs: Annotated[Items[Cidr], Field(min_length=1)] = ("0.0.0.0/0",)
    """IP ranges of the clients of public load balancers."""

    bastion: bool = True
    """Create a subnet from which the OCI Bastion service (`llmd-oke tunnel`) reaches the API endpoint."""

    bastion_service: BastionService = BastionService()
    """Bastion in the subnet that `bastion` creates."""

    bastion_host_cidrs: Items[Cidr] = ()
    """IP ranges that may connect to a bastion host by SSH; if empty, no subnet for such a host is created."""

    operator: bool = False
    """Create a private subnet for a host that administrators or CI runners work on."""

    worker_internet: bool = True
    """Let nodes open connections to the internet through a NAT gateway. Without it, nodes can pull images only from
    OCI's own registry.
    """

    pod_internet: bool = True
    """Let pods open connections to the internet through a NAT gateway, for example to download weights."""

    protect: bool | None = None
    """Refuse to delete or replace the VCN and its subnets; the cluster's `protect` if left out."""


Grant = Literal[
    "ocir",
    "oci-metrics",
    "load-balancer-security-groups",
    "file-storage",
    "cluster-autoscaler",
    "cluster-autoscaler-instance-pools",
]


class DynamicGroups(ConfigPart):
    """Existing dynamic groups. A group that is left out is created if a policy needs it."""

    nodes: Ocid | None = None
    """Dynamic group of the nodes."""

    clusters: Ocid | None = None
    """Dynamic group of the cluster."""


class IamConfig(ConfigPart):
    """Dynamic groups and IAM policies, with only the permissions that the stack needs (least privilege)."""

    create: bool = True
    """Create the dynamic groups and policies; otherwise an administrator must have created them (`llmd-oke preflight`
    shows those that are needed).
    """

    style: Literal["identity-domain", "classic"] = "identity-domain"
    """Location of dynamic groups: an identity domain, or the root compartment of a tenancy without identity domains."""

    domain: IdentityDomainName = "Default"
    """Name of the identity domain."""

    domain_url: IdentityDomainUrl | None = None
    """URL of the identity domain; if left out, looked up in OCI at preview."""

    home_region: Region | None = None
    """Home region of the tenancy, the only region in which groups and policies can be created; if left out, looked up
    in OCI at preview.
    """

    dynamic_groups: DynamicGroups = DynamicGroups()
    """OCIDs of existing dynamic groups; missing ones are created if a policy needs them."""

    image_compartment_id: Ocid | None = None
    """Compartment of existing images; the cluster's if left out."""

    key_compartment_id: Ocid | None = None
    """Compartment of the keys that encrypt Secrets and boot volumes; the cluster's if left out."""

    node_tag: DefinedTagName | None = None
    """Key of an existing defined tag, as `Namespace.Key`. Every resource that this stack creates gets the tag with a
    value that identifies the cluster, and only instances with the tag may join the cluster by themselves. If left out,
    every instance of the compartment may.
    """

    reservation_compartment_id: Ocid | None = None
    """Compartment of capacity reservations; the cluster's if left out."""

    grants: Items[Grant] = ()
    """Permissions beyond those that the stack needs. `ocir`: nodes pull from private repositories. `oci-metrics`: nodes
    publish the health of GPUs and RDMA as OCI metrics. `load-balancer-security-groups`: Services manage rules in
    security groups. `file-storage`: the File Storage driver creates volumes on demand. `cluster-autoscaler`: a cluster
    autoscaler that you deploy yourself changes the sizes of managed pools (pools with `scaling` need no grant); with
    `cluster-autoscaler-instance-pools`, those of cluster networks.
    """


class ApiEndpoint(ConfigPart):
    """Network access to the API server."""

    access: Literal["private", "public"] = "private"
    """`private`: reachable from the VCN and connected networks. `public`: also from the ranges in `allowedCidrs`."""

    allowed_cidrs: Items[Cidr] = ()
    """IP ranges outside the VCN that may reach the API server; ranges of the internet for a public one."""


class ImagePolicy(ConfigPart):
    """Policy that only signed images may run."""

    kms_key_ids: Annotated[Items[Ocid], Field(min_length=1)]
    """Keys that images are signed with."""


class Oidc(ConfigPart):
    """OpenID Connect: users and workflows authenticate with tokens of an identity provider."""

    issuer_url: HttpsUrl
    """URL of the issuer of the tokens."""

    client_id: str
    """Audience that tokens must name."""

    username_claim: str = "sub"
    """Claim with the user's name."""

    username_prefix: str | None = None
    """Prefix of user names in the cluster."""

    groups_claim: str | None = None
    """Claim with the user's groups."""

    groups_prefix: str | None = None
    """Prefix of group names in the cluster."""

    required_claims: dict[str, str] = Field(default_factory=dict[str, str])
    """Claims that a token must have, such as `repository: my-org/my-repository`."""


class AddOn(ConfigPart):
    """Add-on that OKE installs and updates."""

    name: str
    """Name in OKE's catalogue, such as `NodeProblemDetector`."""

    version: str | None = None
    """Version; OKE's choice if left out."""

    configurations: dict[str, str] = Field(default_factory=dict[str, str])
    """Configuration of the add-on: text, or JSON as text where OKE expects an object."""

    def tolerating(self, tolerations: list[dict[str, str]]) -> Self:
        """Return the add-on with `tolerations` (as JSON) in place of each value `<gpu-tolerations>` of its
        configuration.
        """
        text = json.dumps(tolerations)
        filled = {key: text if value == "<gpu-tolerations>" else value for key, value in self.configurations.items()}
        return self.model_copy(update={"configurations": filled})


class LookupResults(ConfigPart):
    """Results of the lookups in OCI that a preview otherwise makes, such as the region's availability domains. If all
    are given, a preview needs no credentials.
    """

    availability_domains: Items[str] = ()
    """Full names of the region's availability domains."""

    system_image_id: Ocid | None = None
    """OCID of the OKE image for pools without GPUs."""

    kubeconfig: str | None = None
    """Kubeconfig, as text, of the cluster that `clusterId` names. Only its server and certificate authority are used.
    """

    services_gateway_id: Ocid | None = None
    """OCID of the service that the service gateway routes to (all services of the region in the Oracle Services
    Network).
    """

    services_gateway_cidr: str | None = None
    """CIDR label of that service, such as `all-iad-services-in-oracle-services-network`."""


class CreateCluster(ConfigPart):
    """Cluster with everything that it needs, created in an empty compartment."""

    mode: Literal["create"]
    """`create`: network, IAM policies, cluster and pools are resources of this stack, unless an OCID is given."""

    name: DnsLabel
    """Name of the cluster, and prefix of the names of its resources."""

    region: Region
    """Region of the cluster."""

    compartment_id: Ocid
    """Compartment of all resources that the stack creates, unless another key names one."""

    tenancy_id: Ocid
    """Tenancy; its root compartment contains the dynamic groups."""

    kubernetes_version: KubernetesVersion
    """Kubernetes version of the control plane, and of pools without a version of their own."""

    cluster_id: Ocid | None = None
    """Existing cluster, for which this stack creates pools and operators."""

    cni: Cni = "vcn-native"
    """Pod network: `vcn-native`, pods have addresses of the VCN; `flannel`, an overlay."""

    pods_cidr: Cidr = "10.240.0.0/12"
    """IP range of the pods, with `flannel` only."""

    services_cidr: Cidr = "10.96.0.0/16"
    """IP range of the Services."""

    api_endpoint: ApiEndpoint = ApiEndpoint()
    """Network access to the API server."""

    network: NetworkConfig = NetworkConfig()
    """Network of the cluster."""

    iam: IamConfig = IamConfig()
    """Dynamic groups and IAM policies."""

    protect: bool = True
    """Refuse to delete or replace the cluster and its pools, until `destroy --unprotect`."""

    node_repair: Literal["none", "on-request"] = "none"
    """Repair of GPU nodes by OKE. `on-request`: OKE reboots a GPU node or replaces its boot volume after somebody sets
    the label `oke.oraclecloud.com/node_operation=reboot` or `replace-boot-volume` on it; the node is drained first, one
    node of a pool at a time. `none`: the label has no effect.
    """

    kms_key_id: Ocid | None = None
    """Key that encrypts Secrets at rest; Oracle's own if left out. It can't be changed later."""

    image_policy: ImagePolicy | None = None
    """Policy on signed images; all images may run if left out."""

    oidc: Oidc | None = None
    """Authentication with an identity provider, besides OCI's users."""

    oidc_discovery: bool = True
    """Publish the keys that service account tokens are signed with, so that other clouds can trust pods."""

    add_ons: Items[AddOn] = ()
    """OKE add-ons besides the essential ones."""

    ssh_public_key: str | None = None
    """SSH public key that may sign in to nodes; nobody may if left out."""

    lookup_results: LookupResults = LookupResults()
    """Results of the lookups in OCI that a preview otherwise makes, such as the region's availability domains."""


class ExistingCluster(ConfigPart):
    """Existing cluster that the environment's kubeconfig gives access to."""

    mode: Literal["existing"]
    """`existing`: the cluster itself is neither created nor changed."""

    identifier: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    """Identifier of the cluster, preferably its OCID. It must stay the same when the kubeconfig changes (a tunnel, CI):
    a changed identifier replaces every object in the cluster.
    """

    kubeconfig_context: str | None = None
    """Context of the kubeconfig; its current context if left out."""

    virtual_functions: Literal["oci-hpc-oke", "amd-vnic", "amd-nic"] | None = None
    """Naming scheme of the cluster's virtual functions, with `rdma: sriov-vf`. `oci-hpc-oke`: resource
    `nvidia.com/rdma-vf` and network `default/rdma-vf`. `amd-vnic` and `amd-nic`, by AMD's network operator for the
    adapters of BM.GPU.MI355X.8: resource `amd.com/vnic` (virtual functions) or `amd.com/nic` (whole ports) and network
    `default/amd-host-device-nad`. If left out, the names of this kit and of the llm-d guides.
    """

    control_plane_cidrs: Annotated[Items[Cidr], Field(max_length=20)] = ()
    """IP ranges from which the API server connects to pods, such as the subnet of its endpoint. NetworkPolicies admit
    them besides the kit's own pods; without them, commands that reach pods through the API server fail.
    """


Cluster = Annotated[ExistingCluster | CreateCluster, Field(discriminator="mode")]
"""Either an existing or a created cluster, by `mode`."""


KUBECONFIG_CREDENTIALS = frozenset({"token", "password", "client-key-data", "auth-provider"})
"""Keys in the `user` of a kubeconfig whose values are credentials."""


@dataclass(frozen=True)
class KubeconfigAccess:
    """Access data of an API server from a kubeconfig: URL, CA certificate (base64 of PEM text) and the entry of the
    user.
    """

    server: str
    certificate_authority: str
    user: dict[str, Any]

    @property
    def host(self) -> str:
        """Host name of the API server, without port."""
        return urlsplit(self.server).hostname or ""


def read_kubeconfig(text: str) -> KubeconfigAccess:
    """Return the access data in the kubeconfig that OKE returns for a cluster.

    Raises:
        KitError: the text is no kubeconfig of one cluster. The message omits the text, which may contain credentials.
    """
    try:
        require_bounded(text)
        document = cast("dict[str, Any]", yaml.safe_load(text))
        cluster = document["clusters"][0]["cluster"]
        user = dict(document["users"][0]["user"].items())
        access = KubeconfigAccess(cluster["server"], cluster.get("certificate-authority-data", ""), user)
        base64.b64decode(access.certificate_authority.encode(), validate=True)
        if urlsplit(access.server).scheme != "https" or not access.host:
            raise ValueError("no address of an API server")
    except (yaml.YAMLError, KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        shows = "oci ce cluster create-kubeconfig --cluster-id <its OCID> --file kubeconfig"
        remedy = f"Look at it: `{shows}`; then update again."
        raise KitError("The kubeconfig of the cluster can't be read.", remedy) from error
    return access
