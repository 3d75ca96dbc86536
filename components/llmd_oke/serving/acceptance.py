"""GPU nodes are tested before they serve: a Job for each pool, and the accounts of its pods.

The Job of a pool leads: it starts a pod on each node that has not passed yet, which takes all of its devices, judges
what they tell, keeps it, and taints nodes that fail. `llmd-oke accept` runs the same Job again.
"""

import json
from typing import Any, NotRequired, TypedDict

import pulumi
from llmd_base.records import document
from llmd_pods.acceptance import NAMESPACE, TAINT_EFFECT, TAINT_KEY, TAINT_VALUE, binding_names

from llmd_oke.catalogue.benchmarks import acceptance as facts
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.catalogue.shapes import POOL_LABEL, Shape
from llmd_oke.objects import (
    PART_OF,
    KubernetesObject,
    Manifest,
    RegistryMirrorArgs,
    ShapeRef,
    inputs,
    register_outputs,
    registry_mirror,
    resolve_shape,
    when_declared,
)
from llmd_oke.serving import bench_program
from llmd_oke.serving.args import NodeTaintArgs
from llmd_oke.serving.manifests import RBAC, role, role_binding, service_account, text_digest, timeouts, tolerations
from llmd_oke.serving.network_policies import api_server, closed_namespace, policy
from llmd_oke.serving.units import network_annotations
from llmd_oke.serving.vllm import security_context

LEADER, NODE = "acceptance", "acceptance-node"
LEADER_PROGRAM, NODE_PROGRAM = "llmd_pods.acceptance_run", "llmd_pods.acceptance_node"
REQUEST_FILE = "request.json"
SLACK_S = 600
"""What the Job's pod may take to be placed, to pull its own image and to tell its end."""

USER_ID = 65532
BYTES_PER_GIB = 2**30
DISK_FOLDER = "/local-disks"
"""Where a node's pod finds the file system of the node's local disks."""

_LABELS = {**PART_OF, "app.kubernetes.io/name": LEADER}
_NODE_LABELS = {**_LABELS, "app.kubernetes.io/component": NODE}


class NodeLimitsArgs(TypedDict):
    """Limits of each node, in GB (10^9 bytes) per second."""

    gpus: int
    """GPUs."""
    virtual_functions: int
    """RDMA virtual functions; 0 without RDMA."""
    gid_index: int
    """Index of the GID that UCX and RCCL use."""
    mtu_bytes: int
    """MTU of the RDMA network."""
    link_gb_per_s: float
    """A read from GPU to GPU over one port."""
    all_reduce_gb_per_s: float
    """Bus bandwidth of an all-reduce between two nodes."""
    all_reduce_alone_gb_per_s: float
    """The same within one node."""
    least_carried_share: float
    """Share of what is read that RDMA ports must have counted."""
    memory_gb_per_s: NotRequired[float]
    """A copy within a GPU's memory, reading and writing together; not judged if left out."""
    matrix_tflops: NotRequired[float]
    """Matrix products of BF16 on a GPU, in 10^12 operations per second; not judged if left out."""
    disks: NotRequired[int]
    """NVMe disks; not judged if left out."""
    disk_bytes: NotRequired[int]
    """Size of each NVMe disk at least."""
    disk_gb_per_s: NotRequired[float]
    """Reads of the file system of all NVMe disks; not judged if left out."""


class AcceptedPoolArgs(TypedDict):
    """A pool whose nodes are tested."""

    name: str
    """Name of the pool of GPU nodes."""
    shape: ShapeRef
    """OCI shape of the nodes, from the catalogue."""
    pool_id: pulumi.Input[str]
    """OCID of the pool: another pool is tested again."""
    nodes: int
    """Nodes of the pool: where there are more, the new ones are tested."""
    needed: int
    """Nodes that suffice for what is served."""
    on_failure: str
    """`spares`: go on where enough nodes pass; `hold`: only where all do."""
    checks: list[str]
    """`gpus`, `memory`, `matrix-products`, `disks`, `rdma`, `locality`, `links`, `all-reduce`."""
    limits: NodeLimitsArgs
    """What nodes must reach."""
    limit_s: int
    """Longest that all of it may take, in seconds."""
    node_taints: NotRequired[list[NodeTaintArgs] | None]
    """Taints of the nodes beside those of their shape; none if left out."""
    disk_folder: NotRequired[str | None]
    """Folder on the nodes that is the file system of their local disks; not read if left out."""


class AcceptanceArgs(TypedDict):
    """Pools whose nodes are tested, and the image that tests them."""

    pools: list[AcceptedPoolArgs]
    """The pools whose nodes are tested."""
    image: str
    """Image of vLLM: it has amd-smi, PyTorch with RCCL, and NIXL, and is what servers run."""
    system_pool_name: NotRequired[str | None]
    """Name of the pool that the Jobs run on; any node if left out."""
    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry that the image is taken from; the one that publishes it if left out."""


class Acceptance(pulumi.ComponentResource):
    """Test of the GPU nodes of pools before models come: GPUs, RDMA ports, their places, reads over each port and an
    all-reduce between nodes. A node that fails is tainted and named; the update fails where the others don't suffice.

    A Job runs again when its pool or what is asked of it changes, and after it failed; nodes that have passed are not
    tested again. What it may do ends with it: a Job that has passed takes its account out of its bindings, one that has
    not passed deletes them, and the next update makes them again (`llmd-oke up`, or `pulumi up --refresh`).
    """

    passed: pulumi.Output[str]
    """Known once all pools have passed: their names."""

    def __init__(self, name: str, args: AcceptanceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Acceptance", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self)
        namespace = KubernetesObject(f"{name}-namespace", namespace_manifest(), child)
        inside = pulumi.ResourceOptions(parent=self, depends_on=[namespace])
        shared: list[pulumi.Resource] = [
            KubernetesObject(f"{name}-{key}", manifest, inside) for key, manifest in shared_manifests().items()
        ]
        jobs = [self._pool(pool, args, shared, inside) for pool in args["pools"]]
        names = ", ".join(pool["name"] for pool in args["pools"])
        self.passed = pulumi.Output.all(*[job.urn for job in jobs]).apply(lambda _: names)
        register_outputs(self)

    def _pool(
        self,
        pool: AcceptedPoolArgs,
        args: AcceptanceArgs,
        shared: list[pulumi.Resource],
        inside: pulumi.ResourceOptions,
    ) -> KubernetesObject:
        """The request of a pool and its Job, whose name has a digest of it."""
        name = f"{LEADER}-{pool['name']}"
        metadata = {"name": name, "namespace": NAMESPACE, "labels": _LABELS}
        asked = request(pool, args["image"], registry_mirror(args))
        program = KubernetesObject(f"{pool['name']}-acceptance-program", program_manifest(metadata, asked), inside)

        def job_metadata(pool_id: str) -> dict[str, Any]:
            text = json.dumps([pool_id, pool["nodes"], asked], sort_keys=True)
            annotations = {"pulumi.com/replaceUnready": "true"}
            return {**metadata, "name": f"{name}-{text_digest(text)}", "annotations": annotations}

        named = pulumi.Output.from_input(pool["pool_id"]).apply(job_metadata)
        manifest = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": named,
            "spec": job_spec(when_declared(program, name), pool["limit_s"], args.get("system_pool_name")),
        }
        # The Job takes its accounts out of the bindings when it has passed; nothing puts them back but another Job.
        granted = pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(ignore_changes=["subjects"]))
        rights = [
            KubernetesObject(f"{pool['name']}-acceptance-{key}", _once_named(key, right, named), granted)
            for key, right in rights_of(name).items()
        ]
        limited = pulumi.ResourceOptions(
            parent=self,
            depends_on=[*shared, *rights],
            delete_before_replace=True,
            replace_on_changes=["spec"],
            custom_timeouts=timeouts(pool["limit_s"] + 2 * SLACK_S),
        )
        return KubernetesObject(f"{pool['name']}-acceptance-job", manifest, limited)


def namespace_manifest() -> Manifest:
    """The namespace of all acceptances. Pods on nodes lock memory for RDMA, as servers do, which pod security allows at
    its `privileged` level only.
    """
    labels = {**_LABELS, "pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def shared_manifests() -> dict[str, Manifest]:
    """Accounts, roles, policies and the program of nodes' pods; all acceptances share them. By the end of their names.

    Nodes' pods meet each other on any port (NIXL, UCX and RCCL take those that are free); nobody else reaches any.
    """
    leader = {"name": LEADER, "namespace": NAMESPACE, "labels": _LABELS}
    node = {**leader, "name": NODE}
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "delete"]}
    results = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "patch"]}
    others = [{"podSelector": {"matchLabels": _NODE_LABELS}}]
    told = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch"]}
    given_up = {"apiGroups": [RBAC], "resources": ["rolebindings"], "verbs": ["patch", "delete"]}
    return {
        "service-account": service_account(leader),
        "role": role(leader, [pods, results, given_up]),
        "node-service-account": service_account(node),
        "node-role": role(node, [told]),
        "node-role-binding": role_binding(node, NODE),
        **{policy["metadata"]["name"]: policy for policy in closed_namespace(NAMESPACE)},
        "network-policy": policy(leader, _LABELS, [], [api_server(None)]),
        "node-network-policy": policy(node, _NODE_LABELS, [{"from": others}], [{"to": others}, api_server(None)]),
        "node-program": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": node,
            "binaryData": bench_program.binary_data(NODE_PROGRAM),
        },
    }


def _once_named(key: str, right: Manifest, job_metadata: pulumi.Output[dict[str, Any]]) -> Manifest:
    """One of a Job's rights, with the fields of the Job's name once that is known."""

    def field_of(field: str) -> pulumi.Output[Any]:
        return job_metadata.apply(lambda metadata: rights_of(metadata["name"])[key][field])

    return {field: value if field in {"apiVersion", "kind"} else field_of(field) for field, value in right.items()}


def rights_of(job: str) -> dict[str, Manifest]:
    """Return the rights of one Job: to start pods in its namespace, to taint nodes, and to give both up. By the end of
    their names.

    Args:
        job: name of the Job, which is that of its bindings (`llmd_pods.acceptance.binding_names`).
    """
    in_namespace, of_cluster = binding_names(job)
    account = [{"kind": "ServiceAccount", "name": LEADER, "namespace": NAMESPACE}]
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]}
    given_up = {"apiGroups": [RBAC], "resources": ["clusterrolebindings"], "verbs": ["patch", "delete"]}
    metadata = {"name": of_cluster, "labels": _LABELS}
    return {
        "role-binding": role_binding({"name": in_namespace, "namespace": NAMESPACE, "labels": _LABELS}, LEADER, LEADER),
        "cluster-role": {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": metadata,
            "rules": [nodes, {**given_up, "resourceNames": [of_cluster]}],
        },
        "cluster-role-binding": {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": of_cluster},
            "subjects": account,
        },
    }


def program_manifest(metadata: dict[str, Any], asked: dict[str, Any]) -> Manifest:
    """The program of a Job, with what it is asked."""
    data = {REQUEST_FILE: json.dumps(asked, sort_keys=True)}
    binary = bench_program.binary_data(LEADER_PROGRAM)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "binaryData": binary}


def request(pool: AcceptedPoolArgs, image: str, mirror: MirrorRegistry | None = None) -> dict[str, Any]:
    """Return the request to a Job (`llmd_pods.acceptance_run.RunRequest`)."""
    asked = _request(pool, image)
    return mirror.in_manifest(asked) if mirror else asked


def _request(pool: AcceptedPoolArgs, image: str) -> dict[str, Any]:
    known, shape = facts(), resolve_shape(pool["shape"])
    rdma = pool["limits"]["virtual_functions"] > 0
    return document(
        "needed on_failure checks limits most_rounds placement_limit_s limit_s",
        pool,
        known,
        pool=pool["name"],
        selector=f"{POOL_LABEL}={pool['name']}",
        namespace=NAMESPACE,
        image=image,
        devices=shape.devices(rdma=rdma),
        pod=node_pod(pool, shape, image, rdma=rdma),
        node_request=document(
            "checks limits repeats warm_ups round_limit_s limit_s matrix_size",
            pool,
            known,
            link_bytes=known.link_gib * BYTES_PER_GIB,
            reduce_bytes=known.reduce_gib * BYTES_PER_GIB,
            copy_bytes=known.copy_gib * BYTES_PER_GIB,
            disk_bytes=known.disk_gib * BYTES_PER_GIB,
            disk_folder=DISK_FOLDER if pool.get("disk_folder") else None,
        ),
        start_limit_s=min(known.start_limit_s, pool["limit_s"]),
    )


def node_pod(pool: AcceptedPoolArgs, shape: Shape, image: str, *, rdma: bool) -> dict[str, Any]:
    """Return the pod that runs on a node: it takes all of its devices, as servers do. A node that failed before is
    tested again.
    """
    known = facts()
    devices = {name: str(count) for name, count in shape.devices(rdma=rdma).items()}
    amounts = known.resources.model_dump(exclude_none=True)
    disks = pool.get("disk_folder")
    own = {"key": TAINT_KEY, "operator": "Equal", "value": TAINT_VALUE, "effect": TAINT_EFFECT}
    container = {
        "name": NODE,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": bench_program.command(),
        "env": _environment(shape, rdma=rdma),
        "resources": {kind: {**amount, **devices} for kind, amount in amounts.items()},
        "securityContext": security_context(rdma=rdma),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            bench_program.mount(),
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            *([{"name": "local-disks", "mountPath": DISK_FOLDER}] if disks else []),
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": _NODE_LABELS,
            **({"annotations": network_annotations(shape, shape.gpus)} if rdma else {}),
        },
        "spec": {
            "serviceAccountName": NODE,
            "automountServiceAccountToken": True,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": pool["limit_s"],
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "tolerations": [*tolerations(shape, pool.get("node_taints") or ()), own],
            "containers": [container],
            "volumes": [
                bench_program.volume(NODE),
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{known.shared_memory_gib}Gi"}},
                *([{"name": "local-disks", "hostPath": {"path": disks, "type": "Directory"}}] if disks else []),
            ],
        },
    }


def _environment(shape: Shape, *, rdma: bool) -> list[dict[str, Any]]:
    values = {"HOME": "/tmp", **({**shape.rdma.environment, **shape.rdma.rccl} if rdma else {})}  # noqa: S108
    fields = {"NODE_NAME": "spec.nodeName", "POD_IP": "status.podIP"}
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in values.items()),
    ]


def job_spec(config_map: pulumi.Input[str], limit_s: int, system_pool_name: str | None) -> dict[str, Any]:
    """The Job that leads the acceptance of a pool."""
    container = {
        "name": LEADER,
        "image": job_images().python.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": bench_program.command(),
        "args": [f"{bench_program.FOLDER}/{REQUEST_FILE}"],
        "env": [
            bench_program.from_label("JOB_NAME", "batch.kubernetes.io/job-name"),
            bench_program.from_label("JOB_UID", "batch.kubernetes.io/controller-uid"),
        ],
        "resources": facts().leader.model_dump(exclude_none=True),
        "securityContext": bench_program.CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [bench_program.mount()],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": LEADER,
        "automountServiceAccountToken": True,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": bench_program.VOLUME, "configMap": {"name": config_map}}],
    }
    if system_pool_name is not None:
        pod["nodeSelector"] = {POOL_LABEL: system_pool_name}
    return {
        "backoffLimit": 0,
        "activeDeadlineSeconds": limit_s + SLACK_S,
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }
