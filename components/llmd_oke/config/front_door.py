"""Front door of a stack: one address for all models, with TLS, authentication, limits for clients, and weights of units
(each a router and its servers).
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from llmd_oke.config.base import ConfigPart, DnsLabel, HostName, HttpsUrl, Items, Ocid, is_absent, matching
from llmd_oke.config.flow_control import Priority

Exposure = Literal["cluster", "internal", "public"]
CacheIsolation = Literal["none", "client"]

RequestsPerMinute = Annotated[int, Field(ge=1, le=1_000_000)]
TokensPerMinute = Annotated[int, Field(ge=2, le=1_000_000_000)]
ConcurrentRequests = Annotated[int, Field(ge=2, le=100_000)]
Weight = Annotated[int, Field(ge=0, le=100)]

CLIENT_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
"""Pattern of client names, which appear in HTTP headers and access logs."""

ClientName = Annotated[
    str, matching(CLIENT_PATTERN, "at most 63 letters, digits, dashes, dots and underscores", max_length=63)
]


class ConfigCertificate(ConfigPart):
    """TLS certificate from secrets of the stack's config."""

    kind: Literal["config"]
    """`config`: certificate chain and private key (PEM) are the secrets `llmd-oke:frontDoorCertificate.chain` and
    `llmd-oke:frontDoorCertificate.key`, set with `pulumi config set --secret --path`.
    """


class SecretCertificate(ConfigPart):
    """TLS certificate from a Secret that another tool creates and renews."""

    kind: Literal["secret"]
    """`secret`: a Secret of type kubernetes.io/tls in the models' namespace."""

    name: DnsLabel
    """Name of the Secret."""


class IssuerCertificate(ConfigPart):
    """TLS certificate that cert-manager, which must be installed in the cluster, requests and renews."""

    kind: Literal["issuer"]
    """`issuer`: an issuer of cert-manager."""

    name: DnsLabel
    """Name of the issuer."""

    scope: Literal["Issuer", "ClusterIssuer"] = "ClusterIssuer"
    """Kind of the issuer: `ClusterIssuer`, or an `Issuer` in the models' namespace."""


Tls = Annotated[ConfigCertificate | SecretCertificate | IssuerCertificate, Field(discriminator="kind")]


class ApiKeys(ConfigPart):
    """Authentication by API key: each client sends its own as `Authorization: Bearer KEY`."""

    kind: Literal["api-keys"]
    """`api-keys`: the keys are the secrets `llmd-oke:frontDoorKeys.CLIENT`, one for each client, set with `pulumi
    config set --secret --path`. `llmd-oke:frontDoorNextKeys.CLIENT` is a second key of a client that changes to it.
    """


JwksUri = Annotated[
    str,
    matching(
        r"^https://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/[!-~]*$",
        "an address that begins with https:// and a host name, and has a path",
        max_length=2000,
    ),
]


class Jwt(ConfigPart):
    """Authentication by a token (JWT) that an identity provider has signed, sent as `Authorization: Bearer TOKEN`."""

    kind: Literal["jwt"]
    """`jwt`: the provider's public keys are fetched from `jwksUri`, or are the config value `llmd-oke:frontDoorKeySet`,
    a JSON Web Key Set.
    """

    issuer: HttpsUrl
    """Issuer that tokens must have (`iss`)."""

    jwks_uri: Annotated[JwksUri | None, Field(exclude_if=is_absent)] = None
    """URL of the provider's JSON Web Key Set, which each Envoy of the front door fetches every five minutes. Envoy
    verifies the URL's TLS certificate with the certificate authorities in its image.
    """

    audiences: Annotated[Items[str], Field(min_length=1)]
    """Accepted audiences; a token must have at least one of them (`aud`)."""


Authentication = Annotated[ApiKeys | Jwt, Field(discriminator="kind")]


class ClientLimit(ConfigPart):
    """Limits for one client. A limit that is left out is that for all clients."""

    requests_per_minute: Annotated[RequestsPerMinute | None, Field(exclude_if=is_absent)] = None
    """Maximum number of requests per minute."""

    tokens_per_minute: Annotated[TokensPerMinute | None, Field(exclude_if=is_absent)] = None
    """Maximum number of tokens per minute."""

    concurrent_requests: Annotated[ConcurrentRequests | None, Field(exclude_if=is_absent)] = None
    """Maximum number of concurrent requests to each model."""

    models: Annotated[Items[DnsLabel] | None, Field(exclude_if=is_absent)] = None
    """Models that the client may use, by the names of their objects."""


ClientLimitOrNumber = Annotated[
    ClientLimit,
    BeforeValidator(
        lambda value: {"requestsPerMinute": value} if type(value) is int else value,
        json_schema_input_type=RequestsPerMinute | ClientLimit,
    ),
]
"""Limits for one client; a bare number is `requestsPerMinute`."""


class Limits(ConfigPart):
    """Limits for each client, over all models together. Each of the front door's two Envoy replicas enforces half of
    each limit.
    """

    requests_per_minute: Annotated[RequestsPerMinute | None, Field(exclude_if=is_absent)] = None
    """Maximum number of requests per minute of one client; unlimited if left out."""

    tokens_per_minute: Annotated[TokensPerMinute | None, Field(exclude_if=is_absent)] = None
    """Maximum number of tokens per minute of one client; unlimited if left out. Tokens are estimated when a request
    arrives: a quarter of the body's bytes, plus the tokens that the request lets servers generate (`max_tokens`, or the
    model's maximum sequence length if the request has none, for each prompt and each of `n`). Tokens that the answer
    doesn't use are not credited back.
    """

    concurrent_requests: Annotated[ConcurrentRequests | None, Field(exclude_if=is_absent)] = None
    """Maximum number of concurrent requests of one client to each model; unlimited if left out. Each of the two threads
    of each of the front door's two Envoy replicas enforces a quarter, which is also the limit over a single connection;
    a limit in `clients` is enforced in full by each replica.
    """

    models: Annotated[Items[DnsLabel] | None, Field(exclude_if=is_absent)] = None
    """Models that clients may use, by the names of their objects; all if left out. With an empty list, only clients
    with `models` of their own in `clients` may use any.
    """

    clients: dict[ClientName, ClientLimitOrNumber] = Field(default_factory=dict[str, ClientLimit])
    """Different limits for single clients, by the name of their key or the subject (`sub`) of their token. A bare
    number is `requestsPerMinute`.
    """


class LoadBalancer(ConfigPart):
    """OCI load balancer of the front door. A setting that is left out is taken from the stack's own network, or else
    from the cluster.
    """

    subnet_id: Ocid | None = None
    """Subnet of the load balancer."""

    security_group_ids: Items[Ocid] = ()
    """Network security groups of the load balancer."""


class FrontDoorConfig(ConfigPart):
    """One address for all models of the stack.

    A request is routed to the model named by its host (`hosts`), its path (`/models/NAME/v1/…`, where NAME is the name
    of the model's objects) or the `model` of its body.
    """

    exposure: Exposure = "cluster"
    """Clients that can reach the front door. `cluster`: pods. `internal`: hosts of the VCN and connected networks,
    through an OCI network load balancer. `public`: also the internet; needs `tls` and `authentication`.
    """

    host: HostName | None = None
    """DNS name of the front door, whose record you create; needed with `tls`."""

    tls: Annotated[Tls | None, Field(exclude_if=is_absent)] = None
    """TLS certificate; plain HTTP if left out. A renewed certificate is loaded without a restart."""

    authentication: Annotated[Authentication | None, Field(exclude_if=is_absent)] = None
    """Authentication of clients; if left out, everybody who can reach the front door may send requests."""

    unchecked_pods: Annotated[Literal["accepted"] | None, Field(exclude_if=is_absent)] = None
    """`accepted`: pods of the cluster are trusted to send requests to the models, and to read which client sends which
    requests, without a key. Needed with `authentication` where nothing enforces NetworkPolicies
    (`networkPolicies.engine: none`).
    """

    limits: Annotated[Limits | None, Field(exclude_if=is_absent)] = None
    """Limits for each client; only with `authentication`."""

    priorities: Annotated[dict[ClientName, Priority], Field(exclude_if=lambda clients: not clients)] = Field(
        default_factory=dict[ClientName, Priority]
    )
    """Priority of single clients, by the name of their key or the subject (`sub`) of their token; all others have 0.
    While servers are saturated, requests with higher priority go first, and those below 0 wait for all others. Only
    with `authentication`, and with `router.flowControl` of all models.
    """

    cache_isolation: CacheIsolation = "none"
    """Isolation of the prefix cache between clients. `none`: all clients share the prefix cache, so that one client can
    tell from the time to first token whether another sent a prompt with the same beginning. `client`: each client has
    its own, by a `cache_salt` that the front door adds to requests; needs `authentication` and the secret
    `llmd-oke:frontDoorCacheSecret`.
    """

    hosts: dict[HostName, DnsLabel] = Field(default_factory=dict[str, str])
    """Additional DNS names, each of which routes to one model (by the name of its objects)."""

    weights: dict[DnsLabel, Weight] = Field(default_factory=dict[str, int])
    """Percentage of requests for each unit that serves a model, among requests that name the model in the body. Units
    are copies, and other entries of `models` with the same model; keys are their names: `gpt-oss-120b`, or
    `gpt-oss-120b-0` and so on with copies. The weights of each model add up to 100; without weights, requests go to the
    least loaded unit. Weights can change while requests are in flight.
    """

    load_balancer: LoadBalancer = LoadBalancer()
    """Load balancer of an `internal` or `public` front door."""
