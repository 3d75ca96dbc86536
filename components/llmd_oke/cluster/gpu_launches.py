"""The four ways to launch GPU nodes, as OCI resources. Each answers with what it made."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pulumi
import pulumi_oci as oci

from llmd_oke.catalogue import Shape
from llmd_oke.catalogue.cloud_init import cloud_init
from llmd_oke.catalogue.eviction import eviction
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL, POOL_LABEL
from llmd_oke.cluster.instance_metadata import Boot, SelfManaged, metadata, self_managed
from llmd_oke.cluster.managed_pool import PoolParts, managed_pool
from llmd_oke.cluster.pool_parts import NodeNetworkArgs, TaintArgs, eviction_settings, kubelet_taints, pod_network
from llmd_oke.cluster.tags import stack_tags
from llmd_oke.cluster.timeouts import COMPUTE_CLUSTER, GPU_INSTANCE, GPU_POOL

DEFAULT_BOOT_VOLUME_GIB = 512
DEFAULT_MAX_PODS = 64


class Launched(NamedTuple):
    """What was made: its OCID, and how many nodes it has as far as the engine knows."""

    pool_id: pulumi.Output[str]
    size: pulumi.Input[int]


@dataclass(frozen=True)
class Subject:
    """A pool that is launched: its component, its name, its arguments (`GpuPoolArgs`) and its shape."""

    component: pulumi.Resource
    name: str
    args: Mapping[str, Any]
    shape: Shape

    def options(self, timeouts: pulumi.CustomTimeouts) -> pulumi.ResourceOptions:
        """Options of what holds nodes. GPUs are scarce: the new pool can't have them before the old one is gone."""
        return pulumi.ResourceOptions(
            parent=self.component,
            protect=self.args.get("protect", False),
            delete_before_replace=True,
            custom_timeouts=timeouts,
            ignore_changes=["definedTags"],
        )

    @property
    def network(self) -> NodeNetworkArgs:
        """Where the nodes are in the network."""
        return self.args["network"]

    @property
    def max_pods(self) -> int:
        """Pods of a node."""
        return self.args.get("max_pods", DEFAULT_MAX_PODS)

    @property
    def labels(self) -> dict[str, str]:
        """Labels that the nodes register with."""
        of_shape = {key: value for key, value in self.shape.node.labels.items() if key != INSTANCE_TYPE_LABEL}
        return {**of_shape, **self.args.get("labels", {}), POOL_LABEL: self.args["pool_name"]}

    @property
    def boot(self) -> Boot:
        """What the nodes run when they boot."""
        own: list[TaintArgs] = self.args.get("taints", [])
        of_shape: list[TaintArgs] = [
            {"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in self.shape.node.taints
        ]
        flannel = "pod_subnet_id" not in self.network
        return Boot(
            kind="gpu",
            kubernetes_version=self.args["kubernetes_version"],
            taints=kubelet_taints([*of_shape, *own]),
            max_pods=self.max_pods if flannel else None,
            nvme=self.args.get("nvme", "raid-10"),
            huge_pages_gib=self.args.get("huge_pages_gib", 0),
            kubelet_arguments=self._topology_manager,
            file_storage=self.args.get("file_storage", False),
        )

    @property
    def _topology_manager(self) -> list[str]:
        """GPU and virtual function of one socket: the device plug-ins of both tell the kubelet where they are."""
        policy = self.args.get("topology_manager_policy", "none")
        if policy == "none":
            return []
        scope = self.args.get("topology_manager_scope", "container")
        return [f"--topology-manager-policy={policy}", f"--topology-manager-scope={scope}"]


def managed_compute_cluster(subject: Subject) -> Launched:
    """A compute cluster, and a node pool of OKE in it."""
    return _node_pool(subject, _compute_cluster(subject))


def plain(subject: Subject) -> Launched:
    """A node pool of OKE, without RDMA network."""
    return _node_pool(subject, None)


def cluster_network(subject: Subject) -> Launched:
    """An instance configuration, and a cluster network of such instances, which join by themselves."""
    args = subject.args
    configuration = oci.core.InstanceConfiguration(
        f"{subject.name}-instance-configuration",
        compartment_id=args["compartment_id"],
        display_name=args["pool_name"],
        instance_details={"instance_type": "compute", "launch_details": _launch_details(subject)},
        freeform_tags=stack_tags(),
        opts=pulumi.ResourceOptions(parent=subject.component, ignore_changes=["definedTags"]),
    )
    pool: Any = {"instance_configuration_id": configuration.id, "size": args["size"], "display_name": args["pool_name"]}
    placement: Any = {
        "availability_domain": args["availability_domain"],
        "primary_subnet_id": subject.network["worker_subnet_id"],
    }
    made = oci.core.ClusterNetwork(
        f"{subject.name}-cluster-network",
        compartment_id=args["compartment_id"],
        display_name=args["pool_name"],
        instance_pools=[pool],
        placement_configuration=placement,
        freeform_tags=stack_tags(),
        opts=subject.options(GPU_POOL),
    )
    return Launched(made.id, args["size"])


def compute_cluster_instances(subject: Subject) -> Launched:
    """A compute cluster and one instance for each node, which join by themselves.

    What an instance is launched with is kept until its own Stash is replaced: OCI refuses other user data and keys
    (OCI API, UpdateInstanceDetails), and another image would replace all nodes at once.
    """
    compute_cluster_id = _compute_cluster(subject)
    made = [_instance(subject, index, compute_cluster_id).id for index in range(subject.args["size"])]
    made_all = pulumi.Output.all(compute_cluster_id, *made).apply(lambda ids: str(ids[0]))
    return Launched(made_all, subject.args["size"])


def _compute_cluster(subject: Subject) -> pulumi.Output[str]:
    if "compute_cluster_id" in subject.args:
        return pulumi.Output.from_input(subject.args["compute_cluster_id"])
    made = oci.core.ComputeCluster(
        f"{subject.name}-compute-cluster",
        availability_domain=subject.args["availability_domain"],
        compartment_id=subject.args["compartment_id"],
        display_name=subject.args["pool_name"],
        freeform_tags=stack_tags(),
        opts=subject.options(COMPUTE_CLUSTER),
    )
    return made.id


def _node_pool(subject: Subject, compute_cluster_id: pulumi.Output[str] | None) -> Launched:
    args = subject.args
    parts = PoolParts(
        labels=subject.labels,
        boot=subject.boot,
        node_config=_node_config(subject, compute_cluster_id),
        image_id=args["image_id"],
        boot_volume_gib=args.get("boot_volume_gib", DEFAULT_BOOT_VOLUME_GIB),
        eviction=eviction_settings(args.get("eviction_grace_minutes", _grace_minutes(args))),
    )
    made = managed_pool(subject.name, args, parts, subject.options(GPU_POOL))
    return Launched(made.id, made.node_config_details.apply(lambda details: details.size))


def _grace_minutes(args: Mapping[str, Any]) -> int:
    return eviction().cycling_grace_minutes if "cycling" in args else eviction().grace_minutes


def _node_config(subject: Subject, compute_cluster_id: pulumi.Output[str] | None) -> dict[str, Any]:
    args = subject.args
    placement = {
        "availability_domain": args["availability_domain"],
        "subnet_id": subject.network["worker_subnet_id"],
        "fault_domains": args.get("fault_domains"),
        "capacity_reservation_id": args.get("capacity_reservation_id"),
        "host_group_id": args.get("host_group_id"),
    }
    details = {
        "size": args["size"],
        "placement_configs": [_given(placement)],
        "compute_cluster_id": compute_cluster_id,
        "nsg_ids": subject.network.get("worker_nsg_ids"),
        "kms_key_id": args.get("boot_volume_kms_key_id"),
        "node_pool_pod_network_option_details": pod_network(subject.network, subject.max_pods),
    }
    return _given(details)


def _launch_details(subject: Subject) -> Any:
    args = subject.args
    details = {
        "availability_domain": args["availability_domain"],
        "compartment_id": args["compartment_id"],
        "shape": args["shape"],
        "capacity_reservation_id": args.get("capacity_reservation_id"),
        "agent_config": agent_config(),
        "create_vnic_details": _vnic(subject),
        "instance_options": {"are_legacy_imds_endpoints_disabled": True},
        "metadata": _self_managed(subject),
        "source_details": {"source_type": "image", "image_id": args["image_id"], **_boot_volume(subject)},
    }
    return _given(details)


def _instance(subject: Subject, index: int, compute_cluster_id: pulumi.Output[str]) -> pulumi.CustomResource:
    args = subject.args
    fault_domains: list[str] = args.get("fault_domains") or []
    agent: Any = agent_config()
    vnic: Any = _vnic(subject)
    launch = pulumi.Stash(
        f"{subject.name}-instance-{index}-launch",
        input={
            "metadata": _self_managed(subject),
            "source": {"source_type": "image", "source_id": args["image_id"], **_boot_volume(subject)},
        },
        opts=pulumi.ResourceOptions(parent=subject.component),
    )
    source: Any = launch.output.apply(lambda known: known["source"])
    kept = pulumi.ResourceOptions(replace_on_changes=["metadata", "sourceDetails"])
    return oci.core.Instance(
        f"{subject.name}-instance-{index}",
        display_name=f"{args['pool_name']}-{index}",
        availability_domain=args["availability_domain"],
        compartment_id=args["compartment_id"],
        compute_cluster_id=compute_cluster_id,
        shape=args["shape"],
        fault_domain=fault_domains[index % len(fault_domains)] if fault_domains else None,
        capacity_reservation_id=args.get("capacity_reservation_id"),
        agent_config=agent,
        create_vnic_details=vnic,
        instance_options={"are_legacy_imds_endpoints_disabled": True},
        metadata=launch.output.apply(lambda known: known["metadata"]),
        source_details=source,
        freeform_tags=stack_tags(),
        opts=pulumi.ResourceOptions.merge(subject.options(GPU_INSTANCE), kept),
    )


def agent_config() -> dict[str, Any]:
    """The agent's plug-ins, by name, with those that bring up the RDMA network. OCI keeps the list in an order."""
    plugins = cloud_init().agent_plugins
    states = {**dict.fromkeys(plugins.enabled, "ENABLED"), **dict.fromkeys(plugins.disabled, "DISABLED")}
    return {
        "are_all_plugins_disabled": False,
        "is_management_disabled": False,
        "is_monitoring_disabled": False,
        "plugins_configs": [{"name": name, "desired_state": states[name]} for name in sorted(states)],
    }


def _vnic(subject: Subject) -> dict[str, Any]:
    network = subject.network
    vnic = {
        "subnet_id": network["worker_subnet_id"],
        "nsg_ids": network.get("worker_nsg_ids"),
        "assign_public_ip": "false" if subject.args["launch"] == "compute-cluster-instances" else False,
    }
    return _given(vnic)


def _boot_volume(subject: Subject) -> dict[str, Any]:
    args = subject.args
    vpus = args.get("boot_volume_vpus_per_gb")
    volume = {
        "boot_volume_size_in_gbs": str(args.get("boot_volume_gib", DEFAULT_BOOT_VOLUME_GIB)),
        "boot_volume_vpus_per_gb": None if vpus is None else str(vpus),
        "kms_key_id": args.get("boot_volume_kms_key_id"),
    }
    return _given(volume)


def _self_managed(subject: Subject) -> pulumi.Output[dict[str, str]]:
    args, network = subject.args, subject.network
    known: dict[str, pulumi.Input[Any]] = {
        "host": args["api_server_host"],
        "ca": args["cluster_ca"],
        "tenancy": args["tenancy_id"],
        "pods": network.get("pod_subnet_id"),
        "nsgs": network.get("pod_nsg_ids", []),
        "key": args.get("ssh_public_key"),
    }

    def made(found: dict[str, Any]) -> dict[str, str]:
        node = SelfManaged(
            api_server_host=found["host"],
            cluster_ca=found["ca"],
            tenancy_id=found["tenancy"],
            kubernetes_version=args["kubernetes_version"],
            labels=subject.labels,
            max_pods=subject.max_pods,
            pod_subnet_id=found["pods"],
            pod_nsg_ids=found["nsgs"],
        )
        key = {"ssh_authorized_keys": found["key"]} if found["key"] else {}
        return metadata(replace(subject.boot, self_managed=True), {**self_managed(node), **key})

    return pulumi.Output.all(**known).apply(made)


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if value is not None}
