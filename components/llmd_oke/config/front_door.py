"""The front door of a stack: one address for all its models, who may ask, how much, and what share a unit gets."""

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
"""Names of clients; they stand in headers and access logs."""

ClientName = Annotated[
    str, matching(CLIENT_PATTERN, "at most 63 letters, digits, dashes, dots and underscores", max_length=63)
]


class ConfigCertificate(ConfigPart):
    """Certificate that is a secret of the stack's config."""

    kind: Literal["config"]
    """`config`: certificate chain and private key (PEM) are `llmd-oke:frontDoorCertificate.chain` and
    `llmd-oke:frontDoorCertificate.key`, set with `pulumi config set --secret --path`."""


class SecretCertificate(ConfigPart):
    """Certificate in a Secret that something else makes and renews."""

    kind: Literal["secret"]
    """`secret`: a Secret of type kubernetes.io/tls in the namespace of the models."""

    name: DnsLabel
    """Name of the Secret."""


class IssuerCertificate(ConfigPart):
    """cert-manager, which must be in the cluster, gets and renews the certificate."""

    kind: Literal["issuer"]
    """`issuer`: an issuer of cert-manager."""

    name: DnsLabel
    """Name of the issuer."""

    scope: Literal["Issuer", "ClusterIssuer"] = "ClusterIssuer"
    """`ClusterIssuer`, or an `Issuer` of the namespace of the models."""


Tls = Annotated[ConfigCertificate | SecretCertificate | IssuerCertificate, Field(discriminator="kind")]


class ApiKeys(ConfigPart):
    """Clients send a key of their own: `Authorization: Bearer KEY`."""

    kind: Literal["api-keys"]
    """`api-keys`: the secrets `llmd-oke:frontDoorKeys.CLIENT`, one for each client, set with
    `pulumi config set --secret --path`."""


JwksUri = Annotated[
    str,
    matching(
        r"^https://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/[!-~]*$",
        "an address that begins with https:// and a host name, and has a path",
        max_length=2000,
    ),
]


class Jwt(ConfigPart):
    """Clients send a token (JWT) that an identity provider has signed: `Authorization: Bearer TOKEN`."""

    kind: Literal["jwt"]
    """`jwt`: the public keys of the provider are fetched from `jwksUri`, or are `llmd-oke:frontDoorKeySet`, a JSON Web
    Key Set."""

    issuer: HttpsUrl
    """Issuer that tokens must name (`iss`)."""

    jwks_uri: Annotated[JwksUri | None, Field(exclude_if=is_absent)] = None
    """Where the provider publishes its keys: each Envoy fetches them every five minutes. Envoy trusts the authorities
    of its image."""

    audiences: Annotated[Items[str], Field(min_length=1)]
    """Audiences of which tokens must name one (`aud`)."""


Authentication = Annotated[ApiKeys | Jwt, Field(discriminator="kind")]


class ClientLimit(ConfigPart):
    """Limits of one client. What is left out is as for all clients."""

    requests_per_minute: Annotated[RequestsPerMinute | None, Field(exclude_if=is_absent)] = None
    """Requests in a minute."""

    tokens_per_minute: Annotated[TokensPerMinute | None, Field(exclude_if=is_absent)] = None
    """Tokens in a minute."""

    concurrent_requests: Annotated[ConcurrentRequests | None, Field(exclude_if=is_absent)] = None
    """Requests under way at a time, at each model."""

    models: Annotated[Items[DnsLabel] | None, Field(exclude_if=is_absent)] = None
    """Models that it may use, by the names of their objects."""


def _from_number(value: object) -> object:
    number = isinstance(value, int) and not isinstance(value, bool)
    return {"requestsPerMinute": value} if number else value


ClientLimitOrNumber = Annotated[
    ClientLimit, BeforeValidator(_from_number, json_schema_input_type=RequestsPerMinute | ClientLimit)
]
"""A number is `requestsPerMinute`."""


class Limits(ConfigPart):
    """Limits of each client for all models together. Each of the two Envoys allows half of it."""

    requests_per_minute: Annotated[RequestsPerMinute | None, Field(exclude_if=is_absent)] = None
    """Requests of one client in a minute; any number if left out."""

    tokens_per_minute: Annotated[TokensPerMinute | None, Field(exclude_if=is_absent)] = None
    """Tokens that requests of one client may take in a minute, counted as they come: a quarter of the body's bytes, and
    the tokens that it lets servers generate (`max_tokens`, or the model's longest sequence where it says none, for each
    prompt and each of `n`). What an answer doesn't use is not given back."""

    concurrent_requests: Annotated[ConcurrentRequests | None, Field(exclude_if=is_absent)] = None
    """Requests of one client under way at a time, at each model; any number if left out. Each of the two threads of an
    Envoy allows a quarter of it, which is all that a client gets by one connection; a number in `clients` is counted by
    the Envoy as a whole."""

    models: Annotated[Items[DnsLabel] | None, Field(exclude_if=is_absent)] = None
    """Models that clients may use, by the names of their objects; all if left out. With an empty list only `clients`
    with models of their own may use any."""

    clients: dict[ClientName, ClientLimitOrNumber] = Field(default_factory=dict[str, ClientLimit])
    """Other limits for single clients, by the name of their key or the subject (`sub`) of their token. A number is
    `requestsPerMinute`."""


class LoadBalancer(ConfigPart):
    """Place of OCI's load balancer. What is left out is that of the stack's own network, or else the cluster's."""

    subnet_id: Ocid | None = None
    """Subnet."""

    security_group_ids: Items[Ocid] = ()
    """Network security groups."""


class FrontDoorConfig(ConfigPart):
    """One address for all models of the stack.

    A request goes to the model that its host (`hosts`), its path (`/models/NAME/v1/…`, where NAME is that of the
    model's objects) or the `model` of its body names.
    """

    exposure: Exposure = "cluster"
    """Who reaches it. `cluster`: pods. `internal`: the VCN and what is joined to it, through a network load balancer of
    OCI. `public`: the internet too; it needs `tls` and `authentication`."""

    host: HostName | None = None
    """Its name in the DNS, which you point to it; needed with `tls`."""

    tls: Annotated[Tls | None, Field(exclude_if=is_absent)] = None
    """Its certificate; plain HTTP if left out. A renewed one is taken without a restart."""

    authentication: Annotated[Authentication | None, Field(exclude_if=is_absent)] = None
    """Who may ask; everybody who reaches it if left out."""

    unchecked_pods: Annotated[Literal["accepted"] | None, Field(exclude_if=is_absent)] = None
    """`accepted`: pods of the cluster are trusted to ask the models, and to read who asks for what, without a key.
    Needed with `authentication` where nothing enforces NetworkPolicies (`networkPolicies.engine: none`)."""

    limits: Annotated[Limits | None, Field(exclude_if=is_absent)] = None
    """How much each client may ask; only with `authentication`."""

    priorities: Annotated[dict[ClientName, Priority], Field(exclude_if=lambda clients: not clients)] = Field(
        default_factory=dict[ClientName, Priority]
    )
    """Priority of single clients, by the name of their key or the subject (`sub`) of their token; others have 0. While
    servers are saturated, requests of higher priority go first, and those below 0 wait for all others. Only with
    `authentication`, and with `router.flowControl` of all models."""

    cache_isolation: CacheIsolation = "none"
    """Whose prompts share prefix cache. `none`: those of all clients, so that the time to the first token tells one
    client whether another asked for the same beginning. `client`: those of one client alone, by a `cache_salt` that the
    front door writes into requests; it needs `authentication` and the secret `llmd-oke:frontDoorCacheSecret`."""

    hosts: dict[HostName, DnsLabel] = Field(default_factory=dict[str, str])
    """Further names in the DNS, each of which leads to one model (by the name of its objects)."""

    weights: dict[DnsLabel, Weight] = Field(default_factory=dict[str, int])
    """Percent of the requests that name a model by the body, for each unit that serves it (copies, and other entries of
    `models` with the same model), by the names of the units: `gpt-oss-120b`, or `gpt-oss-120b-0` and so on where there
    are copies. They add up to 100 for each model; a model without weights is spread by least load. They move while
    requests flow."""

    load_balancer: LoadBalancer = LoadBalancer()
    """The load balancer of an `internal` or `public` front door."""
