"""Rules of policies: functions that find violations in a declared resource, or in a whole stack."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from llmd_base.documents import leaves

from llmd_oke.operations.previews import PROVIDERS, short_name
from llmd_oke.policies.organisation import Organisation, PolicyName
from llmd_oke.serving import labels
from llmd_oke.serving.stack_front_door import NAME

CONFIG = "pulumi:config"
"""Type token of the pseudo-resource that stands for a stack's settings other than `llmd-oke:stack`."""

CLUSTER = "oci:ContainerEngine/cluster:Cluster"
HTTPS_PORT = 443
PROVIDER = f"{PROVIDERS}oci"

_PROTECTED = {
    CLUSTER: ("cluster", "cluster.protect"),
    "oci:ContainerEngine/nodePool:NodePool": ("pools", "cluster.protect"),
    "oci:Core/clusterNetwork:ClusterNetwork": ("pools", "cluster.protect"),
    "oci:Core/vcn:Vcn": ("network", "cluster.network.protect"),
    "oci:FileStorage/fileSystem:FileSystem": ("file-systems", "storage.modelCache"),
    "oci:Lustre/fileStorageLustreFileSystem:FileStorageLustreFileSystem": ("file-systems", "storage.modelCache"),
}

_SECRET_SETTINGS = frozenset(
    {
        *("huggingFaceToken", "modelSourceUrl", "imageLinks", "frontDoorKeys", "frontDoorNextKeys"),
        *("frontDoorKeySet", "frontDoorCertificate", "frontDoorCacheSecret"),
    }
    | {"privateKey", "privateKeyPassword"}
)
"""Settings of a stack that are secret, without their namespace."""

_SECRETS = {
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a token of Hugging Face": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "a token of GitHub": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,})"),
    "an access key of AWS": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a JSON web token": re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    "a pre-authenticated request of Object Storage": re.compile(r"objectstorage\.[\w.-]+/p/[\w-]{20,}"),
}
"""Forms of secrets by what they are. Keys of OCI are private keys."""

_INTERNAL = (
    "oci-network-load-balancer.oraclecloud.com/internal",
    "service.beta.kubernetes.io/oci-load-balancer-internal",
)
_CONTAINERS = ("containers", "initContainers")


@dataclass(frozen=True)
class PolicyResource:
    """Declared resource. `properties` lack values that are unknown until the update; `secrets` has the paths of secret
    values, such as `stringData.token`.
    """

    type: str
    name: str
    properties: Mapping[str, Any]
    protect: bool = False
    secrets: frozenset[str] = field(default_factory=frozenset[str])

    @property
    def short_name(self) -> str:
        """Name for messages: `Cluster oke-cluster`."""
        return short_name(self.type, self.name)


@dataclass(frozen=True)
class StackFacts:
    """Facts about a stack in addition to its resources: its list price for a month in US dollars, the parts whose price
    is unknown, and whether clients must authenticate at its front door.
    """

    monthly_usd: float
    without_price: tuple[str, ...] = ()
    signed_in: bool = False


@dataclass(frozen=True)
class Violation:
    """Violation of a policy: the resource, what was found, what would be accepted, and the key of the stack file that
    decides it (empty if none does).
    """

    policy: PolicyName
    resource: str
    found: str
    accepted: str
    key: str = ""

    def __str__(self) -> str:
        where = f" ({self.key} in the stack file)" if self.key else ""
        return f"{self.resource}: {self.found}; accepted: {self.accepted}{where}"


ResourceRule = Callable[[PolicyResource, Organisation], Iterator[Violation]]
StackRule = Callable[[Sequence[PolicyResource], Organisation, StackFacts | None], Iterator[Violation]]


def public_endpoints(resource: PolicyResource, organisation: Organisation) -> Iterator[Violation]:
    """Find public API endpoints of clusters, and public load balancers without TLS."""
    properties = resource.properties
    if resource.type == CLUSTER and not organisation.public_api:
        if _at(properties, "endpointConfig", "isPublicIpEnabled"):
            found = "its API endpoint has an address of the internet"
            yield Violation("public-endpoints", resource.short_name, found, "private", "cluster.apiEndpoint.access")
    elif properties.get("kind") == "Service" and _is_public(properties):
        listed: list[Mapping[str, Any]] = _at(properties, "spec", "ports") or []
        ports = [port.get("port") for port in listed]
        if plain := [str(port) for port in ports if port != HTTPS_PORT]:
            found = f"its public load balancer has no TLS at port {', '.join(plain)}"
            accepted, key = "port 443 with TLS, or an internal load balancer", _front_door_key(properties, "tls")
            yield Violation("public-endpoints", resource.short_name, found, accepted, key)
    elif properties.get("kind") == "Gateway":
        asked: Mapping[str, object] = _at(properties, "spec", "infrastructure", "annotations") or {}
        is_public = any(str(asked.get(key)).lower() == "false" for key in _INTERNAL)
        listeners: list[Mapping[str, Any]] = _at(properties, "spec", "listeners") or []
        for name in [item.get("name") for item in listeners if is_public and item.get("protocol") == "HTTP"]:
            found = f"its listener {name} behind a public load balancer has no TLS"
            accepted = "listeners with TLS, or an internal load balancer"
            yield Violation("public-endpoints", resource.short_name, found, accepted, "gateway")


def required_tags(resource: PolicyResource, organisation: Organisation) -> Iterator[Violation]:
    """Find resources of OCI that lack a required tag. A resource without any tags is assumed to be of a type that can't
    have tags.
    """
    freeform: Mapping[str, object] = resource.properties.get("freeformTags") or {}
    defined: Mapping[str, object] = resource.properties.get("definedTags") or {}
    if not resource.type.startswith("oci:") or not (freeform or defined):
        return
    for tag in organisation.required_tags:
        if tag not in freeform and tag not in defined:
            key = "tags.defined" if "." in tag else "tags.freeform"
            yield Violation("required-tags", resource.short_name, f"it has no tag {tag}", f"the tag {tag}", key)


def plain_secrets(resource: PolicyResource, organisation: Organisation) -> Iterator[Violation]:
    """Find values that look like keys and tokens and aren't secret, and settings that must be and aren't. No message
    has the value.
    """
    del organisation
    for path, text in leaves(resource.properties):
        secret = any(path == name or path.startswith((f"{name}.", f"{name}[")) for name in resource.secrets)
        if secret or not isinstance(text, str):
            continue
        kind = next((kind for kind, form in _SECRETS.items() if form.search(text)), None)
        if kind is None and resource.type == CONFIG and path.rpartition(":")[2] in _SECRET_SETTINGS:
            kind = "a setting that must be secret"
        if kind is not None:
            found = f"{path} has {kind} in plain text"
            yield Violation("plain-secrets", resource.short_name, found, "a secret (pulumi config set --secret)")


def protection(resource: PolicyResource, organisation: Organisation) -> Iterator[Violation]:
    """Find clusters, pools, networks and file systems that an update may delete."""
    kind, key = _PROTECTED.get(resource.type, ("", ""))
    if kind in organisation.protected and not resource.protect:
        found = "an update may delete or replace it"
        yield Violation("protection", resource.short_name, found, "protection", key)


def regions(resource: PolicyResource, organisation: Organisation) -> Iterator[Violation]:
    """Find providers for other regions than the allowed ones. Providers `…-home` are accepted with any region: rights
    can be created in the tenancy's home region only.
    """
    region = resource.properties.get("region")
    if resource.type != PROVIDER or resource.name.endswith("-home") or not isinstance(region, str):
        return
    if organisation.regions and region not in organisation.regions:
        allowed = ", ".join(organisation.regions)
        yield Violation("regions", resource.short_name, f"it creates things in {region}", allowed, "cluster.region")


def shapes(resource: PolicyResource, organisation: Organisation) -> Iterator[Violation]:
    """Find nodes of other shapes than the allowed ones."""
    if not resource.type.startswith("oci:") or not organisation.shapes:
        return
    properties = resource.properties
    launched = _at(properties, "instanceDetails", "launchDetails", "shape")
    for shape in (properties.get("nodeShape"), properties.get("shape"), launched):
        if isinstance(shape, str) and shape not in organisation.shapes:
            allowed = ", ".join(organisation.shapes)
            yield Violation("shapes", resource.short_name, f"its nodes have the shape {shape}", allowed, "gpuPools")


def image_digests(resource: PolicyResource, organisation: Organisation) -> Iterator[Violation]:
    """Find containers whose image is named by a tag alone. Images of Helm charts are not among the resources."""
    if not resource.type.startswith("kubernetes:"):
        return
    tagged = dict.fromkeys(image for image in _images(resource.properties) if "@sha256:" not in image)
    for image in tagged:
        if not image.startswith(organisation.tags_suffice):
            found = f"the image {image} can become another one"
            yield Violation("image-digests", resource.short_name, found, f"{image}@sha256:…")


def monthly_cost(
    resources: Sequence[PolicyResource], organisation: Organisation, facts: StackFacts | None
) -> Iterator[Violation]:
    """Find a stack that costs more in a month, at list price, than the organisation allows."""
    del resources
    most = organisation.monthly_usd
    if most is None or facts is None:
        return
    if facts.monthly_usd > most:
        found = f"it costs {facts.monthly_usd:,.0f} US dollars a month at list price"
        yield Violation("monthly-cost", "the stack", found, f"at most {most:,.0f}", "gpuPools")
    elif facts.without_price:
        found = f"{', '.join(facts.without_price)} has no price in the catalogue, so that no bound can be held"
        yield Violation("monthly-cost", "the stack", found, "prices of the project's own (values/prices)", "gpuPools")


def client_authentication(
    resources: Sequence[PolicyResource], organisation: Organisation, facts: StackFacts | None
) -> Iterator[Violation]:
    """Find front doors that take requests of the internet from anybody. Other public addresses are not judged."""
    del organisation
    if facts is None or facts.signed_in:
        return
    for resource in resources:
        door = resource.properties.get("kind") == "Service" and _front_door_key(resource.properties, "authentication")
        if door and _is_public(resource.properties):
            found = "it takes requests of the internet from anybody"
            yield Violation("client-authentication", resource.short_name, found, "keys or tokens", door)


def network_policies(
    resources: Sequence[PolicyResource], organisation: Organisation, facts: StackFacts | None
) -> Iterator[Violation]:
    """Find namespaces with model servers that have no NetworkPolicy."""
    del organisation, facts
    guarded = {
        _at(item.properties, "metadata", "namespace")
        for item in resources
        if item.properties.get("kind") == "NetworkPolicy"
    }
    serving = dict.fromkeys(
        _at(item.properties, "metadata", "namespace")
        for item in resources
        if labels.ROLE in (_at(item.properties, "metadata", "labels") or {})
    )
    for namespace in serving:
        if isinstance(namespace, str) and namespace not in guarded:
            found = "its model servers take connections from every pod"
            yield Violation("network-policies", f"Namespace {namespace}", found, "a NetworkPolicy in it")


RESOURCE_RULES: Mapping[PolicyName, ResourceRule] = {
    "public-endpoints": public_endpoints,
    "required-tags": required_tags,
    "plain-secrets": plain_secrets,
    "protection": protection,
    "regions": regions,
    "shapes": shapes,
    "image-digests": image_digests,
}
"""Rules that judge each resource alone, by policy."""

STACK_RULES: Mapping[PolicyName, StackRule] = {
    "monthly-cost": monthly_cost,
    "client-authentication": client_authentication,
    "network-policies": network_policies,
}
"""Rules that judge a whole stack, by policy."""


def violations(
    resources: Sequence[PolicyResource], organisation: Organisation, facts: StackFacts | None
) -> Iterator[Violation]:
    """Yield the violations of all policies that aren't off."""
    for name, rule in RESOURCE_RULES.items():
        if organisation.level(name) != "off":
            for resource in resources:
                yield from rule(resource, organisation)
    for name, stack_rule in STACK_RULES.items():
        if organisation.level(name) != "off":
            yield from stack_rule(resources, organisation, facts)


def description(policy: PolicyName) -> str:
    """Return the description of a policy, which is the first sentence of its rule's docstring."""
    rule = RESOURCE_RULES.get(policy) or STACK_RULES[policy]
    return " ".join((rule.__doc__ or "").split()).partition(". ")[0].rstrip(".")


def _is_public(service: Mapping[str, Any]) -> bool:
    """Tell whether a Service has a load balancer with an address of the internet, which is OKE's default."""
    annotations: Mapping[str, object] = _at(service, "metadata", "annotations") or {}
    balanced = _at(service, "spec", "type") == "LoadBalancer"
    return balanced and not any(str(annotations.get(key)).lower() == "true" for key in _INTERNAL)


def _front_door_key(service: Mapping[str, Any], key: str) -> str:
    """Return the key of the stack file for a part of the front door; empty for another Service."""
    return f"frontDoor.{key}" if _at(service, "metadata", "name") == NAME else ""


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else None
    return value


def _images(value: Any) -> Iterator[str]:
    """Yield the images of all containers of an object."""
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[str, Any]", value).items():
            if key in _CONTAINERS and isinstance(part, list):
                yield from (item["image"] for item in cast("list[Any]", part) if isinstance(_at(item, "image"), str))
            yield from _images(part)
    elif isinstance(value, list):
        for part in cast("list[Any]", value):
            yield from _images(part)
