"""Components for CPU and system pools and for imported images, and the declaration that all node pools of OKE share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import pulumi
import pulumi_oci as oci
from llmd_base.records import record

from llmd_oke.catalogue.cluster import cloud_init, eviction
from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.cluster.instance_metadata import Boot, metadata
from llmd_oke.cluster.network import Network, NodeNetworkArgs
from llmd_oke.cluster.oke_cluster import NodeClusterArgs, OkeCluster
from llmd_oke.cluster.provider import CPU_POOL, IMAGE, TagArgs, foreign_tags, invoke, tag_args
from llmd_oke.config.pools import CPU_BOOT_VOLUME_GIB
from llmd_oke.objects import given, inputs, outputs, present
from llmd_oke.planning.network import carried_pods
from llmd_oke.planning.pools import newest_oke_image
from llmd_oke.planning.tags import CHECKSUM_TAG

_CYCLE_MODES = {"replace-node": "INSTANCE_REPLACE", "replace-boot-volume": "BOOT_VOLUME_REPLACE"}

if TYPE_CHECKING:
    JoinedCluster = OkeCluster | NodeClusterArgs
    NodePlace = Network | NodeNetworkArgs
else:
    JoinedCluster = NodeClusterArgs  # components in other languages pass only these facts
    NodePlace = NodeNetworkArgs


class TaintArgs(TypedDict):
    """A taint that nodes register with."""

    key: str
    """Key of the taint."""
    value: NotRequired[str | None]
    """Value of the taint; empty if left out."""
    effect: str
    """Effect of the taint: `NoSchedule`, `PreferNoSchedule` or `NoExecute`."""


class CyclingArgs(TypedDict):
    """Replacement of a pool's nodes by OKE after a change."""

    mode: str
    """Part of a node that is replaced: the instance (`replace-node`) or its boot volume (`replace-boot-volume`)."""
    max_surge: str
    """Additional nodes during the replacement: a number or a percentage."""
    max_unavailable: str
    """Unavailable nodes during the replacement: a number or a percentage."""


class CpuNodesArgs(TagArgs):
    """Arguments of nodes without GPUs."""

    cluster: JoinedCluster
    """Cluster that the nodes join: an `OkeCluster`, or the facts of its `for_nodes`."""
    network: NodePlace
    """Subnets of the nodes and of their pods: a `Network`, or the OCIDs."""
    shape: str
    """OCI shape of the nodes."""
    size: int
    """Number of nodes."""
    kubernetes_version: str
    """Version of the nodes, such as `v1.34.2`."""
    availability_domains: pulumi.Input[list[str]]
    """Availability domains over which OKE distributes the nodes."""
    pool_name: NotRequired[str | None]
    """Name of the pool, the value of its nodes' label `oke.oraclecloud.com/pool.name`; the component's if left out."""
    compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of the nodes; the cluster's if left out."""
    image_id: NotRequired[pulumi.Input[str] | None]
    """OCID of the nodes' image; the newest OKE image of the Kubernetes version if left out, which previews look up in
    OCI."""
    ocpus: NotRequired[float | None]
    """OCPUs of each node, for flexible shapes; 4 if left out."""
    memory_gib: NotRequired[float | None]
    """Memory of each node in GiB, for flexible shapes; 16 if left out."""
    boot_volume_gib: NotRequired[int | None]
    """Size of the boot volume in GiB; 128 if left out."""
    max_pods: NotRequired[int | None]
    """Maximum number of pods on a node with a VCN-native network; the capacity of the shape's VNICs if left out."""
    labels: NotRequired[dict[str, str] | None]
    """Labels of the nodes, in addition to that of the pool."""
    taints: NotRequired[list[TaintArgs] | None]
    """Taints of the nodes."""
    cycling: NotRequired[CyclingArgs | None]
    """Replacement of the nodes by OKE after a change; if left out, only new nodes get the change."""
    ssh_public_key: NotRequired[pulumi.Input[str] | None]
    """SSH public key that may sign in to the nodes."""
    protect: NotRequired[bool | None]
    """Refuse to delete or replace the pool; false if left out."""


class CpuPoolArgs(CpuNodesArgs):
    """Arguments of a pool without GPUs. `size` is the initial number of nodes if `autoscaled`."""

    autoscaled: NotRequired[bool | None]
    """Whether OKE's cluster autoscaler changes the size, which updates then don't change; false if left out."""


class CpuPool(pulumi.ComponentResource):
    """Nodes without GPUs, as a node pool of OKE."""

    pool_id: pulumi.Output[str]
    """OCID of the node pool."""
    node_label: pulumi.Output[str]
    """Label selector of the nodes: `oke.oraclecloud.com/pool.name=<name>`."""

    def __init__(self, name: str, args: CpuPoolArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:CpuPool", name, pool_inputs(self, args), opts)
        self.pool_id = _cpu_node_pool(self, name, args, autoscaled=args.get("autoscaled") or False)
        label = f"{POOL_LABEL}={args.get('pool_name') or name}"
        self.node_label = self.pool_id.apply(lambda _: label)
        self.register_outputs(outputs(self))


class SystemPoolArgs(CpuNodesArgs):
    """Arguments of the system pool."""


class SystemPool(pulumi.ComponentResource):
    """Nodes without GPUs for operators, controllers and routers, whose pods don't tolerate the taints of GPU nodes."""

    pool_id: pulumi.Output[str]
    """OCID of the node pool."""
    node_label: pulumi.Output[str]
    """Label selector of the nodes: `oke.oraclecloud.com/pool.name=<name>`."""

    def __init__(self, name: str, args: SystemPoolArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:SystemPool", name, pool_inputs(self, args), opts)
        self.pool_id = _cpu_node_pool(self, name, args, autoscaled=False)
        label = f"{POOL_LABEL}={args.get('pool_name') or name}"
        self.node_label = self.pool_id.apply(lambda _: label)
        self.register_outputs(outputs(self))


class NodeImageArgs(TagArgs):
    """Arguments of an imported image."""

    compartment_id: pulumi.Input[str]
    """Compartment of the image."""
    display_name: str
    """Name of the image."""
    uri: pulumi.Input[str]
    """URI of the image file in Object Storage. As it may be a pre-authenticated request, the state has it as a secret.
    """
    checksum: str
    """Checksum of the image file: `md5:…` or `sha256:…`. Part of the resource's name: a new checksum imports a new
    image."""


class NodeImage(pulumi.ComponentResource):
    """A custom image of nodes, imported once for each checksum.

    Pre-authenticated requests expire, so that a new URI alone imports nothing. OCI doesn't verify the checksum at
    import and doesn't state one for an image: the tag `llmd-oke-checksum` has the requested checksum. Before the import
    `llmd-oke preflight` compares that checksum with the one that Object Storage states for the file.
    """

    image_id: pulumi.Output[str]
    """OCID of the image."""

    def __init__(self, name: str, args: NodeImageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:NodeImage", name, inputs(self, args, "uri"), opts)
        digest = args["checksum"].partition(":")[2][:8]
        image = oci.core.Image(
            f"{name}-image-{digest}",
            **given(args, "compartment_id"),
            display_name=f"{args['display_name']}-{digest}",
            image_source_details={"source_type": "objectStorageUri", "source_uri": pulumi.Output.secret(args["uri"])},
            **tag_args(args, {CHECKSUM_TAG: args["checksum"]}),
            opts=pulumi.ResourceOptions(
                parent=self,
                custom_timeouts=IMAGE,
                ignore_changes=["imageSourceDetails", *foreign_tags(args)],
                additional_secret_outputs=["imageSourceDetails"],
            ),
        )
        self.image_id = image.id
        self.register_outputs(outputs(self))


def joined_cluster(cluster: JoinedCluster) -> NodeClusterArgs:
    """Return the facts that nodes need to join a cluster, which is a component or these facts themselves."""
    return cluster.for_nodes if isinstance(cluster, OkeCluster) else cluster


def node_network(network: NodePlace) -> NodeNetworkArgs:
    """Return the subnets and security groups of nodes and their pods."""
    return network.for_nodes if isinstance(network, Network) else network


def pool_inputs(component: pulumi.ComponentResource, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a pool's component: the arguments, in which the facts that nodes need replace the components
    `OkeCluster` and `Network`.
    """
    own = inputs(component, args)
    return {
        **own,
        "cluster": present(joined_cluster(args["cluster"])),
        "network": present(node_network(args["network"])),
    }


def _cpu_node_pool(
    component: pulumi.Resource, name: str, args: CpuNodesArgs, *, autoscaled: bool
) -> pulumi.Output[str]:
    """Declare a node pool without GPUs; return the OCID of the node pool."""
    cluster, network = joined_cluster(args["cluster"]), node_network(args["network"])
    pool_name, compartment_id = args.get("pool_name") or name, args.get("compartment_id") or cluster["compartment_id"]
    version, ocpus = args["kubernetes_version"], args.get("ocpus") or 4

    def placements(domains: list[str]) -> list[dict[str, Any]]:
        subnet_id = network["worker_subnet_id"]
        return [{"availability_domain": domain, "subnet_id": subnet_id} for domain in domains]

    max_pods = args.get("max_pods") or carried_pods(args["shape"], ocpus)
    node_config = {
        **given(args, "size"),
        "placement_configs": pulumi.Output.from_input(args["availability_domains"]).apply(placements),
        "node_pool_pod_network_option_details": pod_network(network, max_pods),
        "nsg_ids": network.get("worker_nsg_ids"),
    }
    image_id = args.get("image_id")
    size = {"ocpus": ocpus, "memory_in_gbs": args.get("memory_gib") or 16}
    spec = record(
        NodePoolSpec,
        present(args),
        {"boot_volume_gib": CPU_BOOT_VOLUME_GIB},
        pool_name=pool_name,
        cluster=cluster,
        compartment_id=compartment_id,
        labels={**(args.get("labels") or {}), POOL_LABEL: pool_name},
        boot=Boot("cpu", version, kubelet_taints(args.get("taints") or [])),
        node_config=node_config,
        tags=tag_args(args),
        image_id=_newest_image(component, name, compartment_id, version) if image_id is None else image_id,
        eviction_grace_minutes=eviction().grace_minutes,
        shape_config=size if args["shape"].endswith(".Flex") else None,
        autoscaled=autoscaled,
    )
    opts = pulumi.ResourceOptions(
        parent=component,
        protect=args.get("protect") or False,
        custom_timeouts=CPU_POOL,
        ignore_changes=foreign_tags(args),
    )
    return node_pool(name, spec, opts).id


def _newest_image(
    component: pulumi.Resource, name: str, compartment_id: pulumi.Input[str], version: str
) -> pulumi.Output[str]:
    """Return the OCID of the newest image (x86, without GPU software) that OKE offered when the pool got its Kubernetes
    version.

    A Stash for each version keeps that OCID, because nodes of another Kubernetes version need another image. Previews
    show a later image of the same version as an update of the Stash; the pool gets that image when the Stash is
    replaced (`pulumi up --replace`).

    Raises:
        pulumi.RunError: OKE offers no image for that version.
    """

    def newest(answer: Mapping[str, Any]) -> str:
        images = {source["sourceName"]: source["imageId"] for source in answer["sources"]}
        image = newest_oke_image(images, version)
        if image is None:
            message = f"OKE offers no image for Kubernetes {version}."
            raise pulumi.RunError(f"{message} Give systemPool.image or cluster.lookupResults.systemImageId.")
        return images[image]

    options = invoke(
        "oci:ContainerEngine/getNodePoolOption:getNodePoolOption",
        {"nodePoolOptionId": "all", "compartmentId": compartment_id, "nodePoolK8sVersion": version},
        pulumi.InvokeOutputOptions(parent=component),
    )
    opts = pulumi.ResourceOptions(parent=component)
    return pulumi.Stash(f"{name}-image-{version}", input=options.apply(newest), opts=opts).output


@dataclass(frozen=True)
class NodePoolSpec:
    """Specification of a node pool of OKE, with or without GPUs."""

    pool_name: str
    cluster: NodeClusterArgs
    compartment_id: pulumi.Input[str]
    kubernetes_version: str
    shape: str
    labels: Mapping[str, str]
    boot: Boot
    node_config: Mapping[str, Any]
    tags: Mapping[str, Any]
    image_id: pulumi.Input[str]
    boot_volume_gib: int
    eviction_grace_minutes: int
    shape_config: Any = None
    cycling: CyclingArgs | None = None
    ssh_public_key: pulumi.Input[str] | None = None
    autoscaled: bool = False


def node_pool(name: str, spec: NodePoolSpec, opts: pulumi.ResourceOptions) -> oci.containerengine.NodePool:
    """Declare a node pool of OKE, with or without GPUs.

    The pool's tags apply to its instances too; OKE adds changed tags to new instances only. An autoscaled pool keeps
    its size: the provider sends the number of nodes only if program and state differ (seen with pulumi-oci 4.20), and
    with `ignore_changes` the program has the state's number. After the eviction grace duration OKE deletes or changes a
    node even if pods still run.
    """
    cycling: Any = spec.cycling and {
        "is_node_cycling_enabled": True,
        "cycle_modes": [_CYCLE_MODES[spec.cycling["mode"]]],
        "maximum_surge": spec.cycling["max_surge"],
        "maximum_unavailable": spec.cycling["max_unavailable"],
    }
    labels: Any = [{"key": key, "value": value} for key, value in sorted(spec.labels.items())]
    node_config: Any = {**present(spec.node_config), **spec.tags}
    own_size = pulumi.ResourceOptions(ignore_changes=["nodeConfigDetails.size"])
    return oci.containerengine.NodePool(
        f"{name}-node-pool",
        name=spec.pool_name,
        cluster_id=spec.cluster["cluster_id"],
        **given(vars(spec), "compartment_id", "kubernetes_version", "ssh_public_key"),
        node_shape=spec.shape,
        node_shape_config=spec.shape_config,
        initial_node_labels=labels,
        node_config_details=node_config,
        **spec.tags,
        node_source_details={
            "source_type": "IMAGE",
            "image_id": spec.image_id,
            "boot_volume_size_in_gbs": str(spec.boot_volume_gib),
        },
        node_metadata=pulumi.Output.from_input(spec.cluster["api_server_host"]).apply(
            lambda host: _metadata(spec.boot, host)
        ),
        node_eviction_node_pool_settings={
            "eviction_grace_duration": duration(spec.eviction_grace_minutes),
            "is_force_action_after_grace_duration": True,
            "is_force_delete_after_grace_duration": True,
        },
        node_pool_cycling_details=cycling,
        opts=pulumi.ResourceOptions.merge(opts, own_size) if spec.autoscaled else opts,
    )


def _metadata(boot: Boot, host: str) -> dict[str, str]:
    """Return the metadata of a pool's nodes; `host` is the API server's private address.

    With `areLegacyImdsEndpointsDisabled` OKE launches the instances without version 1 of the instance metadata service,
    for which node pools have no argument (oci-hpc-oke, terraform/oke-workers.tf).
    """
    keys = {
        "apiserver_host": host,
        "areLegacyImdsEndpointsDisabled": "true",
        "oke-kubeproxy-proxy-mode": cloud_init().kube_proxy_mode,
    }
    return metadata(boot, keys)


def duration(minutes: int) -> str:
    """Return minutes as an ISO 8601 duration in the form that OCI returns: with an equal duration in another form, such
    as `PT60M` for `PT1H`, every update would show a change (terraform-provider-oci, containerengine_node_pool_test.go
    has `PT1H`; terraform-oci-oke, pull request 791, `PT0S`).
    """
    hours, rest = divmod(minutes, 60)
    return f"PT{f'{hours}H' if hours else ''}{f'{rest}M' if rest else ''}" if minutes else "PT0S"


def pod_network(network: NodeNetworkArgs, max_pods: int) -> dict[str, Any]:
    """Return the settings of the pod network for a node pool of OKE."""
    subnet_id = network.get("pod_subnet_id")
    if subnet_id is None:
        return {"cni_type": "FLANNEL_OVERLAY"}
    native = {"pod_subnet_ids": [subnet_id], "max_pods_per_node": max_pods, **given(network, "pod_nsg_ids")}
    return {"cni_type": "OCI_VCN_IP_NATIVE", **native}


def kubelet_taints(taints: Sequence[TaintArgs]) -> list[str]:
    """Return taints in the form of the kubelet's arguments: `key=value:effect`."""
    return [f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}" for taint in taints]
