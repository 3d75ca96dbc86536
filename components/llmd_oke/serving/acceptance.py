"""Acceptance test of GPU nodes before they serve: the Job of each pool, its ConfigMap, accounts and roles.

The Job of a pool starts a test pod on each node that has not passed yet. The test pod takes all devices of its node.
The Job judges the measured figures, stores them and taints nodes that fail. `llmd-oke accept` runs the same Job again.
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
from llmd_oke.kubernetes_types import (
    EnvVar,
    JobSpec,
    NetworkPolicyPeer,
    ObjectMeta,
    Pod,
    PodMeta,
    PodSpec,
    PolicyRule,
    Toleration,
    Volume,
    VolumeMount,
)
from llmd_oke.objects import (
    NON_ROOT_USER_ID,
    PART_OF,
    KubernetesObject,
    Manifest,
    RegistryMirrorArgs,
    ShapeRef,
    inputs,
    pod_security,
    register_outputs,
    registry_mirror,
    resolve_shape,
    when_declared,
)
from llmd_oke.serving import bench_program
from llmd_oke.serving.args import NodeTaintArgs
from llmd_oke.serving.manifests import (
    RBAC,
    from_field,
    plain_variables,
    role,
    role_binding,
    service_account,
    text_digest,
    timeouts,
    tolerations,
)
from llmd_oke.serving.network_policies import api_server, closed_namespace, policy
from llmd_oke.serving.units import network_annotations
from llmd_oke.serving.vllm import security_context

LEADER, NODE = "acceptance", "acceptance-node"
LEADER_PROGRAM, NODE_PROGRAM = "llmd_pods.acceptance_run", "llmd_pods.acceptance_node"
REQUEST_FILE = "request.json"
SLACK_S = 600
"""Seconds that an acceptance Job's pod may take in addition to the tests: to be scheduled, to pull its image and to
end.
"""

BYTES_PER_GIB = 2**30
DISK_FOLDER = "/local-disks"
"""Mount path, in the test pods, of the file system of the node's local disks."""

_LABELS = {**PART_OF, "app.kubernetes.io/name": LEADER}
_NODE_LABELS = {**_LABELS, "app.kubernetes.io/component": NODE}


class NodeLimitsArgs(TypedDict):
    """Thresholds of the acceptance test that each node must meet. GB are 10^9 bytes."""

    gpus: int
    """Number of GPUs that each node must have."""
    virtual_functions: int
    """Number of RDMA virtual functions that each node must have; 0 without RDMA."""
    gid_index: int
    """Index of the GID of each RDMA port that UCX and RCCL use."""
    mtu_bytes: int
    """MTU of the RDMA network in bytes."""
    link_gb_per_s: float
    """Least bandwidth of a read between two GPUs through one RDMA port, in GB/s."""
    all_reduce_gb_per_s: float
    """Least bus bandwidth of an all-reduce between two nodes, in GB/s."""
    all_reduce_alone_gb_per_s: float
    """Least bus bandwidth of an all-reduce within one node, in GB/s."""
    least_carried_share: float
    """Share of the bytes read between GPUs that the counters of the RDMA ports must show; 0.9 is 90 %."""
    memory_gb_per_s: NotRequired[float]
    """Least bandwidth of a copy within a GPU's memory, in GB/s, reads and writes added; not tested if left out."""
    matrix_tflops: NotRequired[float]
    """Least rate of BF16 matrix products on one GPU, in 10^12 operations per second; not tested if left out."""
    disks: NotRequired[int]
    """Number of NVMe disks that each node must have; not tested if left out."""
    disk_bytes: NotRequired[int]
    """Least size of each NVMe disk, in bytes."""
    disk_gb_per_s: NotRequired[float]
    """Least rate of reads from the file system over all NVMe disks, in GB/s; not tested if left out."""


class AcceptedPoolArgs(TypedDict):
    """Pool of GPU nodes to test."""

    name: str
    """Name of the pool of GPU nodes."""
    shape: ShapeRef
    """OCI shape of the nodes, from the catalogue."""
    pool_id: pulumi.Input[str]
    """OCID of the pool. The nodes of a pool with another OCID are tested again."""
    nodes: int
    """Number of the pool's nodes. When the number grows, the new nodes are tested."""
    needed: int
    """Number of nodes that the planned servers need, which must pass the test even with `on_failure: spares`."""
    on_failure: str
    """`spares`: pass if at least `needed` nodes pass; `hold`: pass only if all nodes pass."""
    checks: list[str]
    """Tests to run: `gpus`, `memory`, `matrix-products`, `disks`, `rdma`, `locality`, `links`, `all-reduce`."""
    limits: NodeLimitsArgs
    """Thresholds that each node must meet."""
    limit_s: int
    """Limit of the test of the whole pool in seconds."""
    node_taints: NotRequired[list[NodeTaintArgs] | None]
    """Taints of the nodes beside those of their shape; none if left out."""
    disk_folder: NotRequired[str | None]
    """Directory on the nodes where the file system of their local disks is mounted; not read if left out."""


class AcceptanceArgs(TypedDict):
    """Arguments of the acceptance test: pools of GPU nodes, and the image of the test pods."""

    pools: list[AcceptedPoolArgs]
    """Pools of GPU nodes to test."""
    image: str
    """Image of vLLM for the test pods: the one that servers run. It contains amd-smi, PyTorch with RCCL, and NIXL."""
    system_pool_name: NotRequired[str | None]
    """Name of the pool on whose nodes the Jobs run; any node if left out."""
    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry from which the image is pulled; the registry in the image's name if left out."""


class Acceptance(pulumi.ComponentResource):
    """Test of the GPU nodes of pools before model servers are declared: GPUs, RDMA ports, their locality, reads over
    each port, and an all-reduce between nodes. Nodes that fail are tainted and named in the Job's result; the update
    fails if too few nodes pass.

    A pool's Job runs again when the pool or the requested tests change, and after a failure; nodes that have passed are
    not tested again. The Job's rights end with the Job: a Job that passes removes the ServiceAccount from its role
    bindings, a Job that fails deletes them. The next update with a refresh (`llmd-oke up`, or `pulumi up --refresh`)
    recreates the deleted bindings.
    """

    passed: pulumi.Output[str]
    """Names of the pools, joined by commas; known once all pools have passed."""

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
        """Declare a pool's request and its Job, whose name contains a digest of the request."""
        name = f"{LEADER}-{pool['name']}"
        metadata: ObjectMeta = {"name": name, "namespace": NAMESPACE, "labels": _LABELS}
        asked = request(pool, args["image"], registry_mirror(args))
        program = KubernetesObject(f"{pool['name']}-acceptance-program", program_manifest(metadata, asked), inside)

        def job_metadata(pool_id: str) -> ObjectMeta:
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
    """Return the namespace in which all acceptance tests run. Its pod security level is `privileged`, since test pods
    lock memory for RDMA, as servers do.
    """
    labels = {**_LABELS, "pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def shared_manifests() -> dict[str, Manifest]:
    """Return the objects that the acceptance tests of all pools share: ServiceAccounts, Roles, network policies and the
    ConfigMap with the test pods' program, by the suffixes of their resource names.

    Test pods may connect to each other on any port (NIXL, UCX and RCCL use free ones); other pods can't connect to
    them.
    """
    leader: ObjectMeta = {"name": LEADER, "namespace": NAMESPACE, "labels": _LABELS}
    node: ObjectMeta = {**leader, "name": NODE}
    pods: PolicyRule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "delete"]}
    results: PolicyRule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "patch"]}
    others: list[NetworkPolicyPeer] = [{"podSelector": {"matchLabels": _NODE_LABELS}}]
    told: PolicyRule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch"]}
    given_up: PolicyRule = {"apiGroups": [RBAC], "resources": ["rolebindings"], "verbs": ["patch", "delete"]}
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


def _once_named(key: str, right: Manifest, job_metadata: pulumi.Output[ObjectMeta]) -> Manifest:
    """Return one object of `rights_of`, with fields that resolve once the Job's name is known."""
    return {
        field: value
        if field in {"apiVersion", "kind"}
        else job_metadata.apply(lambda metadata, field=field: rights_of(metadata["name"])[key][field])
        for field, value in right.items()
    }


def rights_of(job: str) -> dict[str, Manifest]:
    """Return the roles and bindings of one acceptance Job by the suffixes of their resource names. The Job may start
    pods in its namespace, taint nodes, and remove its own bindings.

    Args:
        job: name of the Job; the bindings have the same name (`llmd_pods.acceptance.binding_names`).
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


def program_manifest(metadata: ObjectMeta, asked: dict[str, Any]) -> Manifest:
    """Return the ConfigMap with a Job's program and its request as JSON."""
    data = {REQUEST_FILE: json.dumps(asked, sort_keys=True)}
    binary = bench_program.binary_data(LEADER_PROGRAM)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "binaryData": binary}


def request(pool: AcceptedPoolArgs, image: str, mirror: MirrorRegistry | None = None) -> dict[str, Any]:
    """Return the request to a pool's acceptance Job (`llmd_pods.acceptance_run.RunRequest`), with images from `mirror`
    if there is one.
    """
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


def node_pod(pool: AcceptedPoolArgs, shape: Shape, image: str, *, rdma: bool) -> Pod:
    """Return the test pod for a node. Like a server, the pod takes all devices of the node. It tolerates the taint of
    nodes that failed an earlier acceptance, so that these are tested again.
    """
    known = facts()
    own: Toleration = {"key": TAINT_KEY, "operator": "Equal", "value": TAINT_VALUE, "effect": TAINT_EFFECT}
    devices = {name: str(count) for name, count in shape.devices(rdma=rdma).items()}
    amounts = bench_program.resources(known.resources)
    mounts: list[VolumeMount] = [bench_program.mount(), {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    volumes: list[Volume] = [
        bench_program.volume(NODE),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{known.shared_memory_gib}Gi"}},
    ]
    if disks := pool.get("disk_folder"):
        volumes.append({"name": "local-disks", "hostPath": {"path": disks, "type": "Directory"}})
        mounts.append({"name": "local-disks", "mountPath": DISK_FOLDER})
    container = bench_program.container(
        name=NODE,
        image=image,
        command=bench_program.command(),
        env=_environment(shape, rdma=rdma),
        resources={
            "requests": {**(amounts.get("requests") or {}), **devices},
            "limits": {**(amounts.get("limits") or {}), **devices},
        },
        securityContext=security_context(rdma=rdma),
        volumeMounts=mounts,
    )
    metadata: PodMeta = {"labels": _NODE_LABELS}
    if rdma:
        metadata["annotations"] = network_annotations(shape, shape.gpus)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "serviceAccountName": NODE,
            "automountServiceAccountToken": True,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": pool["limit_s"],
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "tolerations": [*tolerations(shape, pool.get("node_taints")), own],
            "containers": [container],
            "volumes": volumes,
        },
    }


def _environment(shape: Shape, *, rdma: bool) -> list[EnvVar]:
    values = {"HOME": "/tmp", **({**shape.rdma.environment, **shape.rdma.rccl} if rdma else {})}  # noqa: S108
    node, address = from_field("NODE_NAME", "spec.nodeName"), from_field("POD_IP", "status.podIP")
    return [node, address, *plain_variables(values)]


def job_spec(config_map: pulumi.Input[str], limit_s: int, system_pool_name: str | None) -> JobSpec:
    """Return the specification of the Job that runs the acceptance of a pool."""
    container = bench_program.container(
        name=LEADER,
        image=job_images().python.pinned,
        command=bench_program.command(),
        args=[f"{bench_program.FOLDER}/{REQUEST_FILE}"],
        env=bench_program.identity(),
        resources=bench_program.resources(facts().leader),
        volumeMounts=[bench_program.mount()],
    )
    pod: PodSpec = {
        "restartPolicy": "Never",
        "serviceAccountName": LEADER,
        "automountServiceAccountToken": True,
        "securityContext": pod_security(NON_ROOT_USER_ID),
        "containers": [container],
        "volumes": [bench_program.volume(config_map)],
    }
    if system_pool_name is not None:
        pod["nodeSelector"] = {POOL_LABEL: system_pool_name}
    return {
        "backoffLimit": 0,
        "activeDeadlineSeconds": limit_s + SLACK_S,
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }
