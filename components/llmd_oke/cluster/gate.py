"""The gate between nodes and models: a Job that ends well only when the nodes that they need are there and whole."""

import hashlib
import json
from importlib import resources
from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.objects import KubernetesObject, Manifest, inputs, outputs, present, when_declared

NAMESPACE = "kube-system"
FOLDER = "/opt/llmd-oke"
SLACK_S = 600
"""What the pod may take to be placed, to pull its image and to tell its end."""

_LABELS = {"app.kubernetes.io/part-of": "llmd-oke", "app.kubernetes.io/name": "node-gate"}


class NodeGateArgs(TypedDict):
    """Nodes and devices that the gate waits for."""

    pool_name: str
    """Name of the pool of GPU nodes."""
    nodes: pulumi.Input[int]
    """Number of nodes that must be Ready."""
    once: NotRequired[bool | None]
    """Whether a pool is waited for when it is new and never again, for pools that the cluster autoscaler changes; false
    if left out.
    """
    devices: dict[str, int]
    """What each node must have to give, by resource: GPUs, and virtual functions where servers ask for them."""
    rdma_in_pods: NotRequired[bool | None]
    """Whether the nodes' RDMA devices must belong to one network namespace each, as far as the SR-IOV operator tells;
    false if left out."""
    timeout_s: int
    """How long to wait, in seconds."""
    system_pool_name: str
    """Name of the pool that the Job runs on."""
    pool_id: pulumi.Input[str]
    """OCID of the pool: another pool is waited for again."""


class NodeGate(pulumi.ComponentResource):
    """Gate that waits until as many nodes of a pool as are wanted are Ready with all their devices, and fails the
    update with the cause otherwise.

    The Job's name says what it waits for, so that a changed pool is waited for again and an unchanged one is not. With
    `once` the name says the pool only, and the Job stays as it is: the cluster autoscaler may have taken nodes away,
    and adds some for pods only. The number lies in the ConfigMap, so that the Job of a new pool finds its own.
    """

    passed: pulumi.Output[str]
    """Known once the gate is passed: the OCID of the pool."""

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
    """The gate may read nodes, what the SR-IOV operator tells of them (`states`), and nothing else."""
    group = "rbac.authorization.k8s.io"
    states_resource, states_group = operators.rdma().node_states_resource
    of_states = {"apiGroups": [states_group], "resources": [states_resource], "verbs": ["list"]}
    metadata = {"name": f"llmd-oke-{object_name}", "labels": _LABELS}
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
            *([of_states] if states else []),
        ],
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

    def metadata(awaited: dict[str, Any]) -> dict[str, Any]:
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


def _job_spec(args: NodeGateArgs, account: str, config_map: pulumi.Input[str]) -> Any:
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
                "volumes": [{"name": "program", "configMap": {"name": config_map}}],
            },
        },
    }


def _container(args: NodeGateArgs, config_map: pulumi.Input[str]) -> dict[str, Any]:
    return {
        "name": "gate",
        "image": job_images().python.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-B", f"{FOLDER}/gate.py"],
        "args": [
            f"--selector={POOL_LABEL}={args['pool_name']}",
            "--nodes=$(NODES)",
            *(f"--device={resource}={count:.0f}" for resource, count in sorted(args["devices"].items())),
            *([f"--rdma-states={_states()}"] if args.get("rdma_in_pods") else []),
            f"--timeout-s={args['timeout_s']}",
        ],
        "env": [{"name": "NODES", "valueFrom": {"configMapKeyRef": {"name": config_map, "key": "nodes"}}}],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "program", "mountPath": FOLDER, "readOnly": True}],
    }


def _states() -> str:
    """Return the path at which the API server has what the SR-IOV operator tells of nodes."""
    resource, group = operators.rdma().node_states_resource
    return f"/apis/{group}/v1/namespaces/{operators.rdma().namespace}/{resource}"


def _program() -> str:
    return (resources.files("llmd_pods") / "gate_program.py").read_text()
