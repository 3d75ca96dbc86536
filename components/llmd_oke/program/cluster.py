"""From a plan to a created cluster: OCI's resources, what makes GPUs and RDMA usable, and the gates behind it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pulumi
from llmd_base.errors import KitError

from llmd_oke import config
from llmd_oke.catalogue.cluster import eviction
from llmd_oke.catalogue.registry_mirror import RegistryMirror
from llmd_oke.cluster.gate import NodeGate, NodeGateArgs
from llmd_oke.cluster.gpu_pool import GpuPool, Launch
from llmd_oke.cluster.iam import Iam, wait_for_policies
from llmd_oke.cluster.network import Network, choice_args
from llmd_oke.cluster.oke_cluster import AddOnArgs, AddOns, OkeCluster
from llmd_oke.cluster.pools import CpuNodesArgs, CpuPool, CpuPoolArgs, CyclingArgs, NodeImage, SystemPool, TaintArgs
from llmd_oke.cluster.provider import TagArgs, availability_domains, region_provider
from llmd_oke.cluster.storage import Storage
from llmd_oke.config.base import Part
from llmd_oke.config.cluster import AddOn
from llmd_oke.config.pools import Taint
from llmd_oke.objects import PART_OF, KubernetesObject, Manifest, after, is_update
from llmd_oke.operators.calico import Calico
from llmd_oke.operators.helm_operators import (
    AmdGpuOperator,
    AmdGpuOperatorArgs,
    CertManager,
    NodeFeatureDiscovery,
    TolerationArgs,
)
from llmd_oke.operators.node_repair import NodeRepair, RepairedPoolArgs
from llmd_oke.operators.rdma_network import RdmaNetwork
from llmd_oke.planning import Plan
from llmd_oke.planning.plan import ClusterPlan, CyclingPlan, GpuPoolPlan, GpuStackPlan, TagsPlan
from llmd_oke.planning.pools import SYSTEM_POOL, autoscaler_nodes, awaited_nodes
from llmd_oke.planning.tags import unique_name
from llmd_oke.program.acceptance import accepted_pool
from llmd_oke.program.access import ClusterAccess, LoadBalancerNetwork, mirror_args, taint_outputs
from llmd_oke.serving.acceptance import Acceptance, AcceptanceArgs
from llmd_oke.values import values_folder

_API_SERVER_PROBE: Manifest = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "llmd-oke", "namespace": "kube-system", "labels": PART_OF},
    "data": {"purpose": "GPU nodes are ordered after the API server has taken this object."},
}


@dataclass(frozen=True)
class CreatedCluster:
    """What was declared, by `provider`; `inside` are the options of what is in the cluster. `cpu_pools` have to be
    there before anything runs in it; `add_ons` before operators that rely on OKE's.
    """

    provider: pulumi.ProviderResource
    oke: OkeCluster
    network: Network
    access: ClusterAccess
    inside: pulumi.ResourceOptions
    cpu_pools: dict[str, SystemPool | CpuPool]
    add_ons: list[pulumi.Resource]
    gpu_pools: dict[str, GpuPool] = field(default_factory=dict[str, GpuPool])

    @property
    def nodes(self) -> list[pulumi.Resource]:
        """The pools that have to be there before anything runs in the cluster."""
        return list(self.cpu_pools.values())

    def outputs(self, plan: Plan, region: str) -> dict[str, Any]:
        """What other stacks and commands need to know."""
        taints = {pool.name: taint_outputs(pool.taints) for pool in plan.pools}
        return {
            "cluster_id": self.oke.cluster_id,
            "kubeconfig": self.oke.kubeconfig,
            "endpoint": self.oke.endpoint,
            "region": region,
            "kubernetes_version": self.oke.kubernetes_version,
            "vcn_id": self.network.vcn_id,
            "bastion_subnet_id": self.network.bastion_subnet_id,
            "bastion_id": self.network.bastion_id,
            "gpu_pools": {
                name: {"pool_id": pool.pool_id, "node_label": pool.node_label, "taints": taints[name]}
                for name, pool in self.gpu_pools.items()
            },
            "model_cache_handle": self.access.model_cache_handle,
        }


def create_cluster(
    created: ClusterPlan,
    api_server: str | None,
    image_links: Mapping[str, pulumi.Input[str]],
    mirror: RegistryMirror | None,
    *,
    rehearsed: bool = False,
) -> CreatedCluster:
    """Declares network, rights, cluster, pools, add-ons and storage, each after what it needs.

    GPU nodes come last: after the first answered call to the API server, because they are of no use where it can't be
    reached, and after the other pools, which are upgraded before them.

    Args:
        created: what the plan has of the cluster.
        api_server: address of the API server at the end of a tunnel.
        image_links: secret links to image files, by the names of pools that import them.
        mirror: the private registry that pods pull from.
        rehearsed: whether OCI is a stand-in, which acts on policies at once.

    Raises:
        KitError: a pool's image has no link.
    """
    cluster = created.config
    provider = region_provider("oci", cluster.region, created.tags.ignored)
    waits = [] if rehearsed or not is_update() else [wait_for_policies()]
    opts = pulumi.ResourceOptions(providers=[provider], transformations=waits)
    network = _network(created, opts)
    rights = _rights("cluster-iam", created, created.iam.cluster, None, opts)
    oke = _oke(created, network, api_server, after(opts, network, *rights))
    node_rights = _rights("nodes-iam", created, created.iam.nodes, oke, opts)
    ready = after(opts, network, *rights, *node_rights)
    access = ClusterAccess(
        identifier=oke.cluster_id,
        kubeconfig=oke.kubeconfig,
        created=oke.created,
        load_balancers=_load_balancers(network),
        mirror=mirror,
    )
    inside = access.options(access.provider("operators"))
    reached = KubernetesObject("api-server", _API_SERVER_PROBE, inside)
    cpu_pools = _cpu_pools(created, network, oke, image_links, ready)
    cluster_add_ons = _add_ons(created, oke, after(opts, *cpu_pools.values()))
    gpu_opts = after(ready, reached, *cpu_pools.values())
    gpu_pools = {
        pool.config.name: _gpu_pool(pool, created, network, oke, image_links, gpu_opts) for pool in created.gpu_pools
    }
    storage = _storage(created, network, after(ready, oke))
    if storage is not None:
        access = replace(access, model_cache_handle=storage.volume_handle)
    return CreatedCluster(provider, oke, network, access, inside, cpu_pools, cluster_add_ons, gpu_pools)


def _network(created: ClusterPlan, opts: pulumi.ResourceOptions) -> Network:
    cluster, network = created.config, created.config.network
    return Network(
        "network",
        {
            **choice_args(created.network),
            **_tags(created.tags),
            "compartment_id": network.compartment_id or cluster.compartment_id,
            "pools": [{"nodes": pool.nodes, "max_pods": pool.max_pods} for pool in created.network_pools],
            "cidr": network.cidr,
            "api_access": cluster.api_endpoint.access,
            "api_allowed_cidrs": list(cluster.api_endpoint.allowed_cidrs),
            "public_load_balancer_cidrs": list(network.public_load_balancer_cidrs),
            "bastion_client_cidrs": list(network.bastion_service.client_cidrs),
            "bastion_id": network.bastion_service.ocid,
            "bastion_subnet_cidr": network.bastion_service.subnet_cidr,
            "bastion_host_cidrs": list(network.bastion_host_cidrs),
            "vcn_id": network.vcn_id,
            "subnet_ids": _ocids(network.subnets),
            "nsg_ids": _ocids(network.security_groups),
            "route_table_ids": _ocids(network.route_tables),
            "services_gateway_id": cluster.lookup_results.services_gateway_id,
            "services_gateway_cidr": cluster.lookup_results.services_gateway_cidr,
            "display_name": cluster.name,
            "protect": cluster.protect if network.protect is None else network.protect,
        },
        opts,
    )


def _load_balancers(network: Network) -> dict[str, LoadBalancerNetwork]:
    networks = {"internal": LoadBalancerNetwork(network.load_balancer_subnet_id, network.load_balancers_nsg_id)}
    subnet_id, group_id = network.public_load_balancer_subnet_id, network.public_load_balancers_nsg_id
    if subnet_id is not None and group_id is not None:
        networks["public"] = LoadBalancerNetwork(subnet_id, group_id)
    return networks


def _ocids(part: Part) -> dict[str, pulumi.Input[str]]:
    return part.model_dump(exclude_none=True)


def _rights(
    name: str,
    created: ClusterPlan,
    needs: Sequence[str],
    oke: OkeCluster | None,
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    """Groups and policies: before the cluster is there (no `oke`) or after.

    They are all in the tenancy's home region, where clusters of one name in other regions and compartments have theirs:
    their names say which cluster they are of.
    """
    if not needs:
        return []
    cluster = created.config
    iam, phase = cluster.iam, "cluster" if oke is None else "nodes"
    tag = iam.node_tag
    component = Iam(
        name,
        {
            "needs": list(needs),
            **_tags(created.tags),
            "tag_namespace_compartment_id": created.tags.namespace_compartment_id,
            "ignored_tags": list(created.tags.ignored),
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
            "reservation_compartment_id": iam.reservation_compartment_id,
            "dynamic_group_ids": _ocids(iam.dynamic_groups),
            "resource_ids": {key: list(ocids) for key, ocids in created.iam.resource_ids.items()},
            "node_tag": None if tag is None else {"name": tag, "value": created.tags.defined[tag]},
            "display_name": f"{unique_name(cluster)}-{phase}",
        },
        opts,
    )
    return [component]


def _oke(created: ClusterPlan, network: Network, api_server: str | None, opts: pulumi.ResourceOptions) -> OkeCluster:
    """The cluster. Its name changes in place, so that its component has a name of its own."""
    cluster = created.config
    flannel = cluster.cni == "flannel"
    return OkeCluster(
        "oke",
        {
            **_tags(created.tags),
            "cluster_name": cluster.name,
            "region": cluster.region,
            "compartment_id": cluster.compartment_id,
            "tenancy_id": cluster.tenancy_id,
            "kubernetes_version": cluster.kubernetes_version,
            "network": network,
            "cluster_id": cluster.cluster_id,
            "public_api": cluster.api_endpoint.access == "public",
            "flannel": flannel,
            "pods_cidr": cluster.pods_cidr if flannel else None,
            "services_cidr": cluster.services_cidr,
            "kms_key_id": cluster.kms_key_id,
            "image_policy_key_ids": list(cluster.image_policy.kms_key_ids) if cluster.image_policy else None,
            "oidc": None
            if cluster.oidc is None
            else {
                "issuer_url": cluster.oidc.issuer_url,
                "client_id": cluster.oidc.client_id,
                "username_claim": cluster.oidc.username_claim,
                "username_prefix": cluster.oidc.username_prefix,
                "groups_claim": cluster.oidc.groups_claim,
                "groups_prefix": cluster.oidc.groups_prefix,
                "required_claims": dict(cluster.oidc.required_claims),
            },
            "oidc_discovery": cluster.oidc_discovery,
            "protect": cluster.protect,
            "kubeconfig": cluster.lookup_results.kubeconfig,
            "api_server": api_server,
        },
        opts,
    )


def _cpu_pools(
    created: ClusterPlan,
    network: Network,
    oke: OkeCluster,
    image_links: Mapping[str, pulumi.Input[str]],
    opts: pulumi.ResourceOptions,
) -> dict[str, SystemPool | CpuPool]:
    """The pools without GPUs: the system pool, then the others after it. OCI is asked for availability domains where
    neither a pool nor the stack file names any, and for the newest image where none is named.
    """
    cluster = created.config
    domains: pulumi.Input[list[str]] = []
    if any(not planned.availability_domains for planned in created.cpu_pools):
        domains = availability_domains(cluster.compartment_id, pulumi.InvokeOutputOptions(parent=oke))
    components: dict[str, SystemPool | CpuPool] = {}
    for planned in created.cpu_pools:
        name, pool = planned.name, planned.config
        image_id = _image(name, pool.image, created, image_links, opts) or cluster.lookup_results.system_image_id
        nodes: CpuNodesArgs = {
            **_tags(created.tags),
            "cluster": oke,
            "network": network,
            "pool_name": name,
            "shape": pool.shape,
            "size": pool.size,
            "kubernetes_version": planned.kubernetes_version,
            "availability_domains": list(planned.availability_domains) or domains,
            "image_id": image_id,
            "ocpus": pool.ocpus,
            "memory_gib": pool.memory_gib,
            "boot_volume_gib": pool.boot_volume_gib,
            "max_pods": pool.max_pods,
            "labels": dict(pool.labels),
            "cycling": _cycling(planned.cycling),
            "ssh_public_key": cluster.ssh_public_key,
            "protect": cluster.protect,
        }
        if isinstance(pool, config.CpuPool):
            own: CpuPoolArgs = {**nodes, "taints": _taints(pool.taints), "autoscaled": pool.autoscaled}
            components[name] = CpuPool(name, own, after(opts, components[SYSTEM_POOL]))
        else:
            components[name] = SystemPool(name, nodes, opts)
    return components


def _gpu_pool(
    planned: GpuPoolPlan,
    created: ClusterPlan,
    network: Network,
    oke: OkeCluster,
    image_links: Mapping[str, pulumi.Input[str]],
    opts: pulumi.ResourceOptions,
) -> GpuPool:
    pool, cluster = planned.config, created.config
    image_id = None if pool.pool_id else _image(pool.name, pool.image, created, image_links, opts)
    return GpuPool(
        pool.name,
        {
            **_tags(created.tags),
            "cluster": oke,
            "network": network,
            "pool_name": pool.name,
            "launch": Launch(pool.launch),
            "shape": pool.shape,
            "size": pool.size,
            "kubernetes_version": planned.kubernetes_version,
            "availability_domain": pool.availability_domain or "",
            "image_id": image_id or "",
            "pool_id": pool.pool_id,
            "compute_cluster_id": pool.compute_cluster_id,
            "fault_domains": list(pool.fault_domains) or None,
            "capacity_reservation_id": pool.capacity_reservation_id,
            "host_group_id": pool.host_group_id,
            "boot_volume_gib": pool.boot_volume_gib,
            "boot_volume_vpus_per_gb": pool.boot_volume_vpus_per_gb,
            "boot_volume_kms_key_id": pool.boot_volume_kms_key_id,
            "max_pods": pool.max_pods,
            "labels": dict(planned.labels),
            "taints": _taints(pool.taints),
            "autoscaled": pool.autoscaled,
            "nvme": pool.nvme,
            "huge_pages_gib": pool.huge_pages_gib,
            "topology_manager_policy": planned.topology_manager_policy,
            "topology_manager_scope": pool.topology_manager_scope,
            "file_storage": planned.file_storage,
            "rdma_in_pods": planned.rdma_in_pods,
            "cycling": _cycling(planned.cycling),
            "eviction_grace_minutes": pool.eviction_grace_minutes,
            "ssh_public_key": cluster.ssh_public_key,
            "protect": cluster.protect,
        },
        opts,
    )


def _tags(tags: TagsPlan) -> TagArgs:
    return {"freeform_tags": dict(tags.freeform) or None, "defined_tags": dict(tags.defined) or None}


def _taints(taints: Iterable[Taint]) -> list[TaintArgs]:
    return [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in taints]


def _cycling(cycling: CyclingPlan | None) -> CyclingArgs | None:
    if cycling is None:
        return None
    return {"mode": cycling.mode, "max_surge": cycling.max_surge, "max_unavailable": cycling.max_unavailable}


def _image(
    pool: str,
    image: config.Image | None,
    created: ClusterPlan,
    image_links: Mapping[str, pulumi.Input[str]],
    opts: pulumi.ResourceOptions,
) -> pulumi.Input[str] | None:
    """The OCID of a pool's image, which may have to be imported; None where the stack file names none."""
    if image is None or image.import_ is None:
        return None if image is None else image.ocid
    link = image.import_.uri or image_links.get(pool)
    if link is None:
        remedy = f"Give it: pulumi config set --secret --path llmd-oke:imageLinks.{pool}"
        raise KitError(f"The image of pool {pool} has no link to its file.", remedy)
    return NodeImage(
        f"{pool}-image",
        {
            **_tags(created.tags),
            "compartment_id": created.config.compartment_id,
            "display_name": image.import_.name,
            "uri": link,
            "checksum": image.import_.checksum,
        },
        opts,
    ).image_id


def _add_ons(created: ClusterPlan, oke: OkeCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """The cluster's add-ons: those that the GPU stack needs, then those of the stack file. They go with the cluster:
    their operators would be taken away under objects that stay.
    """
    needed = [_add_on(add_on) for add_on in created.add_ons]
    if not needed:
        return []
    with_cluster = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(deleted_with=oke.created))
    return [AddOns("add-ons", {"cluster_id": oke.cluster_id, "add_ons": needed}, with_cluster)]


def declare_autoscaler(plan: Plan, cluster: CreatedCluster, gates: Sequence[pulumi.Resource]) -> None:
    """The cluster autoscaler, where a pool leaves its size to it. It comes after the gates, so that it takes no node
    away that the first servers are waiting for; nodes that no gate waits for may still be joining then.
    """
    if plan.created is None or plan.created.autoscaler is None:
        return
    autoscaled = plan.created.autoscaled
    scaled = {pool.name for pool in autoscaled}
    pools = {**cluster.cpu_pools, **cluster.gpu_pools}
    pool_ids = {name: pool.pool_id for name, pool in pools.items() if name in scaled}
    nodes = pulumi.Output.all(**pool_ids).apply(lambda ocids: autoscaler_nodes(autoscaled, ocids))
    add_on = _add_on(plan.created.autoscaler, {"nodes": nodes})
    opts = pulumi.ResourceOptions(providers=[cluster.provider])
    AddOns(
        "cluster-autoscaler",
        {"cluster_id": cluster.oke.cluster_id, "add_ons": [add_on]},
        after(opts, *cluster.nodes, *cluster.gpu_pools.values(), *gates),
    )


def _add_on(add_on: AddOn, further: Mapping[str, pulumi.Input[str]] | None = None) -> AddOnArgs:
    settings = {**add_on.configurations, **(further or {})}
    return {"name": add_on.name, "version": add_on.version, "configurations": settings}


def _storage(created: ClusterPlan, network: Network, opts: pulumi.ResourceOptions) -> Storage | None:
    """A shared file system for model caches, mounted by nodes only. None where none is created."""
    storage = created.storage
    if storage is None:
        return None
    shared = storage.kind == "file-storage"
    subnet_id, nsg_id = (
        (network.storage_subnet_id, network.storage_nsg_id)
        if shared
        else (network.lustre_subnet_id, network.lustre_nsg_id)
    )
    return Storage(
        "storage",
        {
            **_tags(created.tags),
            "kind": storage.kind,
            "compartment_id": created.config.compartment_id,
            "availability_domain": storage.availability_domain,
            "subnet_id": subnet_id,
            "nsg_ids": None if nsg_id is None else [nsg_id],
            "export_path": storage.export_path,
            "client_cidr": (network.cidr if storage.anywhere else network.worker_cidr) if shared else None,
            "capacity_gb": storage.capacity_gb,
            "performance_tier": storage.performance_tier,
        },
        opts,
    )


def declare_policy_engine(
    plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions, *, rehearsed: bool
) -> list[pulumi.Resource]:
    """Calico, where the stack asks for it; models wait for it. A rehearsal enforces policies itself."""
    if plan.network_policies.engine != "calico":
        return []
    stand_in = str(values_folder() / "rehearsal" / "calico.yaml") if rehearsed else None
    return [Calico("calico", {"manifest_file": stand_in}, after(opts, *cluster.nodes))]


def declare_node_repair(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> None:
    """What has OKE repair a GPU node that somebody labels, where the stack asks for it; nothing waits for it."""
    if plan.created is None or plan.created.config.node_repair == "none" or not plan.created.gpu_pools:
        return
    pools: list[RepairedPoolArgs] = [
        {
            "pool_name": planned.config.name,
            "eviction_grace_minutes": eviction().minutes(
                planned.config.eviction_grace_minutes, cycling=planned.cycling is not None
            ),
        }
        for planned in plan.created.gpu_pools
    ]
    NodeRepair("node-repair", {"pools": pools, "kubeconfig": cluster.oke.kubeconfig}, after(opts, *cluster.nodes))


def declare_operators(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """Operators one after the other, a gate for each pool and the acceptance behind it; models wait for both."""
    stack = plan.gpu_stack
    declared: list[pulumi.Resource] = []
    for name in stack.components:
        needed = [*cluster.nodes, *cluster.add_ons, *declared]
        if name == "rdma-network":
            needed += list(cluster.gpu_pools.values())
        declared.append(_operator(name, plan, stack, cluster, after(opts, *needed)))
    gates = _gates(plan, cluster, after(opts, *cluster.nodes, *cluster.add_ons, *declared))
    return [*gates, *_acceptance(plan, cluster, after(opts, *gates))]


def _operator(
    name: str, plan: Plan, stack: GpuStackPlan, cluster: CreatedCluster, opts: pulumi.ResourceOptions
) -> pulumi.Resource:
    tolerations: list[TolerationArgs] = [
        {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
        for taint in stack.tolerations
    ]
    mirror = mirror_args(plan)
    match name:
        case "cert-manager":
            return CertManager(name, {"registry_mirror": mirror}, opts)
        case "node-feature-discovery":
            return NodeFeatureDiscovery(name, {"tolerations": tolerations, "registry_mirror": mirror}, opts)
        case "amd-gpu-operator":
            operator: AmdGpuOperatorArgs = {
                "node_selector": dict(stack.gpu_selector),
                "tolerations": tolerations,
                "registry_mirror": mirror,
            }
            return AmdGpuOperator(name, operator, opts)
        case _:
            shapes = sorted({pool.shape.name for pool in plan.pools})
            return RdmaNetwork("rdma-network", {"shapes": [*shapes], "kubeconfig": cluster.oke.kubeconfig}, opts)


def _gates(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """A gate for each pool of GPU nodes. A scaled pool is never waited for beyond what it has: a new one can begin with
    less than the stack file says.
    """
    awaited = awaited_nodes(plan)
    gates: list[pulumi.Resource] = []
    for pool in plan.pools:
        gpu_pool, nodes = cluster.gpu_pools[pool.name], awaited[pool.name]
        args: NodeGateArgs = {
            "pool_name": pool.name,
            "nodes": gpu_pool.size.apply(lambda size, nodes=nodes: min(nodes, int(size))) if pool.autoscaled else nodes,
            "once": pool.autoscaled or None,
            "devices": pool.shape.devices(rdma=plan.rdma),
            "rdma_in_pods": plan.rdma or None,
            "timeout_s": pool.ready_timeout_s,
            "system_pool_name": SYSTEM_POOL,
            "pool_id": gpu_pool.pool_id,
        }
        gates.append(NodeGate(f"{pool.name}-gate", args, after(opts, gpu_pool)))
    return gates


def _acceptance(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """The acceptance of the pools that updates test; nothing where there is none."""
    pools = [
        accepted_pool(accepted, cluster.gpu_pools[accepted.pool.name].pool_id)
        for accepted in plan.acceptance
        if accepted.in_update
    ]
    if not pools:
        return []
    args: AcceptanceArgs = {
        "pools": pools,
        "image": plan.pulled(plan.release.vllm.image).pinned,
        "system_pool_name": SYSTEM_POOL,
        "registry_mirror": mirror_args(plan),
    }
    return [Acceptance("acceptance", args, opts)]
