"""Components for the OKE cluster and its add-ons, and the kubeconfig that reaches its API server."""

import asyncio
import base64
import json
import ssl
import time
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

import pulumi
import pulumi_oci as oci
from llmd_base.errors import KitError

from llmd_oke.access.addresses import host_and_port
from llmd_oke.access.sign_in import SignIn
from llmd_oke.cluster.network import ClusterNetworkArgs, Network
from llmd_oke.cluster.provider import ADD_ON, CLUSTER, TagArgs, foreign_tags, invoke, sign_in, tag_args
from llmd_oke.config.cluster import KubeconfigAccess, read_kubeconfig
from llmd_oke.objects import given, inputs, is_update, outputs, present

EXEC_API_VERSION = "client.authentication.k8s.io/v1beta1"

TUNNEL_LIMIT_S = 900.0
"""Maximum time in seconds that an update waits for a tunnel to the API server."""

POLL_S = 2.0
ANSWER_S = 10.0

TUNNEL = "Use `llmd-oke up --tunnel`, or keep `llmd-oke tunnel` running in a second shell, on the port of that address."

if TYPE_CHECKING:
    ClusterPlace = Network | ClusterNetworkArgs
else:
    ClusterPlace = ClusterNetworkArgs  # components in other languages pass only these facts


class OidcArgs(TypedDict):
    """OpenID Connect sign-in of users and workflows to the API server."""

    issuer_url: pulumi.Input[str]
    """Issuer URL of the tokens."""
    client_id: pulumi.Input[str]
    """Audience that tokens must name."""
    username_claim: NotRequired[str | None]
    """Claim with the user's name."""
    username_prefix: NotRequired[str | None]
    """Prefix of user names in the cluster."""
    groups_claim: NotRequired[str | None]
    """Claim with the user's groups."""
    groups_prefix: NotRequired[str | None]
    """Prefix of group names in the cluster."""
    required_claims: NotRequired[dict[str, str] | None]
    """Claims and their values that a token must have."""


class OkeClusterArgs(TagArgs):
    """Arguments of an OKE cluster."""

    region: str
    """Region of the cluster."""
    compartment_id: pulumi.Input[str]
    """Compartment of the cluster."""
    kubernetes_version: pulumi.Input[str]
    """Version of the control plane, such as `v1.34.2`."""
    network: ClusterPlace
    """Subnets of the API endpoint and of load balancers: a `Network`, or the OCIDs."""
    cluster_name: NotRequired[str | None]
    """Name of the cluster; the component's name if left out."""
    tenancy_id: NotRequired[pulumi.Input[str] | None]
    """Tenancy of the cluster, for the metadata of self-managed nodes."""
    cluster_id: NotRequired[pulumi.Input[str] | None]
    """OCID of an existing cluster; if given, none is created."""
    public_api: NotRequired[bool | None]
    """Whether the API endpoint also has a public address, which the kubeconfig then uses; false if left out."""
    flannel: NotRequired[bool | None]
    """Whether the pod network is the flannel overlay instead of VCN-native; false if left out."""
    pods_cidr: NotRequired[str | None]
    """CIDR of pods, with flannel only."""
    services_cidr: NotRequired[str | None]
    """CIDR of Services."""
    kms_key_id: NotRequired[pulumi.Input[str] | None]
    """Vault key for the encryption of Secrets at rest; a key that Oracle manages if left out. A change of key replaces
    the cluster."""
    image_policy_key_ids: NotRequired[list[pulumi.Input[str]] | None]
    """Vault keys of which one must have signed each image; images needn't be signed if left out."""
    oidc: NotRequired[OidcArgs | None]
    """Sign-in with tokens of an identity provider, in addition to OCI's users."""
    oidc_discovery: NotRequired[bool | None]
    """Publish the public keys of service account tokens (OIDC discovery); true if left out."""
    protect: NotRequired[bool | None]
    """Refuse to delete or replace the cluster; false if left out."""
    kubeconfig: NotRequired[pulumi.Input[str] | None]
    """Kubeconfig of the existing cluster; requested from OCI if left out."""
    api_server: NotRequired[str | None]
    """URL of the API server for the machine that runs the update, such as a tunnel's `https://127.0.0.1:6443`; the
    cluster's own endpoint if left out.
    """


class NodeClusterArgs(TypedDict):
    """Facts about a cluster that nodes need to join it."""

    cluster_id: pulumi.Input[str]
    """OCID of the cluster."""
    compartment_id: pulumi.Input[str]
    """Compartment of the nodes."""
    api_server_host: pulumi.Input[str]
    """Private address of the API server, without port."""
    ca_certificate: NotRequired[pulumi.Input[str] | None]
    """Certificate authority of the API server, as in kubeconfigs (base64); required for self-managed nodes."""
    tenancy_id: NotRequired[pulumi.Input[str] | None]
    """Tenancy of the nodes; required for self-managed nodes."""


class OkeCluster(pulumi.ComponentResource):
    """Enhanced OKE cluster, and a kubeconfig for it that doesn't need OCI's command line."""

    cluster_id: pulumi.Output[str]
    """OCID of the cluster, which also identifies the cluster to the Kubernetes provider (`clusterIdentifier`)."""
    kubeconfig: pulumi.Output[str]
    """Kubeconfig without credentials: its user's exec plug-in, `llmd-oke token`, makes a token for each use."""
    endpoint: pulumi.Output[str]
    """URL of the API server inside the VCN."""
    api_server_host: pulumi.Output[str]
    """Private address of the API server, without port."""
    ca_certificate: pulumi.Output[str]
    """Certificate authority of the API server, as in kubeconfigs (base64)."""
    kubernetes_version: pulumi.Output[str]
    """Version of the control plane."""

    _created: pulumi.Resource | None = None
    _for_nodes: NodeClusterArgs

    def __init__(self, name: str, args: OkeClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        props = inputs(self, args, "kubeconfig", "api_server")
        place = args["network"]
        network = place.for_cluster if isinstance(place, Network) else place
        super().__init__("llmd-oke:index:OkeCluster", name, {**props, "network": present(network)}, opts)
        cluster_id = args.get("cluster_id")
        if cluster_id is None:
            cluster = self._cluster(name, args, network)
            self._created, cluster_id = cluster, cluster.id
        self.cluster_id = pulumi.Output.from_input(cluster_id)
        self.kubernetes_version = pulumi.Output.from_input(args["kubernetes_version"])
        private = self._access(args, "PRIVATE_ENDPOINT")
        outer = self._access(args, "PUBLIC_ENDPOINT") if args.get("public_api") else private
        self.endpoint = private.apply(lambda access: access.server)
        self.api_server_host = private.apply(lambda access: access.host)
        self.ca_certificate = private.apply(lambda access: access.certificate_authority)
        self.kubeconfig = pulumi.Output.secret(pulumi.Output.all(outer, self.cluster_id).apply(_assembled(args)))
        own = outputs(self)
        known = given({**args, **own}, *NodeClusterArgs.__annotations__)
        self._for_nodes = cast("NodeClusterArgs", known)
        self.register_outputs(own)

    @property
    def created(self) -> pulumi.Resource | None:
        """The declared cluster, for `deleted_with` of the objects in the cluster; None if the
        cluster existed already.
        """
        return self._created

    @property
    def for_nodes(self) -> NodeClusterArgs:
        """The facts that nodes need to join the cluster: the argument `cluster` of pools."""
        return self._for_nodes

    def _cluster(self, name: str, args: OkeClusterArgs, network: ClusterNetworkArgs) -> oci.containerengine.Cluster:
        keys = args.get("image_policy_key_ids")
        signed_by: list[Any] = [{"kms_key_id": key} for key in keys or ()]
        endpoint: dict[str, Any] = {
            "subnet_id": network["api_subnet_id"],
            "is_public_ip_enabled": args.get("public_api") or False,
            "nsg_ids": network.get("api_nsg_ids"),
        }
        ranges = given(args, "services_cidr", "pods_cidr")
        options: dict[str, Any] = {
            "kubernetes_network_config": ranges or None,
            "service_lb_config": tag_args(args),
            "persistent_volume_config": tag_args(args),
            "service_lb_subnet_ids": network.get("load_balancer_subnet_ids"),
            "open_id_connect_discovery": {
                "is_open_id_connect_discovery_enabled": args.get("oidc_discovery") is not False
            },
            "open_id_connect_token_authentication_config": _oidc(args.get("oidc")),
        }
        endpoint_config: Any = present(endpoint)
        cluster_options: Any = present(options)
        return oci.containerengine.Cluster(
            f"{name}-cluster",
            name=args.get("cluster_name") or name,
            type="ENHANCED_CLUSTER",
            **given(args, "compartment_id", "kubernetes_version", "kms_key_id"),
            **given(network, "vcn_id"),
            cluster_pod_network_options=[
                {"cni_type": "FLANNEL_OVERLAY" if args.get("flannel") else "OCI_VCN_IP_NATIVE"}
            ],
            endpoint_config=endpoint_config,
            image_policy_config=None if keys is None else {"is_policy_enabled": True, "key_details": signed_by},
            options=cluster_options,
            **tag_args(args),
            opts=pulumi.ResourceOptions(
                parent=self,
                protect=args.get("protect") or False,
                custom_timeouts=CLUSTER,
                ignore_changes=foreign_tags(args),
            ),
        )

    def _access(self, args: OkeClusterArgs, endpoint: str) -> pulumi.Output[KubeconfigAccess]:
        kubeconfig = args.get("kubeconfig")
        if kubeconfig is not None:
            return pulumi.Output.from_input(kubeconfig).apply(read_kubeconfig)
        answer = invoke(
            "oci:ContainerEngine/getClusterKubeConfig:getClusterKubeConfig",
            {"clusterId": self.cluster_id, "endpoint": endpoint, "tokenVersion": "2.0.0"},
            pulumi.InvokeOutputOptions(parent=self),
        )
        return answer.apply(lambda values: read_kubeconfig(values["content"]))


def _oidc(oidc: OidcArgs | None) -> dict[str, Any] | None:
    if oidc is None:
        return None
    claims = [{"key": key, "value": value} for key, value in sorted((oidc.get("required_claims") or {}).items())]
    settings: dict[str, Any] = {**oidc, "is_open_id_connect_auth_enabled": True, "required_claims": claims or None}
    return present(settings)


def _assembled(args: OkeClusterArgs) -> Any:
    """Return an asynchronous function from (KubeconfigAccess, cluster OCID) to the kubeconfig. With `api_server` the
    function waits, in updates, until the API server answers at that URL.

    Raises:
        KitError: `api_server` isn't a URL, or `llmd-oke token` doesn't support the stack's sign-in method.
    """
    user, api_server = sign_in(), args.get("api_server")
    if api_server:
        host_and_port(api_server)

    async def assembled(values: Any) -> str:
        access, cluster_id = values
        if api_server and is_update():
            await wait_until_reached(api_server, access)
        return assemble(access, cluster_id, args["region"], api_server, user)

    return assembled


def assemble(
    access: KubeconfigAccess, cluster_id: str, region: str, api_server: str | None = None, sign_in: SignIn | None = None
) -> str:
    """Return a kubeconfig for the cluster, as JSON (which is YAML).

    A user with an exec plug-in gets the exec plug-in `llmd-oke token` instead, which signs in by `sign_in`, or with the
    OCI configuration of the kubeconfig's reader if left out; any other user is kept. With `api_server`, such as a
    tunnel's `https://127.0.0.1:6443`, the kubeconfig has that URL, and the server's certificate is still verified for
    the host name of the cluster's own endpoint.
    """
    cluster = {"server": access.server, "certificate-authority-data": access.certificate_authority}
    if api_server:
        cluster |= {"server": api_server, "tls-server-name": access.host}
    user = _token_user(cluster_id, region, sign_in or SignIn()) if "exec" in access.user else access.user
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
            "current-context": "context",
        }
    )


def _token_user(cluster_id: str, region: str, sign_in: SignIn) -> dict[str, Any]:
    return {
        "exec": {
            "apiVersion": EXEC_API_VERSION,
            "command": "llmd-oke",
            "args": ["token", "--cluster-id", cluster_id, "--region", region, *sign_in.words],
            "interactiveMode": "Never",
            "provideClusterInfo": False,
            "installHint": "llmd-oke must be on PATH: it is the command of this kit's package.",
        }
    }


async def wait_until_reached(api_server: str, access: KubeconfigAccess, limit_s: float = TUNNEL_LIMIT_S) -> None:
    """Wait until the cluster's API server answers at `api_server`, the local end of a tunnel.

    Pulumi's Kubernetes provider tries to reach the API server once, when the provider is configured, and treats the
    cluster as unreachable from then on if that fails (pulumi-kubernetes, `Configure` in provider.go). So the kubeconfig
    of a new cluster must not be released before the tunnel is open.

    Raises:
        KitError: no server answers within `limit_s` seconds, another server answers, `api_server` isn't a URL, or the
            kubeconfig's certificate authority isn't valid.
    """
    authority = _authority(access)
    ends_at_s, logged = time.monotonic() + limit_s, False
    while cause := await _obstacle(api_server, access.host, authority):
        if time.monotonic() >= ends_at_s:
            raise KitError(f"The API server does not answer at {api_server} after {limit_s:g} s: {cause}.", TUNNEL)
        if not logged:
            pulumi.log.info(f"waiting for the API server at {api_server}: {cause}. {TUNNEL}")
            logged = True
        await asyncio.sleep(POLL_S)


async def _obstacle(api_server: str, name: str, authority: ssl.SSLContext) -> str:
    """Return why no TLS connection to the API server succeeds; empty if one does.

    Raises:
        KitError: the server's certificate isn't signed by the cluster's authority.
    """
    host, port = host_and_port(api_server)
    try:
        opening = asyncio.open_connection(host, port, ssl=authority, server_hostname=name)
        _, writer = await asyncio.wait_for(opening, ANSWER_S)
        writer.close()
    except ssl.SSLCertVerificationError as error:
        raise KitError(
            f"What answers at {api_server} is not this cluster's API server: {error.verify_message}.",
            "Is a tunnel to another cluster open on that port?",
        ) from error
    except ConnectionRefusedError:
        return "connection refused"
    except ssl.SSLError as error:  # its text has a line number of Python's own source
        return f"TLS failed ({error.reason})"
    except (OSError, TimeoutError) as error:
        return str(error) or "no answer"
    return ""


def _authority(access: KubeconfigAccess) -> ssl.SSLContext:
    """Return a TLS context that trusts the cluster's certificate authority alone and doesn't verify host names, which
    clients with the kubeconfig do.

    Raises:
        KitError: the kubeconfig's certificate authority isn't valid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=base64.b64decode(access.certificate_authority).decode())
    except (ValueError, ssl.SSLError) as error:
        remedy = "A tunnel can't be told from another one without it (certificate-authority-data)."
        raise KitError("The cluster's kubeconfig has no certificate authority that can be read.", remedy) from error
    return context


class AddOnArgs(TypedDict):
    """An add-on that OKE installs and keeps up to date."""

    name: str
    """Name of the add-on in OKE's catalogue, such as `NodeProblemDetector`."""
    version: NotRequired[pulumi.Input[str] | None]
    """Version of the add-on; OKE's choice if left out."""
    configurations: NotRequired[dict[str, pulumi.Input[str]] | None]
    """Values of the add-on's configuration keys, each plain text or JSON."""


class AddOnsArgs(TypedDict):
    """Arguments of a cluster's optional add-ons."""

    cluster_id: pulumi.Input[str]
    """OCID of the cluster."""
    add_ons: list[AddOnArgs]
    """The add-ons, in the order of installation: OKE refuses some while add-ons that they depend on are missing."""


class AddOns(pulumi.ComponentResource):
    """Add-ons of a cluster, installed one after the other. Their pods need nodes: declare them after the system pool.

    With the cluster as `deleted_with`, its deletion removes the add-ons too; otherwise they are removed in reverse
    order.
    """

    names: pulumi.Output[list[str]]
    """Names of the add-ons that are installed."""

    def __init__(self, name: str, args: AddOnsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:AddOns", name, inputs(self, args), opts)
        deleted_with = opts.deleted_with if opts else None
        add_ons: list[oci.containerengine.Addon] = []
        for add_on in args["add_ons"]:
            child = pulumi.ResourceOptions(
                parent=self, custom_timeouts=ADD_ON, depends_on=add_ons[-1:], deleted_with=deleted_with
            )
            configurations = add_on.get("configurations") or {}
            settings: Any = [{"key": key, "value": configurations[key]} for key in sorted(configurations)]
            resource = oci.containerengine.Addon(
                f"{name}-{add_on['name'].lower()}",
                addon_name=add_on["name"],
                **given(args, "cluster_id"),
                **given(add_on, "version"),
                configurations=settings or None,
                override_existing=True,
                remove_addon_resources_on_delete=True,
                opts=child,
            )
            add_ons.append(resource)
        self.names = pulumi.Output.all(*(add_on.addon_name for add_on in add_ons)).apply(list)
        self.register_outputs(outputs(self))
