"""Gateway (Gateway API) for models with `router.mode: gateway`, and the route of each model."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import ConfigPart, DnsLabel, HostName, Items, is_absent, matching

HeaderName = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9][-A-Za-z0-9]*$",
        "the name of an HTTP header: letters, digits and dashes",
        max_length=256,
    ),
]
HeaderValue = Annotated[
    str, matching(r"^[!-~]([ -~]*[!-~])?$", "printable ASCII without blanks at its ends", max_length=4096)
]
Port = Annotated[int, Field(ge=1, le=65535)]
UncheckedRequests = Annotated[Literal["accepted"] | None, Field(exclude_if=is_absent)]


class GatewayService(ConfigPart):
    """Service in front of a Gateway's pods."""

    name: DnsLabel
    """Name of the Service."""

    namespace: DnsLabel | None = None
    """Namespace of the Service and of the pods; the provider's default if left out."""


class ExistingGateway(ConfigPart):
    """Existing Gateway that this stack doesn't manage. It must accept routes from the models' namespace."""

    mode: Literal["existing"]
    """`existing`: a Gateway that already exists in the cluster."""

    provider: str
    """Implementation of the Gateway: agentgateway, istio or envoy-gateway."""

    name: DnsLabel
    """Name of the Gateway."""

    namespace: DnsLabel | None = None
    """Namespace of the Gateway; that of the models if left out."""

    listener: DnsLabel | None = None
    """Listener for clients; if left out, any listener that accepts the routes."""

    cluster_listener: DnsLabel | None = None
    """Listener on port 80 without TLS, to which the models' own Services route pods of the cluster and benchmarks; if
    left out, any listener that accepts the routes.
    """

    service: Annotated[GatewayService | None, Field(exclude_if=is_absent)] = None
    """Service in front of the Gateway's pods; if left out, the one that the provider creates."""

    unchecked_requests: UncheckedRequests = None
    """`accepted`: everybody who can reach the Gateway is trusted not to send the fields and headers that are reserved
    for the router. Needed with providers that can't reject them at an existing Gateway: agentgateway and istio.
    """


class CreatedGateway(ConfigPart):
    """Gateway that this stack creates in the models' namespace. Its implementation must be installed in the cluster."""

    mode: Literal["create"]
    """`create`: this stack creates the Gateway."""

    provider: str
    """Implementation of the Gateway: agentgateway, istio or envoy-gateway."""

    name: DnsLabel = "inference-gateway"
    """Name of the Gateway."""

    class_name: DnsLabel | None = None
    """GatewayClass; if left out, the one in the provider's documentation."""

    exposure: Literal["cluster", "internal"] = "cluster"
    """Clients that can reach the Gateway. `cluster`: pods. `internal`: hosts of the VCN and connected networks, through
    an OCI network load balancer.
    """

    host: HostName | None = None
    """DNS name of the Gateway, whose record you create; needed with `tls`."""

    port: Port | None = None
    """Port for clients; if left out 443 with `tls`, otherwise 80."""

    tls: Annotated[DnsLabel | None, Field(exclude_if=is_absent)] = None
    """Name of a Secret of type kubernetes.io/tls in the models' namespace; plain HTTP if left out. The models' own
    Services use port 80, which has no TLS.
    """

    unchecked_requests: UncheckedRequests = None
    """`accepted`: everybody who can reach the Gateway is trusted not to send the fields and headers that are reserved
    for the router. Needed with a provider that can't reject them: agentgateway.
    """


Gateway = Annotated[ExistingGateway | CreatedGateway, Field(discriminator="mode")]


class Route(ConfigPart):
    """Conditions for requests at the Gateway that are routed to this model. All of them must be met."""

    hosts: Items[HostName] = ()
    """Host names; any if left out."""

    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict[str, str])
    """Required HTTP headers with their values; none if left out."""

    path: Annotated[str, matching(r"^/[-A-Za-z0-9_./]*$", "a path such as /v1", max_length=1024)] = "/v1"
    """Prefix of the path. It isn't removed before the request reaches servers, and must be a prefix of their API's
    paths.
    """

    timeout_s: Annotated[int, Field(ge=0, le=86_400)] = 300
    """Maximum duration of a whole request in seconds, streamed answers included; 0 for no limit."""
