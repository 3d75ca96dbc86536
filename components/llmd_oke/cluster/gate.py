"""Component for the gate between nodes and models: a Job that succeeds once a pool's nodes are Ready with all GPUs."""

import hashlib
import json
from importlib import resources
from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.kubernetes_types import Container, JobSpec, ObjectMeta, PolicyRule
from llmd_oke.objects import (
    NON_ROOT_USER_ID,
    RESTRICTED_CONTAINER,
    KubernetesObject,
    Manifest,
    field_value,
    inputs,
    outputs,
    present,
    when_declared,
)

NAMESPACE = "kube-system"
FOLDER = "/opt/llmd-oke"
SLACK_S = 600
"""Seconds that the Job has beyond the gate's own timeout: for scheduling, image pull and the report of its result."""

_LABELS = {"app.kubernetes.io/part-of": "llmd-oke", "app.kubernetes.io/name": "node-gate"}


class NodeGateArgs(TypedDict):
    """Arguments of a gate: the nodes and devices for which it waits."""

    pool_name: str
    """Name of the pool of GPU nodes."""
    nodes: pulumi.Input[int]
    """Number of nodes that must be Ready."""
    once: NotRequired[bool | None]
    """Whether the gate waits for a new pool only and for no later change of the pool, as pools that the cluster
    autoscaler scales need; false if left out.
    """
    devices: dict[str, int]
    """Allocatable quantity that each node must have, by resource name: GPUs, and virtual functions where servers
    request them."""
    rdma_in_pods: NotRequired[bool | None]
    """Whether each RDMA device must belong to one network namespace (exclusive mode) in the SR-IOV operator's node
    states; false if left out."""
    timeout_s: int
    """Longest wait for the nodes and their devices, in seconds."""
    system_pool_name: str
    """Name of the pool whose nodes run the Job."""
    pool_id: pulumi.Input[str]
    """OCID of the pool; with another OCID the gate waits again."""


class NodeGate(pulumi.ComponentResource):
    """Gate that waits until the required number of a pool's nodes is Ready with all devices, and otherwise fails the
    update with the cause.

    The Job's name contains a digest of its conditions, so that a changed pool gets a new Job and an unchanged pool
    keeps the finished one. With `once` the digest covers the pool's OCID only, and updates don't change the Job: the
    cluster autoscaler may have removed nodes, and adds nodes only for pending pods. The number of nodes is in the
    ConfigMap, so that the Job of a new pool reads the current number.
    """

    passed: pulumi.Output[str]
    """OCID of the pool, known once the gate's Job has succeeded."""

    def __init__(self, name: str, args: NodeGateArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:NodeGate", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self)
        object_name = f"node-gate-{args['pool_name']}"
        metadata = {"name": object_name, "namespace": NAMESPACE, "labels": _LABELS}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        rights: list[pulumi.Resource] = [
            KubernetesObject(f"{name}-service-account", account, child),
            *_rights(name, object_name, child, states=args.get("rdma_in_pods") or False),
        ]
        nodes = pulumi.Output.from_input(args["nodes"]).apply(lambda count: f"{count:.0f}")
        data = {"gate.py": _program(), "nodes": nodes}
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        program = KubernetesObject(f"{name}-program", manifest, child)
        config_map = when_declared(program, object_name)
        limit = f"{args['timeout_s'] + SLACK_S}s"
        job_opts = pulumi.ResourceOptions(
            parent=self,
            depends_on=rights,
            delete_before_replace=True,
            replace_on_changes=["spec"],
            ignore_changes=["spec"] if args.get("once") else None,
            custom_timeouts=pulumi.CustomTimeouts(create=limit, update=limit, delete="120s"),
        )
        job = KubernetesObject(f"{name}-job", _job(args, object_name, config_map), job_opts)
        self.passed = pulumi.Output.all(args["pool_id"], job.id).apply(lambda both: str(both[0]))
        self.register_outputs(outputs(self))


def _rights(name: str, object_name: str, child: pulumi.ResourceOptions, *, states: bool) -> list[KubernetesObject]:
    """Declare the ClusterRole and the binding that let the gate read nodes and, if `states`, the SR-IOV operator's node
    states, and nothing else.
    """
    group = "rbac.authorization.k8s.io"
    states_resource, states_group = operators.rdma().node_states_resource
    of_states: PolicyRule = {"apiGroups": [states_group], "resources": [states_resource], "verbs": ["list"]}
    metadata = {"name": f"llmd-oke-{object_name}", "labels": _LABELS}
    of_nodes: PolicyRule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": [of_nodes, *([of_states] if states else [])],
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": object_name, "namespace": NAMESPACE}],
    }
    return [
        KubernetesObject(f"{name}-role", role, child),
        KubernetesObject(f"{name}-role-binding", binding, child),
    ]


def _job(args: NodeGateArgs, account: str, config_map: pulumi.Input[str]) -> Manifest:
    if args.get("once"):
        awaited = pulumi.Output.all(pool_id=args["pool_id"])
    else:
        awaited = pulumi.Output.all(**present(args), program=_program())

    def metadata(awaited: dict[str, Any]) -> ObjectMeta:
        digest = hashlib.sha256(json.dumps(awaited, sort_keys=True).encode()).hexdigest()[:10]
        return {
            "name": f"node-gate-{args['pool_name']}-{digest}",
            "namespace": NAMESPACE,
            "labels": _LABELS,
            "annotations": {"pulumi.com/replaceUnready": "true"},
        }

    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": awaited.apply(metadata),
        "spec": _job_spec(args, account, config_map),
    }


def _job_spec(args: NodeGateArgs, account: str, config_map: pulumi.Input[str]) -> JobSpec:
    return {
        "backoffLimit": 0,
        "activeDeadlineSeconds": args["timeout_s"] + SLACK_S,
        "template": {
            "metadata": {"labels": _LABELS},
            "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": account,
                "automountServiceAccountToken": True,
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                "nodeSelector": {POOL_LABEL: args["system_pool_name"]},
                "containers": [_container(args, config_map)],
                "volumes": [{"name": "program", "configMap": {"name": field_value(config_map)}}],
            },
        },
    }


def _container(args: NodeGateArgs, config_map: pulumi.Input[str]) -> Container:
    resource, group = operators.rdma().node_states_resource
    states = f"/apis/{group}/v1/namespaces/{operators.rdma().namespace}/{resource}"
    return {
        "name": "gate",
        "image": job_images().python.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-B", f"{FOLDER}/gate.py"],
        "args": [
            f"--selector={POOL_LABEL}={args['pool_name']}",
            "--nodes=$(NODES)",
            *(f"--device={resource}={count:.0f}" for resource, count in sorted(args["devices"].items())),
            *([f"--rdma-states={states}"] if args.get("rdma_in_pods") else []),
            f"--timeout-s={args['timeout_s']}",
        ],
        "env": [{"name": "NODES", "valueFrom": {"configMapKeyRef": {"name": field_value(config_map), "key": "nodes"}}}],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {**RESTRICTED_CONTAINER, "runAsNonRoot": True, "runAsUser": NON_ROOT_USER_ID},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "program", "mountPath": FOLDER, "readOnly": True}],
    }


def _program() -> str:
    return (resources.files("llmd_pods") / "gate_program.py").read_text()
