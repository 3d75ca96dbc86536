"""The pod of a model server: vLLM, and in front of decode servers the routing sidecar."""

import json
from collections.abc import Sequence
from typing import Any

import pulumi

from llmd_oke.catalogue import Shape
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.objects import PART_OF, Manifest
from llmd_oke.planning import rollout
from llmd_oke.serving import labels, prewarm, priorities, vllm
from llmd_oke.serving.args import NodeTaintArgs, UnitArgs
from llmd_oke.serving.manifests import api_access_mount, api_access_volume, role, role_binding
from llmd_oke.serving.versions import version
from llmd_oke.serving.vllm import ServerSpec


def pod_template(unit: str, args: UnitArgs, spec: ServerSpec) -> dict[str, Any]:
    """The template of a Deployment's pods."""
    own = {labels.VERSION: version(spec), labels.TENSOR_PARALLEL_SIZE: str(spec.tensor_parallel_size)}
    return {
        "metadata": {
            "labels": {**labels.model_server(args.get("model_label", unit), unit, spec.role), **own},
            **({"annotations": network_annotations(spec)} if spec.rdma else {}),
        },
        "spec": pod_spec(spec, args),
    }


def pod_spec(spec: ServerSpec, args: UnitArgs) -> dict[str, Any]:
    """The pod of a server. Links to Services would say where a Service `vllm` is by VLLM_PORT, vLLM's own variable, on
    which it ends.
    """
    prefix = args.get("priority_class_prefix")
    priority = {"priorityClassName": priorities.class_name(prefix, spec.tensor_parallel_size)} if prefix else {}
    return {
        "serviceAccountName": args["service_account"],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": rollout.TERMINATION_GRACE_S,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": {INSTANCE_TYPE_LABEL: spec.shape.name},
        "tolerations": tolerations(spec.shape, args.get("node_taints", ())),
        **priority,
        **({"initContainers": first} if (first := init_containers(spec, args)) else {}),
        "containers": [vllm.container(spec)],
        "volumes": [
            *vllm.pod_volumes(spec),
            *([prewarm.program_volume()] if spec.prewarmed else []),
            *([api_access_volume()] if protected_pool(spec, args) else []),
        ],
    }


def protected_pool(spec: ServerSpec, args: UnitArgs) -> str | None:
    """The InferencePool whose pods alone may prefill for the routing sidecar; None where none is checked."""
    protects = spec.role == "decode" and spec.release.routing_sidecar.ssrf_protection
    return args.get("inference_pool") if protects else None


def init_containers(spec: ServerSpec, args: UnitArgs) -> list[dict[str, Any]]:
    """What comes before vLLM. The cache is looked at in every pod, because nodes may come after it was filled."""
    cached = prewarm.containers(spec.model, spec.cache) if "prewarm" in spec.cache else []
    return [*cached, *([routing_sidecar(spec, args)] if spec.role == "decode" else [])]


def routing_sidecar(spec: ServerSpec, args: UnitArgs) -> dict[str, Any]:
    """The proxy that has prompts prefilled elsewhere; a native sidecar, so it starts before vLLM and ends after it.

    Its own `/health` says nothing of vLLM, so that whether the pod is ready is asked of vLLM's own port too. It ends
    with 0 where its configuration is bad: the probes of its port keep such a pod from loading weights and being Ready.
    """
    sidecar, pool = spec.release.routing_sidecar, protected_pool(spec, args)
    ports = [f"--port={vllm.SERVER_PORT}", f"{sidecar.server_port_flag}={vllm.BEHIND_SIDECAR_PORT}"]
    protection = ["--enable-ssrf-protection", _pool_flag(args["namespace"], pool)] if pool else []
    return {
        "name": "routing-proxy",
        "image": sidecar.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "args": [*ports, *sidecar.arguments, *protection],
        "ports": [{"name": "proxy", "containerPort": vllm.SERVER_PORT, "protocol": "TCP"}],
        "startupProbe": {"tcpSocket": {"port": "proxy"}, "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {
            "tcpSocket": {"port": "proxy"},
            "periodSeconds": 5,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "resources": {"requests": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **({"volumeMounts": [api_access_mount()]} if pool else {}),
    }


def _pool_flag(namespace: pulumi.Input[str], pool: str) -> Any:
    """A pool without its namespace would be looked for in `default`."""
    if isinstance(namespace, str):
        return f"--inference-pool={namespace}/{pool}"
    return pulumi.Output.concat("--inference-pool=", namespace, "/", pool)


def pool_reader(unit: str, args: UnitArgs) -> list[Manifest]:
    """The rights that the routing sidecars of a unit need to look up the pods of their pool."""
    metadata = {"name": f"{unit}-routing-sidecar", "namespace": args["namespace"], "labels": PART_OF}
    read = ["get", "list", "watch"]
    pools = {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], "verbs": read}
    rules = [
        {**pools, "resourceNames": [args.get("inference_pool")]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": read},
    ]
    return [role(metadata, rules), role_binding(metadata, args["service_account"])]


def tolerations(shape: Shape, further: Sequence[NodeTaintArgs] = ()) -> list[dict[str, str]]:
    """The taints of the shape's nodes and further ones of theirs, tolerated one by one."""
    of_shape = ((taint.key, taint.value, taint.effect) for taint in shape.node.taints)
    taints = [*of_shape, *((taint["key"], taint["value"], taint["effect"]) for taint in further)]
    return [
        {"key": key, "operator": "Equal", "value": value, "effect": effect}
        for key, value, effect in dict.fromkeys(taints)
    ]


def network_annotations(spec: ServerSpec) -> dict[str, str]:
    """One RDMA virtual function for each GPU (llm-d guides, amd/vllm/oci overlay)."""
    attachment = spec.shape.rdma.network_attachment
    networks = [
        {"name": attachment.name, "namespace": attachment.namespace, "interface": f"net{i + 1}"}
        for i in range(spec.tensor_parallel_size)
    ]
    return {"k8s.v1.cni.cncf.io/networks": json.dumps(networks)}
