"""Placement of pods: servers on GPU nodes, initially and during rollouts, and routers on nodes without GPUs.

Servers are placed by first-fit decreasing. The GPUs and virtual functions of a pod are all on one node. The pods of a
server that spans nodes are all in one pool: only the nodes of one pool are sure to share an RDMA network.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from llmd_base.errors import Problem
from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue import Shape, operators, server_settings
from llmd_oke.catalogue import shape as shape_of_name
from llmd_oke.catalogue.releases import Requests
from llmd_oke.config import ModelConfig, Role, StackConfig, SystemPoolConfig
from llmd_oke.planning.model_plan import PlacedNode, PlacedServer, PlannedPool, Rollout
from llmd_oke.planning.releases import router_replicas, used_release

DRAIN_S = 15
"""Time in seconds that a terminating pod still accepts requests, until routers stop sending it any (llm-d's
graceful-shutdown component).
"""

TERMINATION_GRACE_S = 90
"""Termination grace period of server pods in seconds, as in the llm-d guides; includes `DRAIN_S` and vLLM's
`--shutdown-timeout` of 60 s.
"""

SCHEDULING_S = 600
"""Time in seconds to schedule pods and pull a large image; our assumption."""

FRONT_DOOR_REPLICAS = 2
"""Number of Envoy replicas of a front door, whether it serves one model or all models of a stack; our choice."""

FRONT_DOOR_THREADS = 2
"""Number of worker threads of each Envoy replica of a front door; our choice."""

FRONT_DOOR_REQUESTS = Requests(cpus=1, memory_gib=1)
"""Resource requests of each Envoy replica of a front door; our choice. It streams responses, and buffers the body of
each request once.
"""


def unit_names(model: ModelConfig) -> list[str]:
    """Return the names of a model's units (servers with a router of their own): numbered, or the model's object name if
    it has only one unit.
    """
    name = model.object_name
    return [name] if model.copies == 1 else [f"{name}-{i}" for i in range(model.copies)]


def virtual_functions(config: StackConfig, role: Role, spread: Parallelism) -> int:
    """Return the number of virtual functions of one pod of a server."""
    return server_settings.virtual_functions(role, spread, rdma=config.rdma == "sriov-vf")


def lacks_virtual_functions(config: StackConfig, shape: Shape) -> bool:
    """Tell whether the stack has `rdma: sriov-vf` but the shape has no virtual functions. A problem is then reported
    for `rdma` or `cluster.virtualFunctions`, not for the servers.
    """
    return config.rdma == "sriov-vf" and not shape.rdma.virtual_functions


def servers(config: StackConfig, models: Iterable[ModelConfig]) -> Iterator[PlacedServer]:
    """Yield the pods of all servers that these models can have at the same time, with scaling at its maximum."""
    shape = next((known for pool in config.gpu_pools if (known := shape_of_name(pool.shape))), None)
    for model in models:
        for role, part in model.topology.servers().items():
            spread = part.parallelism(node_gpus=shape and shape.gpus)
            functions = virtual_functions(config, role, spread)
            for unit in unit_names(model):
                for index in range(model.most_replicas(role)):
                    yield from pods(unit, role, index, spread, functions)


def pods(unit: str, role: Role, index: int, spread: Parallelism, functions: int) -> list[PlacedServer]:
    """Return the pods of one server, each with this number of virtual functions."""
    ranks = range(spread.nodes)
    return [PlacedServer(unit, role, index, spread.gpus_per_node, functions, spread.nodes, rank) for rank in ranks]


def empty_nodes(pools: Iterable[PlannedPool]) -> list[PlacedNode]:
    """Return all nodes that the pools can have at their maximum size, without servers."""
    return [
        PlacedNode(pool.name, index, pool.shape.gpus, (), pool.shape.rdma.virtual_functions)
        for pool in pools
        for index in range(pool.limits.most)
    ]


def place(servers: Iterable[PlacedServer], nodes: Sequence[PlacedNode]) -> tuple[list[PlacedNode], list[PlacedServer]]:
    """Return the nodes with the pods placed on them, and the pods that fit no node. Placing the largest pods first
    fills nodes without waste if all sizes are powers of two, as tensor parallel sizes on 8-GPU nodes are. Servers with
    virtual functions precede those without, because fewer nodes fit them. Servers that span nodes come first of all, as
    each needs whole nodes of one pool.
    """
    added: list[list[PlacedServer]] = [[] for _ in nodes]
    free = [(node.free_gpus, node.free_virtual_functions) for node in nodes]
    first_candidates: dict[tuple[int, int], int] = {}  # room only shrinks: a search resumes here
    left: list[PlacedServer] = []
    groups: dict[tuple[str, Role, int], list[PlacedServer]] = {}
    single: list[PlacedServer] = []
    for server in servers:
        if server.nodes > 1:
            groups.setdefault((server.unit, server.role, server.index), []).append(server)
        else:
            single.append(server)

    def add(server: PlacedServer, position: int) -> None:
        added[position].append(server)
        gpus, functions = free[position]
        free[position] = gpus - server.gpus, functions - server.virtual_functions

    for group in groups.values():
        positions = _one_pool(group, nodes, free)
        left += group[len(positions) :]
        for server, position in zip(group, positions, strict=False):
            add(server, position)
    for server in sorted(single, key=lambda server: (-server.virtual_functions, -server.gpus)):
        need = server.gpus, server.virtual_functions
        candidates = range(first_candidates.get(need, 0), len(free))
        fitting = (i for i in candidates if free[i][0] >= need[0] and free[i][1] >= need[1])
        position = next(fitting, len(free))
        first_candidates[need] = position
        if position == len(nodes):
            left.append(server)
        else:
            add(server, position)
    placed = [
        replace(node, servers=(*node.servers, *new)) if new else node for node, new in zip(nodes, added, strict=True)
    ]
    return placed, left


def _one_pool(group: Sequence[PlacedServer], nodes: Sequence[PlacedNode], free: Sequence[tuple[int, int]]) -> list[int]:
    """Return the indices of nodes of one pool that each have room for one pod of the group; empty if no pool has
    enough.
    """
    gpus, functions = group[0].gpus, group[0].virtual_functions
    by_pool: dict[str, list[int]] = {}
    for position, (node, room) in enumerate(zip(nodes, free, strict=True)):
        if room[0] >= gpus and room[1] >= functions:
            found = by_pool.setdefault(node.pool, [])
            found.append(position)
            if len(found) == len(group):
                return found
    return []


def place_at_first(
    config: StackConfig, models: Iterable[ModelConfig], pools: Iterable[PlannedPool]
) -> tuple[list[PlacedNode], list[PlacedServer]]:
    """Return the initial nodes with the initial servers, before any autoscaling, and the servers that don't fit."""
    start = [model.model_copy(update={"scaling": None}) for model in models]
    return place(servers(config, start), empty_nodes(pool.at_first() for pool in pools))


def sure_room(spare: int, size: int, mixed_nodes: int) -> int:
    """Return the number of servers with `size` GPUs that fit `spare` GPUs (or virtual functions), however Kubernetes
    placed the other servers. Only nodes with servers of other sizes can have unusable spare GPUs, at most `size - 1` on
    each of `mixed_nodes`; all other spare GPUs are contiguous.
    """
    at_worst = -((mixed_nodes * (size - 1) - spare) // size)
    return max(0, min(spare // size, at_worst))


def room_beside(nodes: Sequence[PlacedNode]) -> bool:
    """Tell whether nodes have room for all their servers a second time, however Kubernetes placed the existing ones.
    Larger servers are placed first, as their priority class ensures; servers with virtual functions need one per GPU.
    """
    servers = [server for node in nodes for server in node.servers]
    if any(server.nodes > 1 for server in servers) and len({node.pool for node in nodes}) > 1:
        return False  # perhaps no pool alone has room for a whole server
    gpus = sum(node.free_gpus for node in nodes)
    functions = sum(node.free_virtual_functions for node in nodes)
    connected = any(server.virtual_functions for server in servers)
    for size, number in sorted(Counter(server.gpus for server in servers).items(), reverse=True):
        mixed = min(len(nodes), 2 * sum(bool(server.gpus % size) for server in servers))
        spare = min(gpus, functions) if connected else gpus
        if sure_room(spare, size, mixed) < number:
            return False
        gpus, functions = gpus - size * number, functions - size * number
    return True


def rollout(replicas: int, room: int) -> Rollout:
    """Return the rolling update of a Deployment with at most `room` surge pods. If `room` is 0, pods are replaced one
    at a time, the old one first.
    """
    surge = min(replicas, room)
    return Rollout(max_surge=surge, max_unavailable=0) if surge else Rollout(max_surge=0, max_unavailable=1)


def create_timeout_s(startup_budget_s: int, download_s: int = 0) -> int:
    """Return the maximum time in seconds to create servers. All pods start at the same time: one start-up budget, plus
    the time to schedule and pull, plus `download_s` for weights on nodes that lack them.
    """
    return startup_budget_s + SCHEDULING_S + download_s


def update_timeout_s(startup_budget_s: int, replicas: int, rollout: Rollout, download_s: int = 0) -> int:
    """Return the maximum time in seconds of an update. Pods are replaced in waves of surge plus unavailable pods, each
    of which terminates old pods and starts new ones. `download_s` counts only once, as most pods start on nodes that
    have the weights.
    """
    waves = -(-replicas // (rollout.max_surge + rollout.max_unavailable))
    return waves * (startup_budget_s + TERMINATION_GRACE_S) + SCHEDULING_S + download_s


def router_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem if routers would stay Pending, for a stack that creates both routers and nodes.

    Routers tolerate no taints. Routers behind a Gateway have no Envoy of their own, but are counted with one if other
    models' routers have one. Pools whose shape isn't flexible are assumed to be large enough.
    """
    release = used_release(config)
    if config.created_cluster is None or config.layer != "all" or release is None:
        return
    routed = [model for model in config.models if model.router.mode != "none"]
    standalone = [model for model in routed if model.router.mode == "standalone"]
    routers = sum(model.copies * router_replicas(model, release) for model in routed)
    pools = [
        config.system_pool,
        *(pool for pool in config.cpu_pools if not any(taint.effect != "PreferNoSchedule" for taint in pool.taints)),
    ]
    if not routers or any(not pool.shape.endswith(".Flex") for pool in pools):
        return
    requests = release.router_requests if standalone else release.endpoint_picker.requests
    doors = FRONT_DOOR_REPLICAS * (len(standalone) if config.front_door is None else 1)
    on_node = -(-doors // sum(pool.size for pool in pools))  # a topology spread constraint distributes the Envoys
    places = sum(pool.size * places_on_node(pool, requests, on_node) for pool in pools)
    if places < routers:
        yield _too_few(config.system_pool, requests, routers, places, on_node)


def places_on_node(pool: SystemPoolConfig, requests: Requests, doors: int) -> int:
    """Return the number of routers that fit a node of a flexible shape together with `doors` Envoy replicas of front
    doors.
    """
    facts, reserved = operators.system_nodes(), _reservation(doors)
    cpus = int(pool.ocpus * facts.cpus_per_ocpu) - reserved.cpus
    return max(0, min(cpus // requests.cpus, int(pool.memory_gib - reserved.memory_gib) // requests.memory_gib))


def _reservation(doors: int) -> Requests:
    allowance, door = operators.system_nodes().allowance, FRONT_DOOR_REQUESTS
    return Requests(cpus=allowance.cpus + doors * door.cpus, memory_gib=allowance.memory_gib + doors * door.memory_gib)


def _too_few(pool: SystemPoolConfig, requests: Requests, routers: int, places: int, doors: int) -> Problem:
    """Return the problem of too few or too small nodes, as a problem of the system pool, which every cluster has; if
    the nodes of that pool hold no router at all, the remedy is larger nodes.
    """
    on_node, facts = places_on_node(pool, requests, doors), operators.system_nodes()
    reserved = _reservation(doors)
    why = (
        f"{routers} pods of routers ask for {requests.cpus} processors and {requests.memory_gib} GiB each, and the"
        f" nodes without taints have room for {places}, beside {reserved.cpus} processors and"
        f" {reserved.memory_gib} GiB kept on each node for front doors and the cluster's own"
    )
    if on_node:
        accepted = f"at least {pool.size + -(-(routers - places) // on_node)}, larger nodes, or a pool in cpuPools"
        return Problem("systemPool.size", pool.size, accepted, why)
    ocpus, memory_gib = (requests.cpus + reserved.cpus) / facts.cpus_per_ocpu, requests.memory_gib + reserved.memory_gib
    room = f"of at least {ocpus:g} OCPUs and {memory_gib} GiB"
    if pool.ocpus < ocpus:
        return Problem("systemPool.ocpus", pool.ocpus, f"nodes {room}, or a pool of such nodes in cpuPools", why)
    return Problem("systemPool.memoryGib", pool.memory_gib, f"nodes {room}, or a pool of such nodes in cpuPools", why)
