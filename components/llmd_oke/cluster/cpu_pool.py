"""Pools without GPUs."""

from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue.eviction import eviction
from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.cluster.instance_metadata import Boot
from llmd_oke.cluster.managed_pool import PoolParts, managed_pool
from llmd_oke.cluster.pool_parts import (
    CyclingArgs,
    NodeNetworkArgs,
    TaintArgs,
    eviction_settings,
    kubelet_taints,
    pod_network,
)
from llmd_oke.cluster.questions import ask
from llmd_oke.cluster.timeouts import CPU_POOL
from llmd_oke.planning.pools import newest_oke_image

DEFAULT_BOOT_VOLUME_GIB = 128

PODS_PER_VNIC = 31
MOST_PODS = 110
"""With a VCN-native network each secondary VNIC carries 31 pods, and there is one for each OCPU but the first, at least
one (oci-hpc-oke).
"""


class CpuNodesArgs(TypedDict):
    """What nodes without GPUs need."""

    pool_name: str
    """Name of the pool, and value of the nodes' label `oke.oraclecloud.com/pool.name`."""
    shape: str
    """OCI shape of the nodes."""
    size: int
    """Number of nodes."""
    kubernetes_version: str
    """Version of the nodes, such as `v1.34.2`."""
    cluster_id: pulumi.Input[str]
    """OCID of the cluster."""
    compartment_id: pulumi.Input[str]
    """Compartment of the nodes."""
    availability_domains: pulumi.Input[list[str]]
    """Where the nodes are placed."""
    network: NodeNetworkArgs
    """Where the nodes and their pods are in the network."""
    api_server_host: pulumi.Input[str]
    """Private address of the API server, without port."""
    image_id: NotRequired[pulumi.Input[str]]
    """Image of the nodes; the newest OKE image of the version if left out, which asks OCI at preview."""
    ocpus: NotRequired[float]
    """OCPUs of each node, for flexible shapes; 4 if left out."""
    memory_gib: NotRequired[float]
    """Memory of each node in GiB, for flexible shapes; 16 if left out."""
    boot_volume_gib: NotRequired[int]
    """Size of the boot volume in GiB; 128 if left out."""
    max_pods: NotRequired[int]
    """Pods of a node with a VCN-native network; what the shape's VNICs carry if left out."""
    labels: NotRequired[dict[str, str]]
    """Further labels of the nodes."""
    taints: NotRequired[list[TaintArgs]]
    """Taints of the nodes."""
    cycling: NotRequired[CyclingArgs]
    """Replace nodes after a change; old nodes stay as they are if left out."""
    ssh_public_key: NotRequired[pulumi.Input[str]]
    """Key that may sign in to the nodes."""
    protect: NotRequired[bool]
    """Refuse to delete or replace the pool; false if left out."""


class CpuPoolArgs(CpuNodesArgs):
    """What a pool without GPUs needs. `size` is what it starts with if `autoscaled`."""

    autoscaled: NotRequired[bool]
    """Whether OKE's cluster autoscaler changes the size, which updates then leave alone; false if left out."""


class CpuPool(pulumi.ComponentResource):
    """Nodes without GPUs, as a node pool of OKE."""

    pool_id: pulumi.Output[str]
    """OCID of the node pool."""
    node_label: pulumi.Output[str]
    """What the nodes are selected by: `oke.oraclecloud.com/pool.name=<name>`."""

    def __init__(self, name: str, args: CpuPoolArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:CpuPool", name, None, opts)
        self.pool_id = node_pool(self, name, args)
        label = f"{POOL_LABEL}={args['pool_name']}"
        self.node_label = self.pool_id.apply(lambda _: label)
        self.register_outputs({"pool_id": self.pool_id, "node_label": self.node_label})


def node_pool(component: pulumi.Resource, name: str, args: CpuNodesArgs) -> pulumi.Output[str]:
    """Declares the node pool and answers with its OCID."""
    parts = PoolParts(
        labels={**args.get("labels", {}), POOL_LABEL: args["pool_name"]},
        boot=Boot("cpu", args["kubernetes_version"], kubelet_taints(args.get("taints", []))),
        node_config=_node_config(args),
        image_id=args["image_id"] if "image_id" in args else kept_image(component, name, args),
        boot_volume_gib=args.get("boot_volume_gib", DEFAULT_BOOT_VOLUME_GIB),
        shape_config=_shape_config(args),
        eviction=eviction_settings(eviction().grace_minutes),
    )
    opts = pulumi.ResourceOptions(
        parent=component,
        protect=args.get("protect", False),
        custom_timeouts=CPU_POOL,
        ignore_changes=["definedTags"],
    )
    return managed_pool(name, args, parts, opts).id


def most_pods(ocpus: float) -> int:
    """The pods of a node with that many OCPUs and a VCN-native network."""
    return min(MOST_PODS, max(1, int(ocpus) - 1) * PODS_PER_VNIC)


def kept_image(component: pulumi.Resource, name: str, args: CpuNodesArgs) -> pulumi.Output[str]:
    """The image that was the newest when the pool got its Kubernetes version. OKE takes an image with its own version
    only, so that another version has another image; a later one of the same version is told in previews as an update of
    the Stash, and taken where it is replaced (`pulumi up --replace`).
    """
    looked_up = newest_image(component, args)
    kept = pulumi.Stash(
        f"{name}-image-{args['kubernetes_version']}", input=looked_up, opts=pulumi.ResourceOptions(parent=component)
    )
    return kept.output


def newest_image(component: pulumi.Resource, args: CpuNodesArgs) -> pulumi.Output[str]:
    """The newest image that OKE offers for the version: x86, without GPU software."""
    version = args["kubernetes_version"]
    options = ask(
        "oci:ContainerEngine/getNodePoolOption:getNodePoolOption",
        {
            "nodePoolOptionId": "all",
            "compartmentId": args["compartment_id"],
            "nodePoolK8sVersion": args["kubernetes_version"],
        },
        pulumi.InvokeOutputOptions(parent=component),
    )
    return options.apply(lambda answer: _newest({s["sourceName"]: s["imageId"] for s in answer["sources"]}, version))


def _newest(images: dict[str, str], version: str) -> str:
    newest = newest_oke_image(images, version)
    if newest is None:
        message = f"OKE offers no image for Kubernetes {version}. Give systemPool.image or cluster.given.systemImageId."
        raise pulumi.RunError(message)
    return images[newest]


def _shape_config(args: CpuNodesArgs) -> Any:
    if not args["shape"].endswith(".Flex"):
        return None
    return {"ocpus": args.get("ocpus", 4), "memory_in_gbs": args.get("memory_gib", 16)}


def _node_config(args: CpuNodesArgs) -> Any:
    network = args["network"]
    subnet = network["worker_subnet_id"]

    def placements(domains: list[str]) -> list[dict[str, Any]]:
        return [{"availability_domain": domain, "subnet_id": subnet} for domain in domains]

    details = {
        "size": args["size"],
        "placement_configs": pulumi.Output.from_input(args["availability_domains"]).apply(placements),
        "node_pool_pod_network_option_details": pod_network(network, args.get("max_pods", most_pods(_ocpus(args)))),
    }
    return {**details, "nsg_ids": network["worker_nsg_ids"]} if "worker_nsg_ids" in network else details


def _ocpus(args: CpuNodesArgs) -> float:
    return args.get("ocpus", 4) if args["shape"].endswith(".Flex") else MOST_PODS
