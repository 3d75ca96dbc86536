"""The OKE cluster itself."""

from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_oci as oci

from llmd_oke.access.places import host_and_port
from llmd_oke.cluster import kubeconfig
from llmd_oke.cluster.iam_home import sign_in
from llmd_oke.cluster.kubeconfig import Access
from llmd_oke.cluster.questions import ask
from llmd_oke.cluster.reaching import wait_until_reached
from llmd_oke.cluster.tags import stack_tags
from llmd_oke.cluster.timeouts import CLUSTER
from llmd_oke.updating import is_update


class OidcArgs(TypedDict):
    """Users and workflows that sign in with tokens of an identity provider."""

    issuer_url: str
    """Issuer of the tokens."""
    client_id: str
    """Audience that tokens must be for."""
    username_claim: NotRequired[str]
    """Claim that is the user's name."""
    username_prefix: NotRequired[str]
    """What user names begin with in the cluster."""
    groups_claim: NotRequired[str]
    """Claim that has the user's groups."""
    groups_prefix: NotRequired[str]
    """What group names begin with in the cluster."""
    required_claims: NotRequired[dict[str, str]]
    """Claims that a token must have."""


class OkeClusterArgs(TypedDict):
    """What a cluster needs."""

    cluster_name: str
    """Name of the cluster."""
    region: str
    """Region of the cluster."""
    compartment_id: pulumi.Input[str]
    """Compartment of the cluster."""
    kubernetes_version: pulumi.Input[str]
    """Version of the control plane, such as `v1.34.2`."""
    vcn_id: pulumi.Input[str]
    """VCN of the cluster."""
    api_subnet_id: pulumi.Input[str]
    """Subnet of the API endpoint."""
    api_nsg_ids: NotRequired[pulumi.Input[list[str]]]
    """Network security groups of the API endpoint."""
    cluster_id: NotRequired[pulumi.Input[str]]
    """A cluster that is there already; then nothing is created."""
    public_api: NotRequired[bool]
    """Whether the API endpoint has a public address too, which the kubeconfig then uses; false if left out."""
    flannel: NotRequired[bool]
    """Whether pods are in an overlay instead of the VCN; false if left out."""
    pods_cidr: NotRequired[str]
    """Addresses of pods, with flannel only."""
    services_cidr: NotRequired[str]
    """Addresses of Services."""
    load_balancer_subnet_ids: NotRequired[pulumi.Input[list[str]]]
    """Subnets of load balancers that say nothing else."""
    kms_key_id: NotRequired[pulumi.Input[str]]
    """Key that Secrets are encrypted with at rest; Oracle's own if left out. Another key is another cluster."""
    image_policy_key_ids: NotRequired[list[str]]
    """Keys that images must be signed with; all images run if left out."""
    oidc: NotRequired[OidcArgs]
    """Sign in with an identity provider, beside OCI's users."""
    oidc_discovery: NotRequired[bool]
    """Publish the keys that service account tokens are signed with; true if left out."""
    protect: NotRequired[bool]
    """Refuse to delete or replace the cluster; false if left out."""
    kubeconfig: NotRequired[pulumi.Input[str]]
    """Kubeconfig of a cluster that is there already; OCI is asked for it if left out."""
    api_server: NotRequired[str]
    """Address under which the API server is reached from where the update runs, such as a tunnel's
    `https://127.0.0.1:6443`.
    """


class OkeCluster(pulumi.ComponentResource):
    """An enhanced cluster, and the way to its API server without OCI's command line."""

    cluster_id: pulumi.Output[str]
    """OCID of the cluster: the identity of its Kubernetes provider."""
    kubeconfig: pulumi.Output[str]
    """Kubeconfig whose credentials `llmd-oke token` makes when they are needed. It holds none itself."""
    endpoint: pulumi.Output[str]
    """URL of the API server inside the VCN."""
    api_server_host: pulumi.Output[str]
    """Private address of the API server, without port."""
    ca_certificate: pulumi.Output[str]
    """Certificate authority of the API server, as in kubeconfigs (base64)."""
    kubernetes_version: pulumi.Output[str]
    """Version of the control plane."""

    _created: pulumi.Resource | None = None

    def __init__(self, name: str, args: OkeClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:OkeCluster", name, None, opts)
        self.cluster_id = self._cluster_id(name, args)
        self.kubernetes_version = pulumi.Output.from_input(args["kubernetes_version"])
        private = self._access(args, "PRIVATE_ENDPOINT")
        outer = self._access(args, "PUBLIC_ENDPOINT") if args.get("public_api") else private
        self.endpoint = private.apply(lambda access: access.server)
        self.api_server_host = private.apply(lambda access: access.host)
        self.ca_certificate = private.apply(lambda access: access.certificate_authority)
        self.kubeconfig = pulumi.Output.secret(pulumi.Output.all(outer, self.cluster_id).apply(_assemble(args)))
        self.register_outputs(
            {
                "cluster_id": self.cluster_id,
                "kubeconfig": self.kubeconfig,
                "endpoint": self.endpoint,
                "api_server_host": self.api_server_host,
                "ca_certificate": self.ca_certificate,
                "kubernetes_version": self.kubernetes_version,
            }
        )

    def _cluster_id(self, name: str, args: OkeClusterArgs) -> pulumi.Output[str]:
        if "cluster_id" in args:
            return pulumi.Output.from_input(args["cluster_id"])
        made = oci.containerengine.Cluster(
            f"{name}-cluster",
            **_cluster(args),
            freeform_tags=stack_tags(),
            opts=pulumi.ResourceOptions(
                parent=self,
                protect=args.get("protect", False),
                custom_timeouts=CLUSTER,
                ignore_changes=["definedTags"],
            ),
        )
        self._created = made
        return made.id

    @property
    def created(self) -> pulumi.Resource | None:
        """The cluster as a resource; None where it was there already. What is in it goes with it (`deleted_with`)."""
        return self._created

    def _access(self, args: OkeClusterArgs, endpoint: str) -> pulumi.Output[Access]:
        if "kubeconfig" in args:
            return pulumi.Output.from_input(args["kubeconfig"]).apply(kubeconfig.read)
        answer = ask(
            "oci:ContainerEngine/getClusterKubeConfig:getClusterKubeConfig",
            {"clusterId": self.cluster_id, "endpoint": endpoint, "tokenVersion": "2.0.0"},
            pulumi.InvokeOutputOptions(parent=self),
        )
        return answer.apply(lambda found: kubeconfig.read(found["content"]))


def _assemble(args: OkeClusterArgs) -> Any:
    """The kubeconfig, once the API server answers where a tunnel leads to it.

    Raises:
        KitError: the address is none, or the stack's way to sign in to OCI is none that the kit has.
    """
    who, api_server = sign_in(), args.get("api_server")
    if api_server:
        host_and_port(api_server)

    async def assembled(found: Any) -> str:
        access, cluster_id = found
        if api_server and is_update():
            await wait_until_reached(api_server, access)
        return kubeconfig.assemble(access, cluster_id, args["region"], api_server, who)

    return assembled


def _cluster(args: OkeClusterArgs) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "name": args["cluster_name"],
        "type": "ENHANCED_CLUSTER",
        "compartment_id": args["compartment_id"],
        "kubernetes_version": args["kubernetes_version"],
        "vcn_id": args["vcn_id"],
        "kms_key_id": args.get("kms_key_id"),
        "cluster_pod_network_options": [
            {"cni_type": "FLANNEL_OVERLAY" if args.get("flannel") else "OCI_VCN_IP_NATIVE"}
        ],
        "endpoint_config": _given(
            {
                "subnet_id": args["api_subnet_id"],
                "is_public_ip_enabled": args.get("public_api", False),
                "nsg_ids": args.get("api_nsg_ids"),
            }
        ),
        "image_policy_config": _image_policy(args),
        "options": _options(args),
    }
    return _given(arguments)


def _image_policy(args: OkeClusterArgs) -> dict[str, Any] | None:
    if "image_policy_key_ids" not in args:
        return None
    keys = [{"kms_key_id": key} for key in args["image_policy_key_ids"]]
    return {"is_policy_enabled": True, "key_details": keys}


def _options(args: OkeClusterArgs) -> dict[str, Any]:
    network = {"services_cidr": args.get("services_cidr"), "pods_cidr": args.get("pods_cidr")}
    return _given(
        {
            "kubernetes_network_config": _given(network) or None,
            "service_lb_subnet_ids": args.get("load_balancer_subnet_ids"),
            "open_id_connect_discovery": {"is_open_id_connect_discovery_enabled": args.get("oidc_discovery", True)},
            "open_id_connect_token_authentication_config": _oidc(args.get("oidc")),
        }
    )


def _oidc(oidc: OidcArgs | None) -> dict[str, Any] | None:
    if oidc is None:
        return None
    claims = [{"key": key, "value": value} for key, value in sorted(oidc.get("required_claims", {}).items())]
    return _given(
        {
            "is_open_id_connect_auth_enabled": True,
            "issuer_url": oidc["issuer_url"],
            "client_id": oidc["client_id"],
            "username_claim": oidc.get("username_claim"),
            "username_prefix": oidc.get("username_prefix"),
            "groups_claim": oidc.get("groups_claim"),
            "groups_prefix": oidc.get("groups_prefix"),
            "required_claims": claims or None,
        }
    )


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if value is not None}
