"""The pod of a model server: vLLM, and in front of decode servers the routing sidecar."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmd_oke.catalogue import Shape
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.planning import rollout
from llmd_oke.serving import labels, prewarm, priorities, vllm
from llmd_oke.serving.args import NodeTaintArgs, UnitArgs
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
    """The pod of a server."""
    prefix = args.get("priority_class_prefix")
    priority = {"priorityClassName": priorities.class_name(prefix, spec.tensor_parallel_size)} if prefix else {}
    return {
        "serviceAccountName": args["service_account"],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": rollout.TERMINATION_GRACE_S,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": {INSTANCE_TYPE_LABEL: spec.shape.name},
        "tolerations": tolerations(spec.shape, args.get("node_taints", ())),
        **priority,
        **({"initContainers": first} if (first := init_containers(spec)) else {}),
        "containers": [vllm.container(spec)],
        "volumes": [*vllm.pod_volumes(spec), *([prewarm.program_volume()] if spec.prewarmed else [])],
    }


def init_containers(spec: ServerSpec) -> list[dict[str, Any]]:
    """What comes before vLLM. The cache is looked at in every pod, because nodes may come after it was filled."""
    cached = [prewarm.container(spec.model, spec.cache["prewarm"])] if "prewarm" in spec.cache else []
    return [*cached, *([routing_sidecar(spec)] if spec.role == "decode" else [])]


def routing_sidecar(spec: ServerSpec) -> dict[str, Any]:
    """The proxy that has prompts prefilled elsewhere; a native sidecar, so it starts before vLLM and ends after it.

    Its own `/health` says nothing of vLLM, so that whether the pod is ready is asked of vLLM's own port too. It ends
    with 0 where its configuration is bad: the probes of its port keep such a pod from loading weights and being Ready.
    """
    sidecar = spec.release.routing_sidecar
    return {
        "name": "routing-proxy",
        "image": sidecar.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "args": [f"--port={vllm.SERVER_PORT}", f"--vllm-port={vllm.BEHIND_SIDECAR_PORT}", *sidecar.arguments],
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
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


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


def version(spec: ServerSpec) -> str:
    """A short name of what servers must have in common to hand KV cache over: image, vLLM arguments and environment.

    Prefill and decode servers of one unit share it whatever their sizes are, so `kubectl get pods -L llmd-oke/version`
    shows how far an update is, and a change of one role's size does not restart the other role.
    """
    common = replace(spec, role="prefill" if spec.transfers_cache else spec.role, tensor_parallel_size=1)
    parts = [common.release.vllm.image.pinned, vllm.arguments(common), vllm.environment(common)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
