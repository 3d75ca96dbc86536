"""Parts of manifests that modules of `llmd_oke.serving` share: kinds, parts of pods and accounts, timeouts."""

import hashlib
from collections.abc import Mapping, Sequence

import pulumi
from llmd_base.errors import KitError

from llmd_oke.catalogue import Shape
from llmd_oke.kubernetes_types import EnvVar, ObjectMeta, PolicyRule, Toleration, Volume, VolumeMount
from llmd_oke.objects import PART_OF, KubernetesObject, Manifest
from llmd_oke.serving.args import NodeTaintArgs, TracingArgs

# Limits of waits in seconds. The Kubernetes plug-in's default, ten minutes, is too short where weights are loaded.

ROUTER_S = 600
"""Timeout of endpoint pickers and Envoys in seconds. They start within seconds; the rest is for pulling their images.
"""

NAMESPACE_S = 120

DELETE_S = 600
"""Timeout of deletions in seconds. Pods end within their grace period of at most 130 s, a namespace after its content.
"""

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
    "disaggregatedset.x-k8s.io",
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
    """Declare the resource of a manifest.

    Raises:
        KitError: the manifest's kind isn't in the list of kinds that serving declares.
    """
    api_version, kind = manifest["apiVersion"], manifest["kind"]
    if api_version.split("/")[0] not in _CUSTOM_GROUPS and (api_version, kind) not in _KINDS:
        known = ", ".join(f"{a} {k}" for a, k in sorted(_KINDS))
        raise KitError(f"{api_version} {kind} is no kind that serving declares.", f"Known: {known}.")
    return KubernetesObject(name, manifest, opts)


def object_metadata(
    name: str, namespace: pulumi.Input[str], more: Mapping[str, pulumi.Input[str]] | None = None
) -> ObjectMeta:
    """Return the metadata of an object in a namespace, with the labels of all objects of this project and the labels
    `more`.
    """
    return {"name": name, "namespace": namespace, "labels": {**(more or {}), **PART_OF}}


def waiting_for(condition: str) -> dict[str, str]:
    """Return the annotation by which Pulumi waits for a condition in the object's status, for kinds that Pulumi has no
    rules for.
    """
    return {"pulumi.com/waitFor": f"condition={condition}"}


def service_account(metadata: ObjectMeta) -> Manifest:
    """Return a ServiceAccount whose token is mounted only in pods that request it."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False}


def role(metadata: ObjectMeta, rules: Sequence[PolicyRule]) -> Manifest:
    """Return a Role with these rules, in the namespace of `metadata`."""
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": list(rules)}


def role_binding(metadata: ObjectMeta, account: pulumi.Input[str], role: str | None = None) -> Manifest:
    """Return a RoleBinding of a ServiceAccount in the same namespace to `role`; to the Role with the binding's name if
    None.
    """
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": metadata["namespace"]}],
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role or metadata["name"]},
    }


def api_access_volume() -> Volume:
    """Return the projected volume with token, CA certificate and namespace that Kubernetes mounts into all containers
    of a pod, for pods of which single containers mount it.
    """
    return {
        "name": _API_ACCESS,
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]
        },
    }


def api_access_mount() -> VolumeMount:
    """Return the mount of `api_access_volume`, at the path that Kubernetes' client libraries read."""
    return {"name": _API_ACCESS, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}


def from_field(name: str, path: str) -> EnvVar:
    """Return an environment variable whose value is that of a field of the pod, for example `status.podIP`."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def plain_variables(values: Mapping[str, str]) -> list[EnvVar]:
    """Return the environment variables with these values, by name."""
    return [{"name": name, "value": value} for name, value in values.items()]


def timeouts(create_s: int, update_s: int | None = None) -> pulumi.CustomTimeouts:
    """Return Pulumi's timeouts; that of updates is that of the creation if `update_s` is None."""
    return pulumi.CustomTimeouts(create=f"{create_s}s", update=f"{update_s or create_s}s", delete=f"{DELETE_S}s")


def tolerations(shape: Shape, further: Sequence[NodeTaintArgs] | None) -> list[Toleration]:
    """Return one toleration for each taint of the shape's nodes and each further taint."""
    of_shape = ((taint.key, taint.value, taint.effect) for taint in shape.node.taints)
    taints = [*of_shape, *((taint["key"], taint["value"], taint["effect"]) for taint in further or ())]
    return [
        {"key": key, "operator": "Equal", "value": value, "effect": effect}
        for key, value, effect in dict.fromkeys(taints)
    ]


def text_digest(text: str) -> str:
    """Return the first 10 hexadecimal digits of a text's SHA-256, for names of objects that are replaced with
    the text.
    """
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def tracing_environment(service: str, tracing: TracingArgs | None) -> dict[str, str]:
    """Return the environment variables of OpenTelemetry for a program (llm-d guides, recipes/observability/tracing);
    none if `tracing` is None.

    Args:
        service: name of the program in traces.
        tracing: destination of the traces.
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
