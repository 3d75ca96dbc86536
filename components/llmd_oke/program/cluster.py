"""Declaration of a created cluster: OCI resources, operators for GPUs and RDMA, node gates and acceptance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import pulumi
from llmd_base.errors import KitError

from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.cluster.budget import Budget, BudgetArgs
from llmd_oke.cluster.gate import NodeGate, NodeGateArgs
from llmd_oke.cluster.gpu_pool import GpuPool, GpuPoolArgs
from llmd_oke.cluster.iam import Iam, IamArgs, wait_for_policies
from llmd_oke.cluster.network import Network, NetworkArgs
from llmd_oke.cluster.oci_monitoring import OciAlarmArgs, OciMonitoring, OciMonitoringArgs
from llmd_oke.cluster.oke_cluster import AddOnArgs, AddOns, AddOnsArgs, OkeCluster, OkeClusterArgs
from llmd_oke.cluster.pools import CpuPool, CpuPoolArgs, NodeImage, NodeImageArgs, SystemPool, SystemPoolArgs
from llmd_oke.cluster.provider import TagArgs, availability_domains, region_provider
from llmd_oke.cluster.storage import Storage, StorageArgs
from llmd_oke.objects import PART_OF, KubernetesObject, Manifest, after, is_update
from llmd_oke.operators.calico import Calico
from llmd_oke.operators.helm_operators import (
    AmdGpuOperator,
    AmdGpuOperatorArgs,
    CertManager,
    CertManagerArgs,
    NodeFeatureDiscovery,
    NodeFeatureDiscoveryArgs,
    TolerationArgs,
)
from llmd_oke.operators.node_repair import NodeRepair, RepairedPoolArgs
from llmd_oke.operators.rdma_network import RdmaNetwork, RdmaNetworkArgs
from llmd_oke.planning import Plan
from llmd_oke.planning.cluster_plan import ClusterPlan, GpuPoolPlan, GpuStackPlan, NodesPlan, TagsPlan
from llmd_oke.planning.pools import SYSTEM_POOL, autoscaler_nodes, awaited_nodes
from llmd_oke.program.acceptance import accepted_pool
from llmd_oke.program.access import ClusterIdentity, LoadBalancerNetwork, mirror_args, taint_outputs
from llmd_oke.program.arguments import arguments
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
    """Components of a created cluster. `provider` is that of OCI; `inside` are the options of objects in the cluster.
    All pods depend on `cpu_pools`, operators depend on `add_ons`. `nodes_group_id` is the OCID of the dynamic group of
    nodes, None if they send no logs.
    """

    provider: pulumi.ProviderResource
    oke: OkeCluster
    network: Network
    access: ClusterIdentity
    inside: pulumi.ResourceOptions
    cpu_pools: dict[str, SystemPool | CpuPool]
    add_ons: list[pulumi.Resource]
    gpu_pools: dict[str, GpuPool] = field(default_factory=dict[str, GpuPool])
    nodes_group_id: pulumi.Output[str] | None = None

    @property
    def nodes(self) -> list[pulumi.Resource]:
        """Pools without GPUs, on which all objects with pods depend."""
        return list(self.cpu_pools.values())

    def outputs(self, plan: Plan, region: str) -> "ClusterOutputs":
        """Return the stack's outputs for the cluster, which serving stacks and commands read."""
        taints = {pool.name: taint_outputs(pool.taints) for pool in plan.pools}
        gpu_pools = {
            name: arguments(GpuPoolOutputs, pool, taints=taints[name]) for name, pool in self.gpu_pools.items()
        }
        return arguments(ClusterOutputs, self.oke, self.network, self.access, region=region, gpu_pools=gpu_pools)


class GpuPoolOutputs(TypedDict):
    """Outputs of a stack for a pool of GPU nodes."""

    pool_id: pulumi.Output[str]
    node_label: pulumi.Output[str]
    taints: list[dict[str, str]]


class ClusterOutputs(TypedDict):
    """Outputs of a stack for the cluster that it creates."""

    cluster_id: pulumi.Output[str]
    kubeconfig: pulumi.Output[str]
    endpoint: pulumi.Output[str]
    region: str
    kubernetes_version: pulumi.Output[str]
    vcn_id: pulumi.Output[str]
    bastion_subnet_id: pulumi.Output[str] | None
    bastion_id: pulumi.Output[str] | None
    gpu_pools: dict[str, GpuPoolOutputs]
    model_cache_handle: pulumi.Input[str] | None


def create_cluster(
    created: ClusterPlan,
    api_server: str | None,
    image_links: Mapping[str, pulumi.Input[str]],
    mirror: MirrorRegistry | None,
    *,
    rehearsed: bool = False,
) -> CreatedCluster:
    """Declare network, IAM policies, cluster, pools, add-ons and storage, each after its dependencies.

    GPU pools come last: after the first object that the API server has accepted, since GPU nodes are useless while the
    API server can't be reached, and after the CPU pools, which are upgraded before GPU pools.

    Args:
        created: the plan of the cluster.
        api_server: URL of the API server at the local end of a tunnel; None without a tunnel.
        image_links: secret URIs of image files, by the names of the pools that import them.
        mirror: private registry from which pods pull.
        rehearsed: whether OCI is a rehearsal's stand-in, where policies apply at once.

    Raises:
        KitError: the image of a pool has no URI.
    """
    provider = region_provider("oci", created.region, created.tags.ignored)
    waits = [] if rehearsed or not is_update() else [wait_for_policies()]
    opts = pulumi.ResourceOptions(providers=[provider], transformations=waits)
    planned, tags = created.network, _tags(created.tags)
    network = Network("network", arguments(NetworkArgs, planned, planned.choices, tags), opts)
    rights = _rights("cluster-iam", created, created.iam.cluster, None, opts)
    args = arguments(OkeClusterArgs, created, tags, network=network, api_server=api_server)
    oke = OkeCluster("oke", args, after(opts, network, *rights))  # one name, so that the cluster's changes in place
    node_rights = _rights("nodes-iam", created, created.iam.nodes, oke, opts)
    ready = after(opts, network, *rights, *node_rights)
    access = ClusterIdentity(
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
    gpu_pools = {pool.name: _gpu_pool(pool, created, network, oke, image_links, gpu_opts) for pool in created.gpu_pools}
    storage = _storage(created, network, after(ready, oke))
    if storage is not None:
        access = replace(access, model_cache_handle=storage.volume_handle)
    nodes_group_id = rights[0].group_ids["nodes"] if "oci-logs" in created.iam.cluster else None
    return CreatedCluster(provider, oke, network, access, inside, cpu_pools, cluster_add_ons, gpu_pools, nodes_group_id)


def _load_balancers(network: Network) -> dict[str, LoadBalancerNetwork]:
    networks = {"internal": LoadBalancerNetwork(network.load_balancer_subnet_id, network.load_balancers_nsg_id)}
    subnet_id, group_id = network.public_load_balancer_subnet_id, network.public_load_balancers_nsg_id
    if subnet_id is not None and group_id is not None:
        networks["public"] = LoadBalancerNetwork(subnet_id, group_id)
    return networks


def _rights(
    name: str,
    created: ClusterPlan,
    needs: Sequence[str],
    oke: OkeCluster | None,
    opts: pulumi.ResourceOptions,
) -> list[Iam]:
    """Declare dynamic groups and policies: those needed before the cluster exists (`oke` is None), or those that name
    the cluster.
    """
    if not needs:
        return []
    args = arguments(
        IamArgs,
        created.iam,
        _tags(created.tags),
        created,
        needs=needs,
        cluster_id=None if oke is None else oke.cluster_id,
        display_name=f"{created.iam.unique_name}-{'cluster' if oke is None else 'nodes'}",
        provider_is_home=None,
    )
    return [Iam(name, args, opts)]


def _cpu_pools(
    created: ClusterPlan,
    network: Network,
    oke: OkeCluster,
    image_links: Mapping[str, pulumi.Input[str]],
    opts: pulumi.ResourceOptions,
) -> dict[str, SystemPool | CpuPool]:
    """Declare the pools without GPUs: the system pool, then the others, which depend on it. Availability domains and
    images that the stack file doesn't name are looked up in OCI.
    """
    domains: pulumi.Input[list[str]] = []
    if any(not pool.availability_domains for pool in created.cpu_pools):
        domains = availability_domains(created.compartment_id, pulumi.InvokeOutputOptions(parent=oke))
    components: dict[str, SystemPool | CpuPool] = {}
    for pool in created.cpu_pools:
        args = arguments(
            CpuPoolArgs,
            pool,
            pool.options,
            _tags(created.tags),
            cluster=oke,
            network=network,
            pool_name=pool.name,
            compartment_id=None,
            availability_domains=pool.availability_domains or domains,
            image_id=_image(pool, created, image_links, opts),
        )
        if pool.name == SYSTEM_POOL:
            system = arguments(SystemPoolArgs, args, taints=None)
            components[pool.name] = SystemPool(pool.name, system, opts)
        else:
            components[pool.name] = CpuPool(pool.name, args, after(opts, components[SYSTEM_POOL]))
    return components


def _gpu_pool(
    pool: GpuPoolPlan,
    created: ClusterPlan,
    network: Network,
    oke: OkeCluster,
    image_links: Mapping[str, pulumi.Input[str]],
    opts: pulumi.ResourceOptions,
) -> GpuPool:
    args = arguments(
        GpuPoolArgs,
        pool,
        pool.options,
        _tags(created.tags),
        cluster=oke,
        network=network,
        pool_name=pool.name,
        compartment_id=None,
        image_id=_image(pool, created, image_links, opts) or "",
    )
    return GpuPool(pool.name, args, opts)


def _tags(tags: TagsPlan) -> TagArgs:
    return {"freeform_tags": dict(tags.freeform) or None, "defined_tags": dict(tags.defined) or None}


def _image(
    pool: NodesPlan,
    created: ClusterPlan,
    image_links: Mapping[str, pulumi.Input[str]],
    opts: pulumi.ResourceOptions,
) -> pulumi.Input[str] | None:
    """Return the OCID of a pool's image, after the declaration of its import if needed; None if the plan has no image.

    Raises:
        KitError: the image to import has no URI.
    """
    image = pool.image_import
    if image is None:
        return pool.image_id
    link = image.uri or image_links.get(pool.name)
    if link is None:
        remedy = f"Give it: pulumi config set --secret --path llmd-oke:imageLinks.{pool.name}"
        raise KitError(f"The image of pool {pool.name} has no link to its file.", remedy)
    args = arguments(NodeImageArgs, image, created, _tags(created.tags), display_name=image.name, uri=link)
    return NodeImage(f"{pool.name}-image", args, opts).image_id


def _add_ons(created: ClusterPlan, oke: OkeCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """Declare the cluster's add-ons: those that the GPU stack needs, then those of the stack file. Add-ons are
    `deleted_with` the cluster, since objects of their operators would otherwise outlive the operators.
    """
    needed = [arguments(AddOnArgs, add_on) for add_on in created.add_ons]
    if not needed:
        return []
    with_cluster = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(deleted_with=oke.created))
    return [AddOns("add-ons", arguments(AddOnsArgs, oke, add_ons=needed), with_cluster)]


def declare_autoscaler(plan: Plan, cluster: CreatedCluster, gates: Sequence[pulumi.Resource]) -> None:
    """Declare the cluster autoscaler, if a pool is autoscaled. The add-on depends on the gates, so that it doesn't
    remove nodes that the first servers need; nodes that no gate waits for may still be joining.
    """
    if plan.created is None or plan.created.autoscaler is None:
        return
    autoscaled = plan.created.autoscaled
    pools = {**cluster.cpu_pools, **cluster.gpu_pools}
    pool_ids = {pool.name: pools[pool.name].pool_id for pool in autoscaled}
    nodes = pulumi.Output.all(**pool_ids).apply(lambda ocids: autoscaler_nodes(autoscaled, ocids))
    add_on = plan.created.autoscaler
    settings: dict[str, pulumi.Input[str]] = {**add_on.configurations, "nodes": nodes}
    opts = pulumi.ResourceOptions(providers=[cluster.provider])
    AddOns(
        "cluster-autoscaler",
        arguments(AddOnsArgs, cluster.oke, add_ons=[arguments(AddOnArgs, add_on, configurations=settings)]),
        after(opts, *cluster.nodes, *cluster.gpu_pools.values(), *gates),
    )


def _storage(created: ClusterPlan, network: Network, opts: pulumi.ResourceOptions) -> Storage | None:
    """Declare the shared file system for model caches, which only nodes can mount; return None if the plan has none."""
    storage = created.storage
    if storage is None:
        return None
    shared = storage.kind == "file-storage"
    subnet_id, nsg_id = (
        (network.storage_subnet_id, network.storage_nsg_id)
        if shared
        else (network.lustre_subnet_id, network.lustre_nsg_id)
    )
    args = arguments(
        StorageArgs,
        storage,
        created,
        _tags(created.tags),
        subnet_id=subnet_id,
        nsg_ids=[nsg_id],
        client_cidr=(network.cidr if storage.anywhere else network.worker_cidr) if shared else None,
        existing_volume_handle=None,
        file_system_name=None,
    )
    return Storage("storage", args, opts)


def declare_policy_engine(
    plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions, *, rehearsed: bool
) -> list[pulumi.Resource]:
    """Declare Calico, if the stack file chooses it, and return the components on which models depend. A rehearsal gets
    a stand-in's manifest, as it enforces NetworkPolicies itself.
    """
    if plan.network_policies.engine != "calico":
        return []
    stand_in = str(values_folder() / "rehearsal" / "calico.yaml") if rehearsed else None
    return [Calico("calico", {"manifest_file": stand_in}, after(opts, *cluster.nodes))]


def declare_node_repair(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> None:
    """Declare the rules by which OKE repairs labelled GPU nodes, unless the stack file has `nodeRepair: none`. No other
    component depends on the rules.
    """
    if plan.created is None or plan.created.node_repair == "none" or not plan.created.gpu_pools:
        return
    pools: list[RepairedPoolArgs] = [
        {"pool_name": pool.name, "eviction_grace_minutes": pool.drain_minutes} for pool in plan.created.gpu_pools
    ]
    NodeRepair("node-repair", {"pools": pools, "kubeconfig": cluster.oke.kubeconfig}, after(opts, *cluster.nodes))


def declare_budget(plan: Plan, cluster: CreatedCluster) -> None:
    """Declare the budget of the cluster's compartment, if the stack file has one."""
    created = plan.created
    if created is None or created.budget is None:
        return
    args = arguments(
        BudgetArgs,
        created.budget,
        _tags(created.tags),
        created,
        display_name=created.iam.unique_name,
        home_region=created.iam.home_region,
        ignored_tags=created.iam.ignored_tags,
        provider_is_home=None,
    )
    Budget("budget", args, pulumi.ResourceOptions(providers=[cluster.provider]))


def declare_oci_monitoring(plan: Plan, cluster: CreatedCluster) -> None:
    """Declare OCI's alarms on the cluster and its compartment, and the cluster's logs, if the stack file has them."""
    created = plan.created
    if created is None or (chosen := created.oci_monitoring) is None:
        return
    alarms = chosen.alarms
    rows = [arguments(OciAlarmArgs, alarm) for alarm in alarms.rows] if alarms else None
    args = arguments(
        OciMonitoringArgs,
        _tags(created.tags),
        created,
        chosen.logs or {"retention_days": None, "control_plane": None},
        cluster_id=cluster.oke.cluster_id,
        nodes_group_id=cluster.nodes_group_id,
        display_name=created.iam.unique_name,
        alarms=rows,
        recipients=alarms.recipients if alarms else None,
        topic_id=alarms.topic_id if alarms else None,
    )
    OciMonitoring("oci-monitoring", args, pulumi.ResourceOptions(providers=[cluster.provider]))


def declare_operators(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """Declare the operators one after the other, then a gate for each pool, then the acceptance test of GPU nodes;
    return gates and test, on which models depend.
    """
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
    common = {
        "registry_mirror": mirror_args(plan),
        "tolerations": [arguments(TolerationArgs, taint, operator="Equal") for taint in stack.tolerations],
    }
    match name:
        case "cert-manager":
            return CertManager(name, arguments(CertManagerArgs, common), opts)
        case "node-feature-discovery":
            return NodeFeatureDiscovery(name, arguments(NodeFeatureDiscoveryArgs, common), opts)
        case "amd-gpu-operator":
            args = arguments(AmdGpuOperatorArgs, common, node_selector=dict(stack.gpu_selector))
            return AmdGpuOperator(name, args, opts)
        case _:
            shapes = sorted({pool.shape.name for pool in plan.pools})
            network = arguments(RdmaNetworkArgs, cluster.oke, shapes=shapes, kubeconfig_context=None)
            return RdmaNetwork("rdma-network", network, opts)


def _gates(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """Declare a gate for each GPU pool. The gate of an autoscaled pool waits for at most the pool's current size, since
    a new pool may start with fewer nodes than the plan's number.
    """
    awaited = awaited_nodes(plan)
    gates: list[pulumi.Resource] = []
    for pool in plan.pools:
        gpu_pool, nodes = cluster.gpu_pools[pool.name], awaited[pool.name]
        args = arguments(
            NodeGateArgs,
            gpu_pool,
            pool_name=pool.name,
            nodes=gpu_pool.size.apply(lambda size, nodes=nodes: min(nodes, int(size))) if pool.autoscaled else nodes,
            once=pool.autoscaled or None,
            devices=pool.shape.devices(rdma=plan.rdma),
            rdma_in_pods=plan.rdma or None,
            timeout_s=pool.ready_timeout_s,
            system_pool_name=SYSTEM_POOL,
        )
        gates.append(NodeGate(f"{pool.name}-gate", args, after(opts, gpu_pool)))
    return gates


def _acceptance(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """Declare the acceptance of the pools that are tested in updates; return no component if there are none."""
    pools = [
        accepted_pool(accepted, cluster.gpu_pools[accepted.pool.name].pool_id)
        for accepted in plan.acceptance
        if accepted.in_update
    ]
    if not pools:
        return []
    args = arguments(
        AcceptanceArgs,
        pools=pools,
        image=plan.pulled(plan.release.vllm.image).pinned,
        system_pool_name=SYSTEM_POOL,
        registry_mirror=mirror_args(plan),
    )
    return [Acceptance("acceptance", args, opts)]
