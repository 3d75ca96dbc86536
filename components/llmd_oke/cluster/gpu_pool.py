"""Pools of GPU nodes, launched in one of four ways."""

from enum import StrEnum
from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke import catalogue
from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.cluster import gpu_launches
from llmd_oke.cluster.pool_parts import CyclingArgs, NodeNetworkArgs, TaintArgs
from llmd_oke.errors import KitError


class Launch(StrEnum):
    """How the nodes of a GPU pool come about."""

    MANAGED_COMPUTE_CLUSTER = "managed-compute-cluster"
    CLUSTER_NETWORK = "cluster-network"
    COMPUTE_CLUSTER_INSTANCES = "compute-cluster-instances"
    PLAIN = "plain"


class GpuPoolArgs(TypedDict):
    """What a pool of GPU nodes needs."""

    pool_name: str
    """Name of the pool, and value of the nodes' label `oke.oraclecloud.com/pool.name`."""
    launch: Launch
    """How the nodes come about."""
    shape: str
    """OCI shape of the nodes, from the catalogue."""
    size: int
    """Number of nodes; what the pool starts with if `autoscaled`."""
    autoscaled: NotRequired[bool]
    """Whether OKE's cluster autoscaler changes the size, which updates then leave alone; for node pools of OKE."""
    kubernetes_version: str
    """Version of the nodes, such as `v1.34.2`."""
    cluster_id: pulumi.Input[str]
    """OCID of the cluster."""
    compartment_id: pulumi.Input[str]
    """Compartment of the nodes."""
    tenancy_id: pulumi.Input[str]
    """Tenancy of the nodes; self-managed ones must know it."""
    availability_domain: pulumi.Input[str]
    """Availability domain of all nodes."""
    image_id: pulumi.Input[str]
    """Image of the nodes."""
    network: NodeNetworkArgs
    """Where the nodes and their pods are in the network."""
    api_server_host: pulumi.Input[str]
    """Private address of the API server, without port."""
    cluster_ca: pulumi.Input[str]
    """Certificate authority of the API server, as in kubeconfigs (base64)."""
    pool_id: NotRequired[pulumi.Input[str]]
    """A node pool or cluster network that is there already; then nothing is created."""
    compute_cluster_id: NotRequired[pulumi.Input[str]]
    """A compute cluster that is there already; then none is created."""
    fault_domains: NotRequired[list[str]]
    """Fault domains that the nodes may be in; all if left out."""
    capacity_reservation_id: NotRequired[pulumi.Input[str]]
    """Capacity reservation that the nodes are taken from."""
    host_group_id: NotRequired[pulumi.Input[str]]
    """Host group that the nodes are placed on; for node pools of OKE."""
    boot_volume_gib: NotRequired[int]
    """Size of the boot volume in GiB; 512 if left out."""
    boot_volume_vpus_per_gb: NotRequired[int]
    """Performance of the boot volume in VPUs for each GB; for self-managed nodes."""
    boot_volume_kms_key_id: NotRequired[pulumi.Input[str]]
    """Key that the boot volumes are encrypted with; Oracle's own if left out."""
    max_pods: NotRequired[int]
    """Pods of a node; 64 if left out."""
    labels: NotRequired[dict[str, str]]
    """Further labels of the nodes."""
    taints: NotRequired[list[TaintArgs]]
    """Further taints of the nodes; those of the shape are always there."""
    nvme: NotRequired[str]
    """What the local disks become: `raid-0`, `raid-10` or `none`; `raid-10` if left out."""
    huge_pages_gib: NotRequired[int]
    """Memory that is set aside as huge pages of 2 MiB, in GiB; none if left out."""
    topology_manager_policy: NotRequired[str]
    """Kubelet's Topology Manager policy: `none`, `best-effort` or `restricted`; `none` if left out."""
    topology_manager_scope: NotRequired[str]
    """What it aligns: `container` or `pod`; `container` if left out."""
    file_storage: NotRequired[bool]
    """Whether the nodes' pods mount OCI File Storage: then the nodes have what mounts NFS. False if left out."""
    cycling: NotRequired[CyclingArgs]
    """Replace nodes after a change; old nodes stay as they are if left out. For node pools of OKE."""
    eviction_grace_minutes: NotRequired[int]
    """How long OKE drains a node before it goes by force, in minutes; 5 if left out, and 60 with `cycling`. For node
    pools of OKE."""
    ssh_public_key: NotRequired[pulumi.Input[str]]
    """Key that may sign in to the nodes."""
    protect: NotRequired[bool]
    """Refuse to delete or replace the pool; false if left out."""


class GpuPool(pulumi.ComponentResource):
    """GPU nodes that join a cluster, with their RDMA network unless the launch mode is plain."""

    pool_id: pulumi.Output[str]
    """OCID of the node pool or cluster network; of the compute cluster where instances make no pool."""
    node_label: pulumi.Output[str]
    """What the nodes are selected by: `oke.oraclecloud.com/pool.name=<name>`."""
    size: pulumi.Output[int]
    """Number of nodes; if `autoscaled`, as many as the engine saw last."""

    def __init__(self, name: str, args: GpuPoolArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:GpuPool", name, None, opts)
        shape = catalogue.shape(args["shape"])
        if shape is None:
            raise KitError(f"The catalogue has no shape {args['shape']!r}.", f"Known: {catalogue.shape_names()}.")
        launch = Launch(args["launch"])
        if args.get("autoscaled", False) and launch not in _NODE_POOLS:
            message = f"The cluster autoscaler can't change {name!r}: {launch} makes no node pool of OKE."
            raise KitError(message, f"Launch it as {' or '.join(_NODE_POOLS)}, or leave `autoscaled` out.")
        made = _there(args) if "pool_id" in args else _LAUNCHES[launch](gpu_launches.Subject(self, name, args, shape))
        self.pool_id, self.size = made.pool_id, pulumi.Output.from_input(made.size)
        label = f"{POOL_LABEL}={args['pool_name']}"
        self.node_label = self.pool_id.apply(lambda _: label)
        self.register_outputs({"pool_id": self.pool_id, "node_label": self.node_label, "size": self.size})


def _there(args: GpuPoolArgs) -> gpu_launches.Launched:
    return gpu_launches.Launched(pulumi.Output.from_input(args.get("pool_id", "")), args["size"])


_NODE_POOLS = (Launch.MANAGED_COMPUTE_CLUSTER, Launch.PLAIN)

_LAUNCHES: dict[Launch, Any] = {
    Launch.MANAGED_COMPUTE_CLUSTER: gpu_launches.managed_compute_cluster,
    Launch.CLUSTER_NETWORK: gpu_launches.cluster_network,
    Launch.COMPUTE_CLUSTER_INSTANCES: gpu_launches.compute_cluster_instances,
    Launch.PLAIN: gpu_launches.plain,
}
