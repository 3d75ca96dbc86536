"""The Gateway (Gateway API) that models with `router.mode: gateway` are behind, and the route of each."""

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
    """The Service before a Gateway's pods."""

    name: DnsLabel
    """Its name."""

    namespace: DnsLabel | None = None
    """Its namespace, and that of the pods; where the provider has them if left out."""


class ExistingGateway(ConfigPart):
    """A Gateway that somebody else has made. It must take routes from the namespace of the models."""

    mode: Literal["existing"]
    """`existing`: a Gateway of the cluster."""

    provider: str
    """What implements it: agentgateway, istio or envoy-gateway."""

    name: DnsLabel
    """Name of the Gateway."""

    namespace: DnsLabel | None = None
    """Its namespace; that of the models if left out."""

    listener: DnsLabel | None = None
    """Listener that clients come to; any that takes the routes if left out."""

    cluster_listener: DnsLabel | None = None
    """Listener without TLS on port 80, to which the models' own Services lead pods of the cluster and benchmarks; any
    that takes the routes if left out."""

    service: Annotated[GatewayService | None, Field(exclude_if=is_absent)] = None
    """The Service before its pods; the one that the provider makes if left out."""

    unchecked_requests: UncheckedRequests = None
    """`accepted`: whoever reaches the Gateway is trusted with fields and headers that are the router's alone.
    Needed with providers that refuse none at a Gateway that is there: agentgateway and istio."""


class CreatedGateway(ConfigPart):
    """A Gateway of this stack's own, in the namespace of the models. Its implementation must be in the cluster."""

    mode: Literal["create"]
    """`create`: a Gateway of this stack."""

    provider: str
    """What implements it: agentgateway, istio or envoy-gateway."""

    name: DnsLabel = "inference-gateway"
    """Name of the Gateway."""

    class_name: DnsLabel | None = None
    """Its GatewayClass; the one that the provider's own documents have if left out."""

    exposure: Literal["cluster", "internal"] = "cluster"
    """Who reaches it. `cluster`: pods. `internal`: the VCN and what is joined to it, through a network load balancer of
    OCI."""

    host: HostName | None = None
    """Its name in the DNS, which you point to it; needed with `tls`."""

    port: Port | None = None
    """Port for clients; 443 with `tls`, otherwise 80, if left out."""

    tls: Annotated[DnsLabel | None, Field(exclude_if=is_absent)] = None
    """A Secret of type kubernetes.io/tls in the namespace of the models; plain HTTP if left out. The models' own
    Services lead to port 80, which has no TLS."""

    unchecked_requests: UncheckedRequests = None
    """`accepted`: whoever reaches the Gateway is trusted with fields and headers that are the router's alone.
    Needed with a provider that refuses none: agentgateway."""


Gateway = Annotated[ExistingGateway | CreatedGateway, Field(discriminator="mode")]


class Route(ConfigPart):
    """Requests at the Gateway that are for this model. All conditions must be met."""

    hosts: Items[HostName] = ()
    """Host names; any if left out."""

    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict[str, str])
    """Headers with their values; none if left out."""

    path: Annotated[str, matching(r"^/[-A-Za-z0-9_./]*$", "a path such as /v1", max_length=1024)] = "/v1"
    """What the path begins with. It reaches servers as it is, so that it is part of their API's."""

    timeout_s: Annotated[int, Field(ge=0, le=86_400)] = 300
    """Limit of a whole request in seconds, streamed answers too; 0 for none."""
