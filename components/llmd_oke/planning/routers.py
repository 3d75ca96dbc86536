"""Whether the nodes without GPUs of a created cluster have room for all routers."""

from collections.abc import Iterator

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.releases import Requests
from llmd_oke.config import CpuPool, CreateCluster, StackConfig, SystemPool
from llmd_oke.errors import Problem
from llmd_oke.planning.releases import used_release


def router_problems(config: StackConfig) -> Iterator[Problem]:
    """Routers that would stay Pending, where this stack creates both routers and nodes.

    Routers tolerate no taint. A pool whose shape isn't flexible says nothing of its size, and is taken to be enough.
    """
    release = used_release(config)
    if not isinstance(config.cluster, CreateCluster) or config.layer != "all" or release is None:
        return
    routers = sum(model.copies for model in config.models if model.router.mode != "none")
    pools = _pools(config)
    if not routers or any(not pool.shape.endswith(".Flex") for pool in pools):
        return
    each = release.router_requests
    places = sum(pool.size * places_on_node(pool, each) for pool in pools)
    if places < routers:
        yield _too_few(config.system_pool, each, routers, places)


def places_on_node(pool: SystemPool, each: Requests) -> int:
    """Routers that one node of a flexible shape holds beside what else runs there."""
    facts = operators.system_nodes()
    cpus = int(pool.ocpus * facts.cpus_per_ocpu) - facts.allowance.cpus
    return max(0, min(cpus // each.cpus, int(pool.memory_gib - facts.allowance.memory_gib) // each.memory_gib))


def _pools(config: StackConfig) -> list[SystemPool]:
    return [config.system_pool, *(pool for pool in config.cpu_pools if not _repels(pool))]


def _repels(pool: CpuPool) -> bool:
    return any(taint.effect != "PreferNoSchedule" for taint in pool.taints)


def _too_few(pool: SystemPool, each: Requests, routers: int, places: int) -> Problem:
    """Told of the system pool, which every cluster has; where its nodes hold no router, larger nodes are the remedy."""
    here, facts = places_on_node(pool, each), operators.system_nodes()
    kept = facts.allowance
    why = (
        f"{routers} routers ask for {each.cpus} processors and {each.memory_gib} GiB each, and the nodes without taints"
        f" have room for {places}, beside {kept.cpus} processors and {kept.memory_gib} GiB kept on each node for the"
        " cluster's own"
    )
    if here:
        accepted = f"at least {pool.size + -(-(routers - places) // here)}, larger nodes, or a pool in cpuPools"
        return Problem("systemPool.size", pool.size, accepted, why)
    ocpus, memory_gib = (each.cpus + kept.cpus) / facts.cpus_per_ocpu, each.memory_gib + kept.memory_gib
    room = f"of at least {ocpus:g} OCPUs and {memory_gib} GiB"
    if pool.ocpus < ocpus:
        return Problem("systemPool.ocpus", pool.ocpus, f"nodes {room}, or a pool of such nodes in cpuPools", why)
    return Problem("systemPool.memoryGib", pool.memory_gib, f"nodes {room}, or a pool of such nodes in cpuPools", why)
