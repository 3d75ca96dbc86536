"""Manifests that serving shares: kinds that it needs, parts of pods and accounts, limits."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from llmd_base.errors import KitError

from llmd_oke.catalogue import Shape
from llmd_oke.objects import PART_OF, KubernetesObject, Manifest
from llmd_oke.serving.args import NodeTaintArgs, TracingArgs

# Limits of waits in seconds. The Kubernetes plug-in's default, ten minutes, is too short where weights are loaded.

ROUTER_S = 600
"""The endpoint picker and Envoy start within seconds; the rest is for pulling their images."""

NAMESPACE_S = 120

DELETE_S = 600
"""Pods end within their grace of at most 130 s, a namespace after all that is in it."""

_KINDS = {
    ("v1", "ConfigMap"),
    ("v1", "Namespace"),
    ("v1", "PersistentVolume"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Secret"),
    ("v1", "Service"),
    ("v1", "ServiceAccount"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "Deployment"),
    ("batch/v1", "Job"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
}

RBAC = "rbac.authorization.k8s.io"

_API_ACCESS = "api-access"

_CUSTOM_GROUPS = (
    "agentgateway.dev",
    "cert-manager.io",
    "gateway.envoyproxy.io",
    "gateway.networking.k8s.io",
    "inference.networking.k8s.io",
    "inference.networking.x-k8s.io",
    "keda.sh",
    "leaderworkerset.x-k8s.io",
    "monitoring.coreos.com",
    "networking.istio.io",
)


def declare(name: str, manifest: Manifest, opts: pulumi.ResourceOptions) -> KubernetesObject:
    """The resource for a manifest.

    Raises:
        KitError: a kind that serving is not known to need.
    """
    api_version, kind = manifest["apiVersion"], manifest["kind"]
    if api_version.split("/")[0] not in _CUSTOM_GROUPS and (api_version, kind) not in _KINDS:
        known = ", ".join(f"{a} {k}" for a, k in sorted(_KINDS))
        raise KitError(f"{api_version} {kind} is no kind that serving declares.", f"Known: {known}.")
    return KubernetesObject(name, manifest, opts)


def object_metadata(
    name: str, namespace: pulumi.Input[str], more: Mapping[str, pulumi.Input[str]] | None = None
) -> dict[str, Any]:
    """The metadata of an object that the kit declares in a namespace, with the labels of all of them and `more`."""
    return {"name": name, "namespace": namespace, "labels": {**(more or {}), **PART_OF}}


def waiting_for(condition: str) -> dict[str, str]:
    """The annotation by which Pulumi waits for an object of a kind that it doesn't know, until a condition of the
    object's status holds.
    """
    return {"pulumi.com/waitFor": f"condition={condition}"}


def service_account(metadata: Mapping[str, Any]) -> Manifest:
    """An account whose token is in no pod that doesn't ask for it."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False}


def role(metadata: Mapping[str, Any], rules: Sequence[Mapping[str, Any]]) -> Manifest:
    """Rights in the namespace of `metadata`."""
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": list(rules)}


def role_binding(metadata: Mapping[str, Any], account: pulumi.Input[str], role: str | None = None) -> Manifest:
    """Give an account of the same namespace a role: the one that has the binding's name, or `role`."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": metadata["namespace"]}],
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role or metadata["name"]},
    }


def api_access_volume() -> dict[str, Any]:
    """Return what Kubernetes mounts into every container of a pod whose account has its token mounted, as a volume that
    single containers mount.
    """
    authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": authority},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return {"name": _API_ACCESS, "projected": {"sources": sources}}


def api_access_mount() -> dict[str, Any]:
    """The mount of that volume, where Kubernetes' own client libraries look for it."""
    return {"name": _API_ACCESS, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}


def timeouts(create_s: int, update_s: int | None = None) -> pulumi.CustomTimeouts:
    """Pulumi's timeouts from seconds; updates may take as long as creation if nothing else is said."""
    return pulumi.CustomTimeouts(create=f"{create_s}s", update=f"{update_s or create_s}s", delete=f"{DELETE_S}s")


def tolerations(shape: Shape, further: Sequence[NodeTaintArgs] = ()) -> list[dict[str, str]]:
    """The taints of the shape's nodes and further ones of theirs, tolerated one by one."""
    of_shape = ((taint.key, taint.value, taint.effect) for taint in shape.node.taints)
    taints = [*of_shape, *((taint["key"], taint["value"], taint["effect"]) for taint in further)]
    return [
        {"key": key, "operator": "Equal", "value": value, "effect": effect}
        for key, value, effect in dict.fromkeys(taints)
    ]


def text_digest(text: str) -> str:
    """A short name of a text, for objects that are others with another text."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def tracing_environment(service: str, tracing: TracingArgs | None) -> dict[str, str]:
    """Variables that say where a program's traces go (llm-d guides, recipes/observability/tracing); none where nothing
    is traced.

    Args:
        service: what the program is called in traces.
        tracing: where they go.
    """
    if tracing is None:
        return {}
    return {
        "OTEL_SERVICE_NAME": service,
        "OTEL_EXPORTER_OTLP_ENDPOINT": tracing["endpoint"],
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": f"{tracing['sampled_share']:g}",
    }
