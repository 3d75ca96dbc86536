"""Who may reach the pods of the kit, where the cluster's network enforces policies. Neither of OKE's plug-ins does by
itself; Oracle documents Calico beside them (docs.oracle.com, ContEng, "Pod Networking").
"""

from collections.abc import Mapping, Sequence
from typing import Any

from llmd_pods.config_maps import LABEL as SMOKE
from llmd_pods.config_maps import PART_LABEL

from llmd_oke.catalogue.serving import scaling
from llmd_oke.objects import PART_OF, Manifest
from llmd_oke.serving import envoy, labels, vllm
from llmd_oke.serving.args import GatewayPodsArgs

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""Kubernetes gives it to every namespace."""

KIT = {"app.kubernetes.io/part-of": PART_OF["app.kubernetes.io/part-of"]}
"""All pods of the kit."""

DEFAULT, OPERATIONS = "llmd-oke-default", "llmd-oke-operations"
"""Names of the policies of a namespace."""

_MEASURING_LABELS = (SMOKE, PART_LABEL)
"""Labels of pods that measure: the benchmark of a deployment, and the Jobs of commands."""

_KV_ROLES = ("prefill", "decode")

Rule = dict[str, Any]


def readers(control_plane: Sequence[str] | None) -> dict[str, Any]:
    """Who may read metrics, as the `from` of a rule: pods that measure, the monitoring of llm-d's guides, and commands
    that come through the API server. Everybody, where it isn't known from which addresses (CIDR) that one speaks.
    """
    if control_plane is None:
        return {}
    monitoring = scaling().prometheus.split(".")[1]  # http://<service>.<namespace>.svc…
    return {
        "from": [
            *({"podSelector": _label_exists(label)} for label in _MEASURING_LABELS),
            {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: monitoring}}},
            *({"ipBlock": {"cidr": cidr}} for cidr in control_plane),
        ]
    }


def router_rules(
    pods: Mapping[str, str],
    metrics_port: int,
    control_plane: Sequence[str] | None,
    gateway: GatewayPodsArgs | None = None,
) -> list[Rule]:
    """Requests come from everywhere, questions to the picker from the Envoys of its own router alone; behind a Gateway
    there are neither, and its pods ask.
    """
    if gateway is not None:
        return [
            {"ports": tcp_ports(metrics_port), **readers(control_plane)},
            {"ports": tcp_ports(envoy.PICKER_PORT), "from": [gateway_pods(gateway)]},
        ]
    return [
        {"ports": tcp_ports(envoy.REQUESTS_PORT)},
        {"ports": tcp_ports(metrics_port, envoy.METRICS_PORT), **readers(control_plane)},
        {
            "ports": tcp_ports(envoy.PICKER_PORT, envoy.PICKER_HEALTH_PORT),
            "from": [{"podSelector": {"matchLabels": pods}}],
        },
    ]


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
) -> list[Rule]:
    """Prefill and decode servers of one unit hand KV cache over on ports that are not known beforehand (UCX takes any
    free ones). Requests come from the unit's router or a Gateway's pods, and who may read metrics has the same port;
    from everywhere where servers have no router before them.
    """
    requests: Rule = {"ports": tcp_ports(vllm.SERVER_PORT, vllm.BEHIND_SIDECAR_PORT)}
    if routed and (read := readers(control_plane)):
        own: Rule = {"podSelector": {"matchLabels": labels.router_selector(unit)}}
        requests["from"] = [own, *([gateway_pods(gateway)] if gateway else []), *read["from"]]
    partners = [{"podSelector": {"matchLabels": labels.role_selector(unit, partner)}} for partner in _KV_ROLES]
    return [*([{"from": partners}] if role in _KV_ROLES else []), requests]


def defaults(namespace: Any) -> list[Manifest]:
    """What holds for the kit's pods in its namespace that have no policy of their own: nobody reaches them, but pods of
    operations (two of them measure the path of KV cache) each other.
    """
    of_operations = _label_exists(PART_LABEL)
    return [
        policy(_metadata(DEFAULT, namespace), KIT, []),
        _policy(_metadata(OPERATIONS, namespace), of_operations, [{"from": [{"podSelector": of_operations}]}]),
    ]


def policy(metadata: Mapping[str, Any], pods: Mapping[str, str], rules: Sequence[Rule]) -> Manifest:
    """The policy of pods with these labels: nothing else comes in."""
    return _policy(metadata, {"matchLabels": pods}, rules)


def _policy(metadata: Mapping[str, Any], pods: Mapping[str, Any], rules: Sequence[Rule]) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": list(rules)},
    }


def _metadata(name: str, namespace: Any) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "labels": PART_OF}


def _label_exists(label: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": label, "operator": "Exists"}]}


def tcp_ports(*numbers: int) -> list[dict[str, Any]]:
    """TCP ports of a rule."""
    return [{"protocol": "TCP", "port": number} for number in numbers]
