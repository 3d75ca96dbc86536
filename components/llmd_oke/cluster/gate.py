"""The gate between nodes and models: a Job that ends well only when all GPU nodes are there and whole."""

import hashlib
import json
from importlib import resources
from typing import Any, TypedDict

import pulumi
import pulumi_kubernetes as k8s

from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.catalogue.storage import model_cache

NAMESPACE = "kube-system"
FOLDER = "/opt/llmd-oke"
SLACK_S = 600
"""What the pod may take to be placed, to pull its image and to tell its end."""

_LABELS = {"app.kubernetes.io/part-of": "llmd-oke", "app.kubernetes.io/name": "node-gate"}


class NodeGateArgs(TypedDict):
    """What the gate waits for."""

    pool_name: str
    """Name of the pool of GPU nodes."""
    nodes: int
    """Number of nodes that must be Ready."""
    resource: str
    """Resource that the GPUs are, such as `amd.com/gpu`."""
    gpus: int
    """GPUs that each node must have to give."""
    timeout_s: int
    """How long to wait, in seconds."""
    system_pool_name: str
    """Name of the pool that the Job runs on."""
    pool_id: pulumi.Input[str]
    """OCID of the pool: another pool is waited for again."""


class NodeGate(pulumi.ComponentResource):
    """Waits until all nodes of a pool are Ready with all their GPUs, and fails the update with the cause otherwise.

    The Job's name says what it waits for, so that a changed pool is waited for again and an unchanged one is not.
    """

    passed: pulumi.Output[str]
    """Known once the gate is passed: the OCID of the pool."""

    def __init__(self, name: str, args: NodeGateArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:NodeGate", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        object_name = f"node-gate-{args['pool_name']}"
        metadata: Any = {"name": object_name, "namespace": NAMESPACE, "labels": _LABELS}
        account = k8s.core.v1.ServiceAccount(f"{name}-service-account", metadata=metadata, opts=child)
        may = _rights(name, object_name, child)
        program = k8s.core.v1.ConfigMap(
            f"{name}-program",
            metadata={"name": f"{object_name}-{_digest(_program())}", "namespace": NAMESPACE, "labels": _LABELS},
            data={"gate.py": _program()},
            opts=child,
        )
        limits = f"{args['timeout_s'] + SLACK_S}s"
        job = k8s.batch.v1.Job(
            f"{name}-job",
            metadata=pulumi.Output.from_input(args["pool_id"]).apply(lambda pool_id: _job_metadata(args, pool_id)),
            spec=_job_spec(args, object_name, program.metadata.apply(lambda m: m.name or "")),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[account, *may],
                delete_before_replace=True,
                replace_on_changes=["spec"],
                custom_timeouts=pulumi.CustomTimeouts(create=limits, update=limits, delete="120s"),
            ),
        )
        self.passed = pulumi.Output.all(args["pool_id"], job.id).apply(lambda both: str(both[0]))
        self.register_outputs({"passed": self.passed})


def _rights(name: str, object_name: str, child: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """The gate may read nodes and nothing else."""
    metadata: Any = {"name": f"llmd-oke-{object_name}", "labels": _LABELS}
    role = k8s.rbac.v1.ClusterRole(
        f"{name}-role",
        metadata=metadata,
        rules=[{"api_groups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}],
        opts=child,
    )
    binding = k8s.rbac.v1.ClusterRoleBinding(
        f"{name}-role-binding",
        metadata=metadata,
        role_ref={"api_group": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": metadata["name"]},
        subjects=[{"kind": "ServiceAccount", "name": object_name, "namespace": NAMESPACE}],
        opts=child,
    )
    return [role, binding]


def _job_metadata(args: NodeGateArgs, pool_id: str) -> Any:
    waited_for = {**args, "pool_id": pool_id, "program": _program()}
    name = f"node-gate-{args['pool_name']}-{_digest(json.dumps(waited_for, sort_keys=True))}"
    return {"name": name, "namespace": NAMESPACE, "labels": _LABELS}


def _job_spec(args: NodeGateArgs, account: str, config_map: pulumi.Input[str]) -> Any:
    return {
        "backoff_limit": 0,
        "active_deadline_seconds": args["timeout_s"] + SLACK_S,
        "template": {
            "metadata": {"labels": _LABELS},
            "spec": {
                "restart_policy": "Never",
                "service_account_name": account,
                "node_selector": {POOL_LABEL: args["system_pool_name"]},
                "containers": [_container(args)],
                "volumes": [{"name": "program", "config_map": {"name": config_map}}],
            },
        },
    }


def _container(args: NodeGateArgs) -> dict[str, Any]:
    return {
        "name": "gate",
        "image": model_cache().image,
        "image_pull_policy": "IfNotPresent",
        "command": ["python", "-B", f"{FOLDER}/gate.py"],
        "args": [
            f"--selector={POOL_LABEL}={args['pool_name']}",
            f"--nodes={args['nodes']}",
            f"--resource={args['resource']}",
            f"--gpus={args['gpus']}",
            f"--timeout-s={args['timeout_s']}",
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "security_context": {
            "allow_privilege_escalation": False,
            "capabilities": {"drop": ["ALL"]},
            "read_only_root_filesystem": True,
            "run_as_non_root": True,
            "run_as_user": 65532,
        },
        "termination_message_policy": "FallbackToLogsOnError",
        "volume_mounts": [{"name": "program", "mount_path": FOLDER, "read_only": True}],
    }


def _program() -> str:
    return (resources.files("llmd_oke.cluster") / "gate_program.py").read_text()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
