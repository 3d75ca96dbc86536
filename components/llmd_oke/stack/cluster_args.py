"""The arguments of a created cluster's components, from the stack file."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pulumi

from llmd_oke.catalogue.operators import AddOn
from llmd_oke.cluster.add_ons import AddOnArgs
from llmd_oke.cluster.cpu_pool import CpuPoolArgs
from llmd_oke.cluster.gpu_pool import GpuPoolArgs, Launch
from llmd_oke.cluster.iam import IamArgs
from llmd_oke.cluster.network import Network, NetworkArgs
from llmd_oke.cluster.oke_cluster import OidcArgs, OkeCluster, OkeClusterArgs
from llmd_oke.cluster.pool_parts import CyclingArgs, NodeNetworkArgs, TaintArgs
from llmd_oke.cluster.storage import StorageArgs
from llmd_oke.config import CpuPool, CreateCluster, FileStorage, GpuPool, Lustre, Oidc, SystemPool
from llmd_oke.config.base import Part
from llmd_oke.config.node_pools import Cycling, Taint
from llmd_oke.planning import Plan
from llmd_oke.planning.add_ons import add_ons
from llmd_oke.planning.gpu_stack import gpu_stack
from llmd_oke.planning.iam import iam_needs
from llmd_oke.planning.network import network_choices, network_pools
from llmd_oke.planning.node_scaling import autoscaler_add_on, autoscaler_nodes


def network_args(plan: Plan, cluster: CreateCluster) -> NetworkArgs:
    """The network's arguments."""
    network, choices = cluster.network, network_choices(plan.config, cluster)
    args: dict[str, Any] = {
        "compartment_id": network.compartment_id or cluster.compartment_id,
        "pools": [{"nodes": pool.nodes, "max_pods": pool.max_pods} for pool in network_pools(plan.config)],
        "cidr": network.cidr,
        "cni": cluster.cni,
        "api_access": cluster.api_endpoint.access,
        "api_allowed_cidrs": list(cluster.api_endpoint.allowed_cidrs),
        "public_load_balancers": choices.public_load_balancers,
        "public_load_balancer_cidrs": list(network.public_load_balancer_cidrs),
        "bastion": choices.bastion,
        "bastion_client_cidrs": list(network.bastion_service.client_cidrs),
        "bastion_id": network.bastion_service.ocid,
        "bastion_subnet_cidr": network.bastion_service.subnet_cidr,
        "bastion_host_cidrs": list(network.bastion_host_cidrs),
        "operator": choices.operator,
        "file_storage": choices.file_storage,
        "lustre": choices.lustre,
        "worker_internet": network.worker_internet,
        "pod_internet": network.pod_internet,
        "vcn_id": network.vcn_id,
        "subnet_ids": _named(network.subnets),
        "nsg_ids": _named(network.security_groups),
        "route_table_ids": _named(network.route_tables),
        "services_gateway_id": cluster.given.services_gateway_id,
        "services_gateway_cidr": cluster.given.services_gateway_cidr,
        "display_name": cluster.name,
        "protect": cluster.protect if network.protect is None else network.protect,
    }
    return cast("NetworkArgs", _given(args))


def iam_args(plan: Plan, cluster: CreateCluster, needs: Sequence[str], oke: OkeCluster | None) -> IamArgs:
    """The arguments of groups and policies: before the cluster is there (no `oke`) or after."""
    iam = cluster.iam
    phase = "cluster" if oke is None else "nodes"
    args: dict[str, Any] = {
        "needs": list(needs),
        "compartment_id": cluster.compartment_id,
        "tenancy_id": cluster.tenancy_id,
        "style": iam.style,
        "domain": iam.domain,
        "domain_url": iam.domain_url,
        "region": cluster.region,
        "home_region": iam.home_region,
        "cluster_id": None if oke is None else oke.cluster_id,
        "network_compartment_id": cluster.network.compartment_id,
        "image_compartment_id": iam.image_compartment_id,
        "key_compartment_id": iam.key_compartment_id,
        "dynamic_group_ids": _named(iam.dynamic_groups),
        "each": {name: list(ocids) for name, ocids in iam_needs(plan.config, cluster).each.items()},
        "display_name": f"{iam_name(cluster)}-{phase}",
    }
    return cast("IamArgs", _given(args))


def iam_name(cluster: CreateCluster) -> str:
    """What groups and policies of a cluster begin with. They are all in the tenancy's home region, where clusters of
    one name in other regions and compartments have theirs.
    """
    place = hashlib.sha256(cluster.compartment_id.encode()).hexdigest()[:6]
    return f"{cluster.name}-{cluster.region}-{place}"


def cluster_args(cluster: CreateCluster, network: Network, api_server: str | None) -> OkeClusterArgs:
    """The cluster's arguments."""
    flannel = cluster.cni == "flannel"
    args: dict[str, Any] = {
        "cluster_name": cluster.name,
        "region": cluster.region,
        "compartment_id": cluster.compartment_id,
        "kubernetes_version": cluster.kubernetes_version,
        "vcn_id": network.vcn_id,
        "api_subnet_id": network.api_subnet_id,
        "api_nsg_ids": [network.api_nsg_id],
        "cluster_id": cluster.cluster_id,
        "public_api": cluster.api_endpoint.access == "public",
        "flannel": flannel,
        "pods_cidr": cluster.pods_cidr if flannel else None,
        "services_cidr": cluster.services_cidr,
        "load_balancer_subnet_ids": [network.load_balancer_subnet_id],
        "kms_key_id": cluster.kms_key_id,
        "image_policy_key_ids": list(cluster.image_policy.kms_key_ids) if cluster.image_policy else None,
        "oidc": oidc_args(cluster.oidc),
        "oidc_discovery": cluster.oidc_discovery,
        "protect": cluster.protect,
        "kubeconfig": cluster.given.kubeconfig,
        "api_server": api_server,
    }
    return cast("OkeClusterArgs", _given(args))


def oidc_args(oidc: Oidc | None) -> OidcArgs | None:
    """How users sign in with an identity provider."""
    return None if oidc is None else cast("OidcArgs", oidc.model_dump(exclude_none=True))


def cpu_pool_args(
    name: str,
    pool: SystemPool,
    cluster: CreateCluster,
    network: Network,
    oke: OkeCluster,
    availability_domains: pulumi.Input[list[str]],
    image_id: pulumi.Input[str] | None,
) -> CpuPoolArgs:
    """The arguments of a pool without GPUs; without `image_id` OCI is asked for the newest image."""
    args: dict[str, Any] = {
        "pool_name": name,
        "shape": pool.shape,
        "size": pool.size,
        "kubernetes_version": pool.kubernetes_version or cluster.kubernetes_version,
        "cluster_id": oke.cluster_id,
        "compartment_id": cluster.compartment_id,
        "availability_domains": list(pool.availability_domains) or availability_domains,
        "network": node_network(network),
        "api_server_host": oke.api_server_host,
        "image_id": image_id,
        "ocpus": pool.ocpus,
        "memory_gib": pool.memory_gib,
        "boot_volume_gib": pool.boot_volume_gib,
        "max_pods": pool.max_pods,
        "labels": dict(pool.labels),
        "taints": _taints(pool.taints) if isinstance(pool, CpuPool) else None,
        "autoscaled": _autoscaled(pool) if isinstance(pool, CpuPool) else None,
        "cycling": _cycling(pool.cycling),
        "ssh_public_key": cluster.ssh_public_key,
        "protect": cluster.protect,
    }
    return cast("CpuPoolArgs", _given(args))


def gpu_pool_args(
    plan: Plan,
    pool: GpuPool,
    cluster: CreateCluster,
    network: Network,
    oke: OkeCluster,
    image_id: pulumi.Input[str],
) -> GpuPoolArgs:
    """The arguments of a pool of GPU nodes."""
    args: dict[str, Any] = {
        "pool_name": pool.name,
        "launch": Launch(pool.launch),
        "shape": pool.shape,
        "size": pool.size,
        "kubernetes_version": pool.kubernetes_version or cluster.kubernetes_version,
        "cluster_id": oke.cluster_id,
        "compartment_id": cluster.compartment_id,
        "tenancy_id": cluster.tenancy_id,
        "availability_domain": pool.availability_domain or "",
        "image_id": image_id,
        "network": node_network(network),
        "api_server_host": oke.api_server_host,
        "cluster_ca": oke.ca_certificate,
        "pool_id": pool.pool_id,
        "compute_cluster_id": pool.compute_cluster_id,
        "fault_domains": list(pool.fault_domains) or None,
        "capacity_reservation_id": pool.capacity_reservation_id,
        "host_group_id": pool.host_group_id,
        "boot_volume_gib": pool.boot_volume_gib,
        "boot_volume_vpus_per_gb": pool.boot_volume_vpus_per_gb,
        "boot_volume_kms_key_id": pool.boot_volume_kms_key_id,
        "max_pods": pool.max_pods,
        "labels": {**dict(gpu_stack(plan.config).node_labels), **pool.labels},
        "taints": _taints(pool.taints),
        "autoscaled": _autoscaled(pool),
        "nvme": pool.nvme,
        "huge_pages_gib": pool.huge_pages_gib,
        "topology_manager_policy": pool.topology_manager_policy or ("best-effort" if plan.rdma else None),
        "topology_manager_scope": pool.topology_manager_scope,
        "file_storage": isinstance(plan.config.storage.model_cache, FileStorage) or None,
        "cycling": _cycling(pool.cycling),
        "eviction_grace_minutes": pool.eviction_grace_minutes,
        "ssh_public_key": cluster.ssh_public_key,
        "protect": cluster.protect,
    }
    return cast("GpuPoolArgs", _given(args))


def node_network(network: Network) -> NodeNetworkArgs:
    """Where nodes and their pods are."""
    args: dict[str, Any] = {
        "worker_subnet_id": network.worker_subnet_id,
        "worker_nsg_ids": [network.workers_nsg_id],
        "pod_subnet_id": network.pod_subnet_id,
        "pod_nsg_ids": None if network.pods_nsg_id is None else [network.pods_nsg_id],
    }
    return cast("NodeNetworkArgs", _given(args))


def add_on_args(plan: Plan, cluster: CreateCluster) -> list[AddOnArgs]:
    """The add-ons that the GPU stack needs, then those of the stack file."""
    return [_add_on(add_on, {}) for add_on in add_ons(plan.config, cluster)]


def autoscaler_args(plan: Plan, pool_ids: Mapping[str, pulumi.Input[str]]) -> AddOnArgs:
    """The cluster autoscaler for the pools that it may change, by their names and OCIDs."""
    nodes = pulumi.Output.all(**pool_ids).apply(lambda found: autoscaler_nodes(plan.config, found))
    return _add_on(autoscaler_add_on(plan.config), {"nodes": nodes})


def _add_on(add_on: AddOn, more: Mapping[str, pulumi.Input[str]]) -> AddOnArgs:
    settings = {**add_on.configurations, **more}
    args: dict[str, Any] = {"name": add_on.name, "version": add_on.version, "configurations": settings}
    return cast("AddOnArgs", _given(args))


def storage_args(plan: Plan, cluster: CreateCluster, network: Network) -> StorageArgs | None:
    """The arguments of a shared file system for model caches; None where none is created."""
    cache = plan.config.storage.model_cache
    if not isinstance(cache, FileStorage | Lustre) or cache.existing is not None:
        return None
    shared = isinstance(cache, FileStorage)
    subnet, group = (
        (network.storage_subnet_id, network.storage_nsg_id)
        if shared
        else (network.lustre_subnet_id, network.lustre_nsg_id)
    )
    of_pools = [pool.availability_domain for pool in plan.config.gpu_pools if pool.availability_domain]
    args: dict[str, Any] = {
        "kind": cache.kind,
        "compartment_id": cluster.compartment_id,
        "availability_domain": cache.availability_domain or of_pools[0],
        "subnet_id": subnet,
        "nsg_ids": [group],
    }
    args |= (
        {"export_path": cache.export_path, "client_cidr": _node_cidr(plan, network)}
        if shared
        else {"capacity_gb": cache.capacity_gb, "performance_tier": cache.performance_tier}
    )
    return cast("StorageArgs", args)


def _node_cidr(plan: Plan, network: Network) -> pulumi.Output[str]:
    """Where nodes are: those of pools that are there already anywhere in the VCN."""
    return network.cidr if any(pool.pool_id for pool in plan.config.gpu_pools) else network.worker_cidr


def _named(part: Part) -> dict[str, str] | None:
    return part.model_dump(exclude_none=True) or None


def _taints(taints: Sequence[Taint]) -> list[TaintArgs]:
    return [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in taints]


def _autoscaled(pool: GpuPool | CpuPool) -> bool | None:
    return pool.autoscaled or None


def _cycling(cycling: Cycling | None) -> CyclingArgs | None:
    if cycling is None:
        return None
    return {"mode": cycling.mode, "max_surge": cycling.max_surge, "max_unavailable": cycling.max_unavailable}


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if value is not None}
