"""Policies on who reaches the pods of a stack's namespace, and whom they reach, where the cluster's network enforces
them.

Neither of OKE's network plug-ins does by itself; Oracle documents Calico beside them (docs.oracle.com, ContEng,
"Example: Installing Calico and Setting Up Network Policies"). What no policy opens is closed, in both directions.
"""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any
from urllib.parse import urlsplit

from llmd_base.config_maps import LABEL as SMOKE
from llmd_base.config_maps import PART_LABEL
from llmd_base.errors import KitError

from llmd_oke.catalogue.server_settings import BEHIND_SIDECAR_PORT, SERVER_PORT
from llmd_oke.catalogue.serving import scaling
from llmd_oke.config.network_policies import LINK_LOCAL
from llmd_oke.objects import Manifest
from llmd_oke.serving import envoy, image_pull, labels, model_cache
from llmd_oke.serving.args import DestinationArgs, GatewayPodsArgs, TracingArgs
from llmd_oke.serving.manifests import object_metadata

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""Kubernetes gives it to every namespace."""

DEFAULT, OPERATIONS = "llmd-oke-default", "llmd-oke-operations"
"""Names of the policies of a namespace."""

NODE_DNS = "169.254.20.10/32"
"""Where NodeLocal DNSCache answers, on clusters that have it (kubernetes.io, "Using NodeLocal DNSCache")."""

_ANY_ADDRESS = "0.0.0.0/0"
_API_SERVER_PORTS = (443, 6443)
"""Of the Service `kubernetes`, and of OKE's endpoints behind it."""

_MEASURING_LABELS = (SMOKE, PART_LABEL)
"""Labels of pods that measure: the benchmark of a deployment, the Jobs of commands, and canaries."""

_KV_PARTNERS = {"prefill": "decode", "decode": "prefill"}
"""Whom servers of a role hand KV cache over to or take it from."""

Rule = dict[str, Any]


def readers(control_plane: Sequence[str] | None) -> dict[str, Any]:
    """Return the `from` of a rule for metrics: pods that measure, the monitoring of llm-d's guides, and commands that
    come through the API server, where it is known from which addresses (CIDR) that one speaks.
    """
    monitoring = scaling().prometheus.split(".")[1]  # http://<service>.<namespace>.svc…
    return {
        "from": [
            *({"podSelector": _label_exists(label)} for label in _MEASURING_LABELS),
            {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: monitoring}}},
            *({"ipBlock": {"cidr": cidr}} for cidr in control_plane or ()),
        ]
    }


def router_rules(
    pods: Mapping[str, str],
    metrics_port: int,
    control_plane: Sequence[str] | None,
    gateway: GatewayPodsArgs | None = None,
    *,
    signed_in: bool = False,
) -> list[Rule]:
    """Requests come from everywhere, or from the front door where clients sign in there; questions to the picker from
    the Envoys of its own router alone. Behind a Gateway there are neither, and its pods ask.
    """
    if gateway is not None:
        return [
            {"ports": tcp_ports(metrics_port), **readers(control_plane)},
            {"ports": tcp_ports(envoy.PICKER_PORT), "from": [gateway_pods(gateway)]},
        ]
    return [
        {"ports": tcp_ports(envoy.REQUESTS_PORT), **(_behind_sign_in(control_plane) if signed_in else {})},
        {"ports": tcp_ports(metrics_port, envoy.METRICS_PORT), **readers(control_plane)},
        {
            "ports": tcp_ports(envoy.PICKER_PORT, envoy.PICKER_HEALTH_PORT),
            "from": [{"podSelector": {"matchLabels": pods}}],
        },
    ]


def _behind_sign_in(control_plane: Sequence[str] | None) -> Rule:
    """Return the `from` of a rule for the front door of the stack, and for those who may ask without a key."""
    door: Rule = {"podSelector": {"matchLabels": labels.stack_front_door_selector()}}
    return {"from": [door, *readers(control_plane)["from"]]}


def gateway_pods(pods: GatewayPodsArgs) -> Rule:
    """The pods of a Gateway, as an element of a rule's `from`."""
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: pods["namespace"]}},
        "podSelector": {"matchLabels": pods["labels"]},
    }


def servers_rules(
    unit: str,
    role: str,
    routed: bool,
    control_plane: Sequence[str] | None,
    gateway: GatewayPodsArgs | None = None,
    *,
    signed_in: bool = False,
    over_nodes: bool = False,
    events_port: int | None = None,
) -> list[Rule]:
    """Prefill and decode servers of one unit hand KV cache over on ports that are not known beforehand (UCX takes any
    free ones): each role to the other, and where servers span nodes their pods among themselves (`over_nodes`), whose
    ranks agree on ports too. Requests come from the unit's router or a Gateway's pods, and who may read
    metrics has the same port. Where servers have no router before them they come from everywhere, or from the front
    door where clients sign in there. Reports on the KV cache are for the unit's router.
    """
    requests: Rule = {"ports": tcp_ports(SERVER_PORT, BEHIND_SIDECAR_PORT)}
    if routed:
        own: Rule = {"podSelector": {"matchLabels": labels.router_selector(unit)}}
        requests["from"] = [own, *([gateway_pods(gateway)] if gateway else []), *readers(control_plane)["from"]]
    elif signed_in:
        requests.update(_behind_sign_in(control_plane))
    router = [{"podSelector": {"matchLabels": labels.router_selector(unit)}}]
    reports: list[Rule] = [] if events_port is None else [{"ports": tcp_ports(events_port), "from": router}]
    partners = _partners(unit, role, over_nodes=over_nodes)
    return [*({"from": [partner]} for partner in partners), requests, *reports]


def servers_destinations(
    unit: str,
    role: str,
    *,
    asks_api_server: bool,
    control_plane: Sequence[str] | None,
    tracing: TracingArgs | None,
    over_nodes: bool = False,
) -> list[Rule]:
    """Return whom the model servers of one role reach: the other role for KV cache, their own role where they span
    nodes, whoever has weights that their node
    lacks, and the API server where their sidecar looks pods up.
    """
    return [
        *({"to": [partner]} for partner in _partners(unit, role, over_nodes=over_nodes)),
        anywhere(443),
        *([api_server(control_plane)] if asks_api_server else []),
        *_collector(tracing),
    ]


def _partners(unit: str, role: str, *, over_nodes: bool) -> list[Rule]:
    partner = _KV_PARTNERS.get(role)
    roles = [*([] if partner is None else [partner]), *([role] if over_nodes else [])]
    return [{"podSelector": {"matchLabels": labels.role_selector(unit, name)}} for name in roles]


def router_destinations(
    unit: str,
    pods: Mapping[str, str],
    control_plane: Sequence[str] | None,
    tracing: TracingArgs | None,
    events_port: int | None = None,
) -> list[Rule]:
    """Return whom the pods of a router reach: the unit's servers, its other pickers, and the API server, which they
    watch.
    """
    servers = {"podSelector": {"matchLabels": labels.unit_selector(unit)}}
    pickers = tcp_ports(envoy.PICKER_PORT, envoy.PICKER_HEALTH_PORT)
    return [
        {
            "ports": tcp_ports(SERVER_PORT, BEHIND_SIDECAR_PORT, *([] if events_port is None else [events_port])),
            "to": [servers],
        },
        {"ports": pickers, "to": [{"podSelector": {"matchLabels": pods}}]},
        api_server(control_plane),
        *_collector(tracing),
    ]


def front_door_destinations() -> list[Rule]:
    """Return whom a front door reaches: routers, and model servers without one."""
    servers = {"matchLabels": {labels.SERVING: "true"}}
    return [{"to": [{"podSelector": _label_exists(labels.ROUTED)}, {"podSelector": servers}]}]


def _collector(tracing: TracingArgs | None) -> list[Rule]:
    port = urlsplit(tracing["endpoint"]).port if tracing else None
    return [] if port is None else [anywhere(port)]


def api_server(control_plane: Sequence[str] | None) -> Rule:
    """The API server, as a rule for outgoing connections; wherever it may be, if its addresses aren't known."""
    if control_plane is None:
        return anywhere(*_API_SERVER_PORTS)
    return {"ports": tcp_ports(*_API_SERVER_PORTS), "to": [{"ipBlock": {"cidr": cidr}} for cidr in control_plane]}


def anywhere(*ports: int) -> Rule:
    """All addresses and pods, at these TCP ports or at all of them, but for the node's link-local services.

    Some engines count pods to no block of addresses, so that they are named beside them.
    """
    every_pod: Rule = {"namespaceSelector": {}}
    to = [{"ipBlock": {"cidr": _ANY_ADDRESS, "except": [str(LINK_LOCAL)]}}, every_pod]
    return {**({"ports": tcp_ports(*ports)} if ports else {}), "to": to}


def closed_namespace(namespace: Any, destinations: Sequence[DestinationArgs] = ()) -> list[Manifest]:
    """The policy of all pods of a namespace: nobody reaches them, and they reach DNS and `destinations` alone, unless a
    policy of their own opens more.
    """
    dns = {
        "ports": [*tcp_ports(53), {"protocol": "UDP", "port": 53}],
        "to": [
            {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "kube-system"}}},
            {"ipBlock": {"cidr": NODE_DNS}},
        ],
    }
    opened: list[Rule] = [
        {
            "to": [{"ipBlock": {"cidr": row["cidr"], "except": _link_local_in(row["cidr"])}}],
            **({"ports": tcp_ports(*ports)} if (ports := row.get("ports")) else {}),
        }
        for row in destinations
    ]
    everything: Rule = {}
    return [_policy(_metadata(DEFAULT, namespace), everything, [], [dns, *opened])]


def defaults(
    namespace: Any, control_plane: Sequence[str] | None = None, destinations: Sequence[DestinationArgs] = ()
) -> list[Manifest]:
    """The policies of a stack's namespace: that of all pods, and those of the kit's Jobs. Pods of operations (two of
    them measure the path of KV cache) reach each other; they, those that measure and those that download reach what
    they ask for.
    """
    of_operations = _label_exists(PART_LABEL)
    from_operations: list[Rule] = [{"from": [{"podSelector": of_operations}]}]
    waiting = {"matchLabels": {"app.kubernetes.io/name": image_pull.WAIT}}
    return [
        *closed_namespace(namespace, destinations),
        _policy(_metadata(OPERATIONS, namespace), of_operations, from_operations, [anywhere()]),
        _policy(_metadata("llmd-oke-smoke", namespace), _label_exists(SMOKE), [], [anywhere()]),
        _policy(_metadata("llmd-oke-prewarm", namespace), _label_exists(model_cache.PREWARM), [], [anywhere()]),
        _policy(_metadata("llmd-oke-image-pull", namespace), waiting, [], [api_server(control_plane)]),
    ]


def _link_local_in(cidr: str) -> list[str]:
    """Return the parts of a block that stay closed.

    Raises:
        KitError: nothing of it would be open.
    """
    block = IPv4Network(cidr)
    if block.subnet_of(LINK_LOCAL):
        raise KitError(
            f"No pod may reach {cidr}: OCI's instance metadata is there.", f"A block outside of {LINK_LOCAL}."
        )
    return [str(LINK_LOCAL)] if LINK_LOCAL.subnet_of(block) else []


def policy(
    metadata: Mapping[str, Any], pods: Mapping[str, str], sources: Sequence[Rule], destinations: Sequence[Rule]
) -> Manifest:
    """The policy of pods with these labels.

    Args:
        metadata: of the policy.
        pods: labels of the pods that it is for.
        sources: rules for connections that come in; no others do.
        destinations: rules for connections that go out, beside those of the namespace; no others do.
    """
    return _policy(metadata, {"matchLabels": pods}, sources, destinations)


def _policy(
    metadata: Mapping[str, Any], pods: Mapping[str, Any], sources: Sequence[Rule], destinations: Sequence[Rule]
) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": list(sources),
            "egress": list(destinations),
        },
    }


def _metadata(name: str, namespace: Any) -> dict[str, Any]:
    return object_metadata(name, namespace)


def _label_exists(label: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": label, "operator": "Exists"}]}


def tcp_ports(*numbers: int) -> list[dict[str, Any]]:
    """TCP ports of a rule."""
    return [{"protocol": "TCP", "port": number} for number in numbers]
