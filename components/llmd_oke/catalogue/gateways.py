"""Implementations of the Gateway API: what their objects are called, and what they need to know InferencePools."""

from pydantic import Field, JsonValue

from llmd_oke.values import Entry, names, required_entry


class ObjectTemplate(Entry):
    """An object of an implementation's own; its spec has marks such as `<gateway>`."""

    api_version: str
    kind: str
    spec: dict[str, JsonValue]


class GatewayProvider(Entry):
    """An implementation of the Gateway API.

    `inference_pools` says in words what it needs to know InferencePools, `pools_per_route` how many of them requests of
    one route may be shared over, any number if None. `service` is the Service before the pods of a
    Gateway, None where its name can't be told beforehand, and `created_service` that of a Gateway with `parameters`;
    Service and pods are in `namespace`, or in the Gateway's.
    `parameters` is the object that a Gateway names in `infrastructure`, and which says how its Service is; without one
    annotations do, `gateway_annotations` among them. `picker_policy` is how each endpoint picker is spoken to, where it
    has to be told.
    """

    name: str
    source: str
    class_name: str
    controller: str
    inference_pools: str
    pools_per_route: int | None = None
    service: str | None = None
    created_service: str | None = None
    namespace: str | None = None
    pod_labels: dict[str, str]
    gateway_annotations: dict[str, str] = Field(default_factory=dict[str, str])
    parameters: ObjectTemplate | None = None
    picker_policy: ObjectTemplate | None = None


def gateway_provider(name: str) -> GatewayProvider | None:
    """The implementation of that name, or None."""
    return required_entry("gateways", name, GatewayProvider) if name in gateway_provider_names() else None


def gateway_provider_names() -> list[str]:
    """All implementations of the catalogue."""
    return names("gateways")
