"""Who may reach the pods of a unit, where the cluster's network enforces policies (OKE's own does with Calico only)."""

from collections.abc import Mapping, Sequence
from typing import Any

from llmd_oke.catalogue.scaling import scaling
from llmd_oke.objects import PART_OF, Manifest
from llmd_oke.serving import envoy, labels, vllm

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""Kubernetes gives it to every namespace."""

KIT = {"app.kubernetes.io/part-of": PART_OF["app.kubernetes.io/part-of"]}
"""Pods of the kit: routers, front doors, and Jobs that measure."""

Rule = dict[str, Any]


def readers(control_plane: Sequence[str] | None) -> dict[str, Any]:
    """Who may read metrics, as the `from` of a rule: the kit's pods, the monitoring of llm-d's guides, and commands
    that come through the API server. Everybody, where it isn't known from which addresses (CIDR) that one speaks.
    """
    if control_plane is None:
        return {}
    return {
        "from": [
            {"podSelector": {"matchLabels": KIT}},
            {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: _monitoring_namespace()}}},
            *({"ipBlock": {"cidr": cidr}} for cidr in control_plane),
        ]
    }


def router_rules(pods: Mapping[str, str], metrics_port: int, control_plane: Sequence[str] | None) -> list[Rule]:
    """Requests come from everywhere, questions to the picker from the Envoys of its own router alone."""
    return [
        {"ports": _ports(envoy.REQUESTS_PORT)},
        {"ports": _ports(metrics_port, envoy.METRICS_PORT), **readers(control_plane)},
        {
            "ports": _ports(envoy.PICKER_PORT, envoy.PICKER_HEALTH_PORT),
            "from": [{"podSelector": {"matchLabels": pods}}],
        },
    ]


def servers_rules(unit: str, routed: bool, control_plane: Sequence[str] | None) -> list[Rule]:
    """Servers of one unit hand KV cache over on ports that are not known beforehand. Requests come from the kit's own
    pods, routers among them, or from everywhere where servers have no router before them.
    """
    own = {"podSelector": {"matchLabels": labels.unit_selector(unit)}}
    requests = {"ports": _ports(vllm.SERVER_PORT, vllm.BEHIND_SIDECAR_PORT)}
    return [{"from": [own]}, {**requests, **(readers(control_plane) if routed else {})}]


def policy(metadata: Mapping[str, Any], pods: Mapping[str, str], rules: Sequence[Rule]) -> Manifest:
    """The policy of pods: nothing else comes in."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {"podSelector": {"matchLabels": pods}, "policyTypes": ["Ingress"], "ingress": list(rules)},
    }


def _ports(*numbers: int) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": number} for number in numbers]


def _monitoring_namespace() -> str:
    """Where the Prometheus is that the kit scales by: `http://<service>.<namespace>.svc…`."""
    return scaling().prometheus.split(".")[1]
