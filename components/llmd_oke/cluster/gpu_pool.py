"""Component for pools of GPU nodes, in each of the four launch modes."""

from enum import StrEnum
from typing import Any, NotRequired

import pulumi
import pulumi_oci as oci
from llmd_base.errors import KitError
from llmd_base.records import record

from llmd_oke.catalogue.cluster import cloud_init, eviction
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL, POOL_LABEL
from llmd_oke.cluster.instance_metadata import Boot, SelfManaged, metadata, self_managed
from llmd_oke.cluster.pools import (
    CyclingArgs,
    JoinedCluster,
    NodePlace,
    NodePoolSpec,
    TaintArgs,
    joined_cluster,
    kubelet_taints,
    node_network,
    node_pool,
    pod_network,
    pool_inputs,
)
from llmd_oke.cluster.provider import COMPUTE_CLUSTER, GPU_INSTANCE, GPU_POOL, TagArgs, foreign_tags, tag_args
from llmd_oke.config.pools import GPU_BOOT_VOLUME_GIB, GPU_MAX_PODS
from llmd_oke.objects import ShapeRef, given, outputs, present, resolve_shape
from llmd_oke.planning.pools import MANAGED_LAUNCHES


class Launch(StrEnum):
    """Launch mode of a GPU pool: the OCI resources that create the nodes."""

    MANAGED_COMPUTE_CLUSTER = "managed-compute-cluster"
    CLUSTER_NETWORK = "cluster-network"
    COMPUTE_CLUSTER_INSTANCES = "compute-cluster-instances"
    PLAIN = "plain"


class GpuPoolArgs(TagArgs):
    """Arguments of a pool of GPU nodes."""

    cluster: JoinedCluster
    """Cluster that the nodes join: an `OkeCluster`, or the facts of its `for_nodes`."""
    network: NodePlace
    """Subnets of the nodes and of their pods: a `Network`, or the OCIDs."""
    shape: ShapeRef
    """OCI shape of the nodes, from the catalogue."""
    size: int
    """Number of nodes; the initial number if `autoscaled`."""
    kubernetes_version: str
    """Version of the nodes, such as `v1.34.2`."""
    availability_domain: pulumi.Input[str]
    """Availability domain of all nodes."""
    image_id: pulumi.Input[str]
    """OCID of the nodes' image."""
    pool_name: NotRequired[str | None]
    """Name of the pool, the value of its nodes' label `oke.oraclecloud.com/pool.name`; the component's if left out."""
    launch: NotRequired[Launch | None]
    """Launch mode; `managed-compute-cluster` if left out."""
    compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of the nodes; the cluster's if left out."""
    autoscaled: NotRequired[bool | None]
    """Whether OKE's cluster autoscaler changes the size, which updates then don't change; only with node pools of
    OKE."""
    pool_id: NotRequired[pulumi.Input[str] | None]
    """OCID of an existing node pool or cluster network; if given, nothing is created."""
    compute_cluster_id: NotRequired[pulumi.Input[str] | None]
    """OCID of an existing compute cluster; if given, none is created."""
    fault_domains: NotRequired[list[str] | None]
    """Fault domains that the nodes may be in; all if left out. Not with a cluster network, whose nodes OCI spreads."""
    capacity_reservation_id: NotRequired[pulumi.Input[str] | None]
    """OCID of the capacity reservation that provides the instances."""
    host_group_id: NotRequired[pulumi.Input[str] | None]
    """OCID of the compute host group on which the nodes are placed; only with node pools of OKE."""
    boot_volume_gib: NotRequired[int | None]
    """Size of the boot volume in GiB; 512 if left out."""
    boot_volume_vpus_per_gb: NotRequired[int | None]
    """Performance of the boot volume in VPUs for each GB; only for self-managed nodes."""
    boot_volume_kms_key_id: NotRequired[pulumi.Input[str] | None]
    """Vault key for the encryption of boot volumes; a key that Oracle manages if left out."""
    max_pods: NotRequired[int | None]
    """Maximum number of pods on a node; 64 if left out."""
    labels: NotRequired[dict[str, str] | None]
    """Labels of the nodes, in addition to those of shape and pool."""
    taints: NotRequired[list[TaintArgs] | None]
    """Taints of the nodes, in addition to those of the shape."""
    nvme: NotRequired[str | None]
    """RAID level of the array that is made of the local NVMe disks: `raid-0`, `raid-10`, or `none` for no array;
    `raid-10` if left out."""
    huge_pages_gib: NotRequired[int | None]
    """Memory reserved as huge pages of 2 MiB, in GiB; none if left out."""
    topology_manager_policy: NotRequired[str | None]
    """Kubelet's Topology Manager policy: `none`, `best-effort` or `restricted`; `none` if left out."""
    topology_manager_scope: NotRequired[str | None]
    """Kubelet's Topology Manager scope: `container` or `pod`; `container` if left out."""
    file_storage: NotRequired[bool | None]
    """Whether pods on the nodes mount OCI File Storage, for which the nodes install an NFS client; false if left
    out."""
    agent_logs: NotRequired[bool | None]
    """Whether Oracle's agent on self-managed nodes sends logs to OCI Logging (plug-in Custom Logs Monitoring); false if
    left out."""
    rdma_in_pods: NotRequired[bool | None]
    """Whether pods get RDMA devices of their own, such as virtual functions. Then each device of a node belongs to one
    network namespace, and host processes don't see the devices of pods. False if left out."""
    cycling: NotRequired[CyclingArgs | None]
    """Replacement of the nodes by OKE after a change; if left out, only new nodes get the change. Only with node pools
    of OKE."""
    eviction_grace_minutes: NotRequired[int | None]
    """Minutes that OKE drains a node before it is deleted by force; 5 if left out, and 60 with `cycling`. Only with
    node pools of OKE."""
    ssh_public_key: NotRequired[pulumi.Input[str] | None]
    """SSH public key that may sign in to the nodes."""
    protect: NotRequired[bool | None]
    """Refuse to delete or replace the pool; false if left out."""


class GpuPool(pulumi.ComponentResource):
    """GPU nodes that join a cluster, with an RDMA network unless the launch mode is `plain`."""

    pool_id: pulumi.Output[str]
    """OCID of the node pool or cluster network; with `compute-cluster-instances`, of the compute cluster."""
    node_label: pulumi.Output[str]
    """Label selector of the nodes: `oke.oraclecloud.com/pool.name=<name>`."""
    size: pulumi.Output[int]
    """Number of nodes; if `autoscaled`, the number in Pulumi's state."""

    def __init__(self, name: str, args: GpuPoolArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:GpuPool", name, pool_inputs(self, args), opts)
        nodes = _GpuNodes(self, name, args)
        pool_id = args.get("pool_id")
        size: pulumi.Input[int] = args["size"]
        if pool_id is not None:
            self.pool_id = pulumi.Output.from_input(pool_id)
        elif nodes.launch in MANAGED_LAUNCHES:
            pool = nodes.node_pool()
            self.pool_id, size = pool.id, pool.node_config_details.apply(lambda details: details.size)
        elif nodes.launch == Launch.CLUSTER_NETWORK:
            self.pool_id = nodes.cluster_network()
        else:
            self.pool_id = nodes.instances()
        self.size = pulumi.Output.from_input(size)
        label = f"{POOL_LABEL}={nodes.pool_name}"
        self.node_label = self.pool_id.apply(lambda _: label)
        self.register_outputs(outputs(self))


class _GpuNodes:
    """The GPU nodes of one pool, as OCI resources.

    Raises:
        KitError: the catalogue has no such shape, or the pool is `autoscaled` and the launch mode makes no node pool of
            OKE.
    """

    def __init__(self, component: pulumi.Resource, name: str, args: GpuPoolArgs) -> None:
        self.component, self.name, self.args = component, name, args
        self.launch = Launch(args.get("launch") or Launch.MANAGED_COMPUTE_CLUSTER)
        if args.get("autoscaled") and self.launch not in MANAGED_LAUNCHES:
            message = f"The cluster autoscaler can't change {name!r}: {self.launch} makes no node pool of OKE."
            raise KitError(message, f"Launch it as {' or '.join(MANAGED_LAUNCHES)}, or leave `autoscaled` out.")
        self.pool_name = args.get("pool_name") or name
        self.cluster, self.network = joined_cluster(args["cluster"]), node_network(args["network"])
        self.compartment_id = args.get("compartment_id") or self.cluster["compartment_id"]
        self.shape = resolve_shape(args["shape"])
        self.max_pods = args.get("max_pods") or GPU_MAX_PODS
        of_shape = {key: value for key, value in self.shape.node.labels.items() if key != INSTANCE_TYPE_LABEL}
        self.labels = {**of_shape, **(args.get("labels") or {}), POOL_LABEL: self.pool_name}

    def node_pool(self) -> oci.containerengine.NodePool:
        """Declare a node pool of OKE: in a compute cluster, or, with launch mode `plain`, without an RDMA network."""
        args = self.args
        placement = {
            **given(args, "availability_domain", "fault_domains", "capacity_reservation_id", "host_group_id"),
            "subnet_id": self.network["worker_subnet_id"],
        }
        node_config = {
            **given(args, "size"),
            "placement_configs": [placement],
            "compute_cluster_id": None if self.launch == Launch.PLAIN else self._compute_cluster(),
            "nsg_ids": self.network.get("worker_nsg_ids"),
            "kms_key_id": args.get("boot_volume_kms_key_id"),
            "node_pool_pod_network_option_details": pod_network(self.network, self.max_pods),
        }
        usual_minutes = eviction().minutes(None, cycling=bool(args.get("cycling")))
        spec = record(
            NodePoolSpec,
            self,
            present(args),
            {"boot_volume_gib": GPU_BOOT_VOLUME_GIB, "eviction_grace_minutes": usual_minutes},
            shape=self.shape.name,
            boot=self._boot(),
            node_config=node_config,
            tags=tag_args(args),
        )
        return node_pool(self.name, spec, self._options(GPU_POOL))

    def cluster_network(self) -> pulumi.Output[str]:
        """Declare a cluster network of self-managed nodes and its instance configuration; return the OCID of the
        cluster network.
        """
        args, tags = self.args, tag_args(self.args)
        details = {
            **given(args, "availability_domain", "capacity_reservation_id"),
            **given(vars(self), "compartment_id"),
            "shape": self.shape.name,
            "agent_config": agent_config(logs=args.get("agent_logs") or False),
            "create_vnic_details": self._vnic(assign_public_ip=False),
            "instance_options": {"are_legacy_imds_endpoints_disabled": True},
            "metadata": self._metadata(),
            "source_details": {"source_type": "image", **given(args, "image_id"), **self._boot_volume()},
            **tags,
        }
        launch_details: Any = details
        configuration = oci.core.InstanceConfiguration(
            f"{self.name}-instance-configuration",
            instance_details={"instance_type": "compute", "launch_details": launch_details},
            **self._named,
            opts=pulumi.ResourceOptions(parent=self.component, ignore_changes=foreign_tags(args)),
        )
        instance_pool: Any = {
            **given(args, "size"),
            "instance_configuration_id": configuration.id,
            "display_name": self.pool_name,
            **tags,
        }
        placement: Any = {
            **given(args, "availability_domain"),
            "primary_subnet_id": self.network["worker_subnet_id"],
        }
        return oci.core.ClusterNetwork(
            f"{self.name}-cluster-network",
            instance_pools=[instance_pool],
            placement_configuration=placement,
            **self._named,
            opts=self._options(GPU_POOL),
        ).id

    @property
    def _named(self) -> dict[str, Any]:
        """Return the arguments that all resources of the pool share: compartment, display name and tags."""
        return {"compartment_id": self.compartment_id, "display_name": self.pool_name, **tag_args(self.args)}

    def instances(self) -> pulumi.Output[str]:
        """Declare a compute cluster and one instance for each node, which is self-managed; return the OCID of the
        compute cluster, known once all instances are created.
        """
        compute_cluster_id = self._compute_cluster()
        instances = [self._instance(index, compute_cluster_id).id for index in range(self.args["size"])]
        return pulumi.Output.all(compute_cluster_id, *instances).apply(lambda ids: str(ids[0]))

    def _instance(self, index: int, compute_cluster_id: pulumi.Output[str]) -> oci.core.Instance:
        """Declare the instance of one node.

        A Stash for each node keeps metadata and image until that Stash is replaced: OCI refuses changes of user data
        and SSH keys (OCI API, UpdateInstanceDetails), and a new image would replace all nodes at once.
        """
        fault_domains = self.args.get("fault_domains") or []
        launch = pulumi.Stash(
            f"{self.name}-instance-{index}-launch",
            input={
                "metadata": self._metadata(),
                "source": {"source_type": "image", "source_id": self.args["image_id"], **self._boot_volume()},
            },
            opts=pulumi.ResourceOptions(parent=self.component),
        )
        agent: Any = agent_config(logs=self.args.get("agent_logs") or False)
        vnic: Any = self._vnic(assign_public_ip="false")
        source: Any = launch.output.apply(lambda values: values["source"])
        replacing = pulumi.ResourceOptions(replace_on_changes=["metadata", "sourceDetails"])
        place = given(self.args, "availability_domain", "capacity_reservation_id")
        return oci.core.Instance(
            f"{self.name}-instance-{index}",
            **{**self._named, "display_name": f"{self.pool_name}-{index}"},
            **place,
            compute_cluster_id=compute_cluster_id,
            shape=self.shape.name,
            fault_domain=fault_domains[index % len(fault_domains)] if fault_domains else None,
            agent_config=agent,
            create_vnic_details=vnic,
            instance_options={"are_legacy_imds_endpoints_disabled": True},
            metadata=launch.output.apply(lambda values: values["metadata"]),
            source_details=source,
            opts=pulumi.ResourceOptions.merge(self._options(GPU_INSTANCE), replacing),
        )

    def _compute_cluster(self) -> pulumi.Output[str]:
        compute_cluster_id = self.args.get("compute_cluster_id")
        if compute_cluster_id is not None:
            return pulumi.Output.from_input(compute_cluster_id)
        return oci.core.ComputeCluster(
            f"{self.name}-compute-cluster",
            **given(self.args, "availability_domain"),
            **self._named,
            opts=self._options(COMPUTE_CLUSTER),
        ).id

    def _options(self, timeouts: pulumi.CustomTimeouts) -> pulumi.ResourceOptions:
        """Return the options of resources that contain nodes. `delete_before_replace`, because GPUs are scarce: the new
        pool gets capacity only when the old pool is deleted.
        """
        return pulumi.ResourceOptions(
            parent=self.component,
            protect=self.args.get("protect") or False,
            delete_before_replace=True,
            custom_timeouts=timeouts,
            ignore_changes=foreign_tags(self.args),
        )

    def _boot(self, *, self_managed: bool = False) -> Boot:
        """Return the variables of the nodes' boot scripts.

        With a Topology Manager policy the kubelet allocates a GPU and a virtual function of one NUMA node: both device
        plug-ins report the NUMA node of their devices.
        """
        args = self.args
        of_shape = [TaintArgs(**taint.model_dump()) for taint in self.shape.node.taints]
        policy, scope = args.get("topology_manager_policy"), args.get("topology_manager_scope") or "container"
        topology = [f"--topology-manager-policy={policy}", f"--topology-manager-scope={scope}"]
        flannel = self.network.get("pod_subnet_id") is None
        return record(
            Boot,
            {"nvme": "raid-10", **present(args)},
            kind="gpu",
            taints=kubelet_taints([*of_shape, *(args.get("taints") or [])]),
            max_pods=self.max_pods if flannel else None,
            kubelet_arguments=topology if policy not in {None, "none"} else [],
            self_managed=self_managed,
            gpus=self.shape.gpus,
        )

    def _vnic(self, *, assign_public_ip: bool | str) -> dict[str, Any]:
        return {
            "subnet_id": self.network["worker_subnet_id"],
            "assign_public_ip": assign_public_ip,
            **tag_args(self.args),
            "nsg_ids": self.network.get("worker_nsg_ids"),
        }

    def _boot_volume(self) -> dict[str, Any]:
        vpus = self.args.get("boot_volume_vpus_per_gb")
        volume: dict[str, Any] = {
            "boot_volume_size_in_gbs": str(self.args.get("boot_volume_gib") or GPU_BOOT_VOLUME_GIB),
            "boot_volume_vpus_per_gb": None if vpus is None else str(vpus),
            "kms_key_id": self.args.get("boot_volume_kms_key_id"),
        }
        return present(volume)

    def _metadata(self) -> pulumi.Output[dict[str, str]]:
        """Return the metadata of self-managed nodes."""
        known: dict[str, Any] = {
            **given(self.cluster, "api_server_host"),
            "ca_certificate": self.cluster.get("ca_certificate") or "",
            "tenancy_id": self.cluster.get("tenancy_id") or "",
            "pod_subnet_id": self.network.get("pod_subnet_id"),
            "pod_nsg_ids": self.network.get("pod_nsg_ids") or [],
            "ssh_public_key": self.args.get("ssh_public_key"),
        }

        def rendered(values: dict[str, Any]) -> dict[str, str]:
            node = record(SelfManaged, values, self, self.args)
            key = {"ssh_authorized_keys": values["ssh_public_key"]} if values["ssh_public_key"] else {}
            return metadata(self._boot(self_managed=True), {**self_managed(node), **key})

        return pulumi.Output.all(**known).apply(rendered)


def agent_config(*, logs: bool) -> dict[str, Any]:
    """Return the Oracle Cloud Agent settings of an instance, with the plug-ins that configure the RDMA network enabled,
    and with `logs` the one that sends logs.

    Plug-ins are sorted by name, so that a mere difference in order is no change of the resource.
    """
    plugins = cloud_init().agent_plugins
    states = {**dict.fromkeys(plugins.enabled, "ENABLED"), **dict.fromkeys(plugins.disabled, "DISABLED")}
    states[plugins.logs] = "ENABLED" if logs else "DISABLED"
    return {
        "are_all_plugins_disabled": False,
        "is_management_disabled": False,
        "is_monitoring_disabled": False,
        "plugins_configs": [{"name": name, "desired_state": states[name]} for name in sorted(states)],
    }
