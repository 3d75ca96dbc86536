"""Network policies on connections to and from the pods of a stack's namespace, for clusters that enforce them.

None of OKE's network plug-ins enforces policies; Oracle documents Calico for that purpose (docs.oracle.com, ContEng,
"Example: Installing Calico and Setting Up Network Policies"). All connections that no policy allows are denied, in both
directions.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import TypedDict, cast
from urllib.parse import urlsplit

import pulumi
from llmd_base.config_maps import LABEL as SMOKE
from llmd_base.config_maps import PART_LABEL
from llmd_base.errors import KitError

from llmd_oke.catalogue.server_settings import BEHIND_SIDECAR_PORT, SERVER_PORT
from llmd_oke.catalogue.serving import scaling
from llmd_oke.config.network_policies import LINK_LOCAL
from llmd_oke.kubernetes_types import LabelSelector, NetworkPolicyPeer, NetworkPolicyPort, ObjectMeta
from llmd_oke.objects import Manifest
from llmd_oke.serving import envoy, image_pull, labels, model_cache
from llmd_oke.serving.args import DestinationArgs, GatewayPodsArgs, TracingArgs
from llmd_oke.serving.manifests import object_metadata

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""Label that Kubernetes sets on every namespace, with its name as value."""

DEFAULT, OPERATIONS = "llmd-oke-default", "llmd-oke-operations"
"""Names of the policies of all pods of a namespace, and of the pods of the kit's commands."""

NODE_DNS = "169.254.20.10/32"
"""Address of NodeLocal DNSCache, on clusters that run it (kubernetes.io, "Using NodeLocal DNSCache")."""

_ANY_ADDRESS = "0.0.0.0/0"
_API_SERVER_PORTS = (443, 6443)
"""Ports of the Service `kubernetes`, and of OKE's API endpoints behind it."""

_MEASURING_LABELS = (SMOKE, PART_LABEL)
"""Labels of measuring pods: the smoke benchmark, the Jobs of commands, and canaries."""

_KV_PARTNERS = {"prefill": "decode", "decode": "prefill"}
"""Role with whose servers a role's servers exchange KV cache."""

Rule = TypedDict(
    "Rule",
    {"ports": list[NetworkPolicyPort], "from": list[NetworkPolicyPeer], "to": list[NetworkPolicyPeer]},
    total=False,
)
"""Ingress rule with `from`, or egress rule with `to`."""


def readers(control_plane: Sequence[str] | None) -> Rule:
    """Return the `from` of a rule for metrics: measuring pods, the monitoring namespace of llm-d's guides, and commands
    that connect through the API server, if its source addresses (CIDR) are given.
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
    pods: dict[str, str],
    metrics_port: int,
    control_plane: Sequence[str] | None,
    gateway: GatewayPodsArgs | None = None,
    *,
    signed_in: bool = False,
) -> list[Rule]:
    """Return the ingress rules of a router. Any pod, or only the front door if clients authenticate there, may send
    requests; only the Envoys of the same router may connect to the endpoint picker. With a Gateway there are no such
    Envoys, and the Gateway's pods connect to the endpoint picker.
    """
    if gateway is not None:
        return [
            {"ports": tcp_ports(metrics_port), **readers(control_plane)},
            {"ports": tcp_ports(envoy.PICKER_PORT), "from": [gateway_pods(gateway)]},
        ]
    clients: Rule = _behind_sign_in(control_plane) if signed_in else {}
    return [
        {"ports": tcp_ports(envoy.REQUESTS_PORT), **clients},
        {"ports": tcp_ports(metrics_port, envoy.METRICS_PORT), **readers(control_plane)},
        {
            "ports": tcp_ports(envoy.PICKER_PORT, envoy.PICKER_HEALTH_PORT),
            "from": [{"podSelector": {"matchLabels": pods}}],
        },
    ]


def _behind_sign_in(control_plane: Sequence[str] | None) -> Rule:
    """Return the `from` of a rule for the front door of the stack and for the pods of `readers`, which need no
    API key.
    """
    door: NetworkPolicyPeer = {"podSelector": {"matchLabels": labels.stack_front_door_selector()}}
    return {"from": [door, *readers(control_plane).get("from", [])]}


def gateway_pods(pods: GatewayPodsArgs) -> NetworkPolicyPeer:
    """Return the pods of a Gateway, as an element of a rule's `from`."""
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
    """Return the ingress rules of the servers of one role.

    Prefill and decode servers of one unit exchange KV cache on ports that aren't known in advance (UCX chooses free
    ones), so that all ports are open to the other role, and with `over_nodes` among the pods of the same role, whose
    ranks choose ports too. Requests come from the unit's router or a Gateway's pods, and from those that read metrics
    (`readers`), since metrics have the same port. Servers without a router accept requests from any pod, or only from
    the front door if clients authenticate there. KV cache events are for the unit's router only.
    """
    requests: Rule = {"ports": tcp_ports(SERVER_PORT, BEHIND_SIDECAR_PORT)}
    if routed:
        own: NetworkPolicyPeer = {"podSelector": {"matchLabels": labels.router_selector(unit)}}
        requests["from"] = [own, *([gateway_pods(gateway)] if gateway else []), *readers(control_plane).get("from", [])]
    elif signed_in:
        requests.update(_behind_sign_in(control_plane))
    router: list[NetworkPolicyPeer] = [{"podSelector": {"matchLabels": labels.router_selector(unit)}}]
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
    """Return the egress rules of the servers of one role: to the other role for KV cache, to the same role where
    servers span nodes, to port 443 anywhere for weights, to the API server if the sidecar looks up pods, and to the
    traces' collector.
    """
    return [
        *({"to": [partner]} for partner in _partners(unit, role, over_nodes=over_nodes)),
        anywhere(443),
        *([api_server(control_plane)] if asks_api_server else []),
        *_collector(tracing),
    ]


def _partners(unit: str, role: str, *, over_nodes: bool) -> list[NetworkPolicyPeer]:
    partner = _KV_PARTNERS.get(role)
    roles = [*([] if partner is None else [partner]), *([role] if over_nodes else [])]
    return [{"podSelector": {"matchLabels": labels.role_selector(unit, name)}} for name in roles]


def router_destinations(
    unit: str,
    pods: dict[str, str],
    control_plane: Sequence[str] | None,
    tracing: TracingArgs | None,
    events_port: int | None = None,
) -> list[Rule]:
    """Return the egress rules of a router's pods: to the unit's servers, the router's other endpoint pickers, the API
    server for watches, and the traces' collector.
    """
    servers: NetworkPolicyPeer = {"podSelector": {"matchLabels": labels.unit_selector(unit)}}
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
    """Return the egress rules of the Envoys of a front door, which clients connect to: to the routers of models, and to
    vLLM servers that have no router.
    """
    servers: LabelSelector = {"matchLabels": {labels.SERVING: "true"}}
    return [{"to": [{"podSelector": _label_exists(labels.ROUTED)}, {"podSelector": servers}]}]


def _collector(tracing: TracingArgs | None) -> list[Rule]:
    port = urlsplit(tracing["endpoint"]).port if tracing else None
    return [] if port is None else [anywhere(port)]


def api_server(control_plane: Sequence[str] | None) -> Rule:
    """Return the egress rule to the API server; to any address if `control_plane` is None."""
    if control_plane is None:
        return anywhere(*_API_SERVER_PORTS)
    return {"ports": tcp_ports(*_API_SERVER_PORTS), "to": [{"ipBlock": {"cidr": cidr}} for cidr in control_plane]}


def anywhere(*ports: int) -> Rule:
    """Return the egress rule to all addresses and pods but link-local addresses, at these TCP ports; at all ports if
    none are given.

    Some network plug-ins don't match pods by address blocks, so that the rule names all namespaces too.
    """
    rule: Rule = {"to": [_addresses(_ANY_ADDRESS, [str(LINK_LOCAL)]), {"namespaceSelector": {}}]}
    return {**rule, "ports": tcp_ports(*ports)} if ports else rule


def _addresses(cidr: str, denied: list[str]) -> NetworkPolicyPeer:
    block = {"cidr": cidr, "except": denied}  # which the types call `_except`
    return cast("NetworkPolicyPeer", {"ipBlock": block})


def closed_namespace(namespace: pulumi.Input[str], destinations: Sequence[DestinationArgs] = ()) -> list[Manifest]:
    """Return the default policy of a namespace: pods accept no connections and may connect only to DNS and to
    `destinations`, unless another policy allows more.
    """
    dns: Rule = {
        "ports": [*tcp_ports(53), {"protocol": "UDP", "port": 53}],
        "to": [
            {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "kube-system"}}},
            {"ipBlock": {"cidr": NODE_DNS}},
        ],
    }
    opened: list[Rule] = []
    for row in destinations:
        rule: Rule = {"to": [_addresses(row["cidr"], _link_local_in(row["cidr"]))]}
        opened.append({**rule, "ports": tcp_ports(*ports)} if (ports := row.get("ports")) else rule)
    return [_policy(object_metadata(DEFAULT, namespace), {}, [], [dns, *opened])]


def defaults(
    namespace: pulumi.Input[str],
    control_plane: Sequence[str] | None = None,
    destinations: Sequence[DestinationArgs] = (),
) -> list[Manifest]:
    """Return the policies of a stack's namespace: the default policy, and those of the kit's Jobs. The pods of commands
    may connect to each other (two of them measure the network path of KV cache). The pods of commands, measuring pods
    and pods that download may connect to any address.
    """
    of_operations = _label_exists(PART_LABEL)
    from_operations: list[Rule] = [{"from": [{"podSelector": of_operations}]}]
    waiting: LabelSelector = {"matchLabels": {"app.kubernetes.io/name": image_pull.WAIT}}
    return [
        *closed_namespace(namespace, destinations),
        _policy(object_metadata(OPERATIONS, namespace), of_operations, from_operations, [anywhere()]),
        _policy(object_metadata("llmd-oke-smoke", namespace), _label_exists(SMOKE), [], [anywhere()]),
        _policy(object_metadata("llmd-oke-prewarm", namespace), _label_exists(model_cache.PREWARM), [], [anywhere()]),
        _policy(object_metadata("llmd-oke-image-pull", namespace), waiting, [], [api_server(control_plane)]),
    ]


def _link_local_in(cidr: str) -> list[str]:
    """Return the parts of a CIDR block that stay denied.

    Raises:
        KitError: the block contains no other addresses.
    """
    block = IPv4Network(cidr)
    if block.subnet_of(LINK_LOCAL):
        raise KitError(
            f"No pod may reach {cidr}: OCI's instance metadata is there.", f"A block outside of {LINK_LOCAL}."
        )
    return [str(LINK_LOCAL)] if LINK_LOCAL.subnet_of(block) else []


def policy(
    metadata: ObjectMeta, pods: dict[str, str], sources: Sequence[Rule], destinations: Sequence[Rule]
) -> Manifest:
    """Return the NetworkPolicy of the pods with the labels `pods`.

    Args:
        metadata: metadata of the policy.
        pods: labels that select the policy's pods.
        sources: ingress rules; all other incoming connections are denied.
        destinations: egress rules, in addition to those of the namespace's default policy.
    """
    return _policy(metadata, {"matchLabels": pods}, sources, destinations)


def _policy(
    metadata: ObjectMeta, pods: LabelSelector, sources: Sequence[Rule], destinations: Sequence[Rule]
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


def _label_exists(label: str) -> LabelSelector:
    return {"matchExpressions": [{"key": label, "operator": "Exists"}]}


def tcp_ports(*numbers: int) -> list[NetworkPolicyPort]:
    """Return TCP ports in the form of a rule."""
    return [{"protocol": "TCP", "port": number} for number in numbers]
