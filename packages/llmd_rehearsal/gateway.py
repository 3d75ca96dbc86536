"""The Gateway of a rehearsed stack: Envoy Gateway runs, whichever provider the stack names.

A rehearsal has neither OCI's load balancers nor anybody's certificate: a created Gateway is for pods, without TLS.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from llmd_oke.catalogue.releases import Crds
from llmd_oke.planning import Plan
from llmd_oke.values import Entry, required_entry

if TYPE_CHECKING:
    from llmd_oke.serving.gateway import GatewayListenerArgs

PROVIDER = "envoy-gateway"
NAMESPACE = "envoy-gateway-system"

SIMULATED_POOLS = "InferencePools of Envoy Gateway (a stand-in for Envoy AI Gateway is its extension server)"

_KEPT = ("mode", "name", "namespace", "listener", "clusterListener")


class GatewayParts(Entry):
    """What a rehearsal puts into its cluster."""

    title: str
    definitions: tuple[Crds, ...]
    objects: tuple[dict[str, Any], ...]


@cache
def gateway_parts() -> GatewayParts:
    """Envoy Gateway's definitions and objects, by `values/rehearsal/envoy-gateway.yaml`."""
    return required_entry("rehearsal", "envoy-gateway", GatewayParts)


def rehearsed_gateway(stack: Mapping[str, Any]) -> dict[str, Any]:
    """The stack file's object with a Gateway that can be rehearsed; unchanged where it has none."""
    gateway: Mapping[str, Any] | None = stack.get("gateway")
    if gateway is None:
        return dict(stack)
    kept = {key: gateway[key] for key in _KEPT if key in gateway}
    service = {"service": {"name": gateway["name"]}} if gateway["mode"] == "existing" else {}
    return {**stack, "gateway": {**kept, "provider": PROVIDER, **service}}


def preinstalled_objects(plan: Plan) -> list[dict[str, Any]]:
    """What is in the cluster before a stack with a Gateway: Envoy Gateway, and the Gateway that is said to be there."""
    gateway = plan.gateway
    if gateway is None:
        return []
    parts = list(gateway_parts().objects)
    if gateway.created is not None:
        return parts
    from llmd_oke.serving.gateway import gateway_manifests  # noqa: PLC0415 - it loads Pulumi

    names = dict.fromkeys(name or "http" for name in (gateway.cluster_listener, gateway.listener))
    listeners: list[GatewayListenerArgs] = [{"name": name, "port": 80 + i * 8000} for i, name in enumerate(names)]
    *further, made = gateway_manifests(
        {"namespace": gateway.namespace, "provider": PROVIDER, "gateway": gateway.name, "listeners": listeners}
    )
    everybody = [
        {**listener, "allowedRoutes": {"namespaces": {"from": "All"}}} for listener in made["spec"]["listeners"]
    ]
    own = [] if gateway.namespace == plan.namespace else [_namespace(gateway.namespace)]
    return [*parts, *own, *map(dict, further), {**made, "spec": {**made["spec"], "listeners": everybody}}]


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def simulated_gateway(plan: Plan) -> tuple[str, ...]:
    """What of a stack's Gateway is not real in a rehearsal."""
    gateway = plan.gateway
    if gateway is None:
        return ()
    other = gateway.provider.name
    played = () if other == PROVIDER else (f"gateway provider {other} ({gateway_parts().title} runs in its place)",)
    return (*played, SIMULATED_POOLS)
