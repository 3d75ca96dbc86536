"""Pools whose number of nodes is the cluster autoscaler's, and what the autoscaler is told."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from llmd_oke.catalogue.operators import AddOn, cluster_autoscaler
from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.config import AutoscaledSize, CpuPool, CreateCluster, GpuPool, StackConfig
from llmd_oke.errors import Problem
from llmd_oke.planning.launches import MANAGED_LAUNCHES
from llmd_oke.planning.placement import place_at_first
from llmd_oke.planning.plan import Plan
from llmd_oke.planning.pools import SYSTEM_POOL


def autoscaled_pools(config: StackConfig) -> list[GpuPool | CpuPool]:
    """The pools of a stack that it creates and whose sizes it leaves to the autoscaler."""
    if not isinstance(config.cluster, CreateCluster) or config.layer == "serving":
        return []
    pools: list[GpuPool | CpuPool] = [*config.gpu_pools, *config.cpu_pools]
    return [pool for pool in pools if pool.autoscaled]


def awaited_nodes(plan: Plan) -> dict[str, int]:
    """How many nodes of each pool the first servers need, by the pool's name: all of a fixed pool; of one that the
    autoscaler changes those that hold servers at first, at least the fewest. Where the models are another stack's,
    nothing says which hold servers, so all that it starts with.
    """
    if not plan.models or not any(pool.autoscaled for pool in plan.pools):
        return {pool.name: pool.size for pool in plan.pools}
    nodes, _ = place_at_first(plan.config, plan.config.models, plan.pools)
    used = Counter(node.pool for node in nodes if node.servers)
    return {pool.name: max(pool.limits.least, used[pool.name]) if pool.autoscaled else pool.size for pool in plan.pools}


def autoscaler_add_on(config: StackConfig) -> AddOn:
    """OKE's add-on for the pools of a stack, but for `nodes`; what the stack file says of the add-on is added."""
    facts = cluster_autoscaler()
    minutes = [pool.ready_timeout_minutes for pool in autoscaled_pools(config) if isinstance(pool, GpuPool)]
    follows = {
        "nodeSelectors": json.dumps({POOL_LABEL: SYSTEM_POOL}),
        "maxNodeProvisionTime": f"{max([facts.provision_minutes, *minutes])}m",
    }
    written = config.cluster.add_ons if isinstance(config.cluster, CreateCluster) else ()
    own = next((add_on for add_on in written if add_on.name == facts.name), None)
    settings = {**facts.configurations, **(own.configurations if own else {}), **follows}
    return AddOn(name=facts.name, version=own.version if own else None, configurations=settings)


def autoscaler_nodes(config: StackConfig, pool_ids: Mapping[str, str]) -> str:
    """The add-on's setting `nodes`: limits and OCID of each pool; `pool_ids` are the OCIDs by the pools' names."""
    pools = autoscaled_pools(config)
    return ", ".join(f"{pool.limits.least}:{pool.limits.most}:{pool_ids[pool.name]}" for pool in pools)


def node_scaling_problems(config: StackConfig) -> Iterator[Problem]:
    """What is wrong with the limits of pools, and pools that the autoscaler can't change."""
    paths: dict[str, GpuPool | CpuPool] = {f"gpuPools[{i}]": pool for i, pool in enumerate(config.gpu_pools)}
    paths |= {f"cpuPools[{i}]": pool for i, pool in enumerate(config.cpu_pools)}
    for path, pool in paths.items():
        if isinstance(pool.scaling, AutoscaledSize):
            yield from _limits(pool, pool.scaling, path)
    created = autoscaled_pools(config)
    for path, pool in paths.items():
        if isinstance(pool, GpuPool) and pool in created:
            yield from _out_of_reach(pool, path)
    if created and isinstance(config.cluster, CreateCluster):
        yield from _version(config.cluster)
        yield from _settings(config.cluster)


def _limits(pool: GpuPool | CpuPool, scaling: AutoscaledSize, path: str) -> Iterator[Problem]:
    why = f"the pool starts with {pool.size} nodes"
    if scaling.min_size > pool.size:
        yield Problem(f"{path}.scaling.minSize", scaling.min_size, f"at most {pool.size}", why)
    if scaling.max_size < pool.size:
        yield Problem(f"{path}.scaling.maxSize", scaling.max_size, f"at least {pool.size}", why)


def _out_of_reach(pool: GpuPool, path: str) -> Iterator[Problem]:
    mode = pool.scaling.mode
    if pool.launch not in MANAGED_LAUNCHES:
        accepted = "mode: fixed, or launch: " + " or ".join(MANAGED_LAUNCHES)
        why = f"launch is {pool.launch}: OKE's autoscaler changes node pools of OKE, and these nodes are in none"
        yield Problem(f"{path}.scaling.mode", mode, accepted, why)
    if pool.pool_id is not None:
        why = "the pool is there already (poolId), and nothing of it is changed"
        yield Problem(f"{path}.scaling.mode", mode, "mode: fixed", why)


def _version(cluster: CreateCluster) -> Iterator[Problem]:
    oldest = cluster_autoscaler().oldest_minor
    if int(cluster.kubernetes_version.split(".")[1]) < oldest:
        why = f"the add-on {cluster_autoscaler().name} signs in by workload identity, which older versions of it can't"
        yield Problem("cluster.kubernetesVersion", cluster.kubernetes_version, f"v1.{oldest} or newer", why)


def _settings(cluster: CreateCluster) -> Iterator[Problem]:
    facts = cluster_autoscaler()
    for i, add_on in enumerate(cluster.add_ons):
        for key in facts.follows if add_on.name == facts.name else ():
            if key in add_on.configurations:
                path = f"cluster.addOns[{i}].configurations.{key}"
                why = "this setting follows from the scaling of the pools"
                yield Problem(path, add_on.configurations[key], "nothing", why)
