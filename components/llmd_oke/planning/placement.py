"""Packing servers onto nodes: first fit, largest first. A server's GPUs and virtual functions are all on one node."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from llmd_oke.catalogue import Shape
from llmd_oke.config import Model, Role, StackConfig
from llmd_oke.planning.plan import Node, Pool, Server


def unit_names(model: Model) -> list[str]:
    """The names of a model's units: the model's own name if there is one unit only."""
    name = model.object_name
    return [name] if model.copies == 1 else [f"{name}-{i}" for i in range(model.copies)]


def virtual_functions(config: StackConfig, role: Role, tensor_parallel_size: int) -> int:
    """Virtual functions of one server: one for each GPU where KV cache is handed over, none for aggregated servers."""
    return tensor_parallel_size if config.rdma == "sriov-vf" and role != "aggregated" else 0


def lacks_virtual_functions(config: StackConfig, shape: Shape) -> bool:
    """Whether pods would ask for virtual functions of a shape that has none: a matter of `rdma`, not of servers."""
    return config.rdma == "sriov-vf" and not shape.rdma.virtual_functions


def servers(config: StackConfig, models: Iterable[Model]) -> Iterator[Server]:
    """All servers that some models of a stack may ever have at a time."""
    for model in models:
        for role, part in model.topology.servers().items():
            gpus = part.tensor_parallel_size
            functions = virtual_functions(config, role, gpus)
            for unit in unit_names(model):
                yield from (Server(unit, role, index, gpus, functions) for index in range(model.most_replicas(role)))


def empty_nodes(pools: Iterable[Pool]) -> list[Node]:
    """The most nodes that the pools may have, without servers."""
    return [
        Node(pool.name, index, pool.shape.gpus, (), pool.shape.rdma.virtual_functions)
        for pool in pools
        for index in range(pool.limits.most)
    ]


def place(servers: Iterable[Server], nodes: Sequence[Node]) -> tuple[list[Node], list[Server]]:
    """The nodes with the servers that fit, and the servers that don't.

    Largest first fills nodes without waste whenever the sizes are powers of two, as tensor parallel sizes on 8-GPU
    nodes are. Servers with virtual functions go before those without, because they have the smaller choice.
    """
    added: list[list[Server]] = [[] for _ in nodes]
    free = [(node.free_gpus, node.free_virtual_functions) for node in nodes]
    first_candidates: dict[tuple[int, int], int] = {}  # room only shrinks, so the search for a size never goes back
    left: list[Server] = []
    for server in sorted(servers, key=lambda server: (-server.virtual_functions, -server.gpus)):
        need = server.gpus, server.virtual_functions
        position = _first_fit(free, need, first_candidates.get(need, 0))
        first_candidates[need] = position
        if position == len(nodes):
            left.append(server)
        else:
            added[position].append(server)
            free[position] = free[position][0] - need[0], free[position][1] - need[1]
    placed = [
        replace(node, servers=(*node.servers, *new)) if new else node for node, new in zip(nodes, added, strict=True)
    ]
    return placed, left


def place_at_first(
    config: StackConfig, models: Iterable[Model], pools: Iterable[Pool]
) -> tuple[list[Node], list[Server]]:
    """The nodes that are there at first with the servers that are started with, and the servers that don't fit: before
    an autoscaler has changed the number of either.
    """
    start = [model.model_copy(update={"scaling": None}) for model in models]
    return place(servers(config, start), empty_nodes(pool.at_first() for pool in pools))


def _first_fit(free: Sequence[tuple[int, int]], need: tuple[int, int], start: int) -> int:
    fits = (i for i in range(start, len(free)) if free[i][0] >= need[0] and free[i][1] >= need[1])
    return next(fits, len(free))
