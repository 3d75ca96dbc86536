"""Whether the nodes without GPUs of a created cluster have room for all routers."""

from collections.abc import Iterator

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.releases import Requests
from llmd_oke.config import CpuPool, CreateCluster, StackConfig, SystemPool
from llmd_oke.errors import Problem
from llmd_oke.planning.releases import used_release

FRONT_DOOR_REPLICAS = 2
"""Envoys in front of the routers of a model; ours."""

FRONT_DOOR_REQUESTS = Requests(cpus=1, memory_gib=1)
"""What each of them asks of its node; ours. They pass bytes on, and each request's body once."""


def router_problems(config: StackConfig) -> Iterator[Problem]:
    """Routers that would stay Pending, where this stack creates both routers and nodes.

    Routers tolerate no taint. A pool whose shape isn't flexible says nothing of its size, and is taken to be enough.
    """
    release = used_release(config)
    if not isinstance(config.cluster, CreateCluster) or config.layer != "all" or release is None:
        return
    routers = release.router.replicas * sum(model.copies for model in config.models if model.router.mode != "none")
    pools = _pools(config)
    if not routers or any(not pool.shape.endswith(".Flex") for pool in pools):
        return
    each = release.router_requests
    doors = FRONT_DOOR_REPLICAS * sum(model.router.mode != "none" for model in config.models)
    on_node = -(-doors // sum(pool.size for pool in pools))  # they spread
    places = sum(pool.size * places_on_node(pool, each, on_node) for pool in pools)
    if places < routers:
        yield _too_few(config.system_pool, each, routers, places, on_node)


def places_on_node(pool: SystemPool, each: Requests, doors: int) -> int:
    """Routers that one node of a flexible shape holds beside that many Envoys of front doors."""
    facts, kept = operators.system_nodes(), _kept(doors)
    cpus = int(pool.ocpus * facts.cpus_per_ocpu) - kept.cpus
    return max(0, min(cpus // each.cpus, int(pool.memory_gib - kept.memory_gib) // each.memory_gib))


def _kept(doors: int) -> Requests:
    """What a node has no room for routers in."""
    allowance, door = operators.system_nodes().allowance, FRONT_DOOR_REQUESTS
    return Requests(cpus=allowance.cpus + doors * door.cpus, memory_gib=allowance.memory_gib + doors * door.memory_gib)


def _pools(config: StackConfig) -> list[SystemPool]:
    return [config.system_pool, *(pool for pool in config.cpu_pools if not _repels(pool))]


def _repels(pool: CpuPool) -> bool:
    return any(taint.effect != "PreferNoSchedule" for taint in pool.taints)


def _too_few(pool: SystemPool, each: Requests, routers: int, places: int, doors: int) -> Problem:
    """Told of the system pool, which every cluster has; where its nodes hold no router, larger nodes are the remedy."""
    here, facts = places_on_node(pool, each, doors), operators.system_nodes()
    kept = _kept(doors)
    why = (
        f"{routers} pods of routers ask for {each.cpus} processors and {each.memory_gib} GiB each, and the nodes"
        f" without taints have room for {places}, beside {kept.cpus} processors and {kept.memory_gib} GiB kept on each"
        " node for front doors and the cluster's own"
    )
    if here:
        accepted = f"at least {pool.size + -(-(routers - places) // here)}, larger nodes, or a pool in cpuPools"
        return Problem("systemPool.size", pool.size, accepted, why)
    ocpus, memory_gib = (each.cpus + kept.cpus) / facts.cpus_per_ocpu, each.memory_gib + kept.memory_gib
    room = f"of at least {ocpus:g} OCPUs and {memory_gib} GiB"
    if pool.ocpus < ocpus:
        return Problem("systemPool.ocpus", pool.ocpus, f"nodes {room}, or a pool of such nodes in cpuPools", why)
    return Problem("systemPool.memoryGib", pool.memory_gib, f"nodes {room}, or a pool of such nodes in cpuPools", why)
