"""Everything that is wrong with a stack, found in one go."""

from collections.abc import Iterator, Sequence

from llmd_oke import catalogue
from llmd_oke.catalogue import operators
from llmd_oke.catalogue.evals import BUILTIN, evals
from llmd_oke.config import Model, StackConfig
from llmd_oke.config.likely import among
from llmd_oke.errors import Problem
from llmd_oke.planning.add_ons import add_on_problems
from llmd_oke.planning.availability_domains import availability_domain_problems
from llmd_oke.planning.gpu_stack import functions_made_by, gpu_stack_problems
from llmd_oke.planning.iam import iam_problems
from llmd_oke.planning.layers import layer_problems
from llmd_oke.planning.network_checks import network_problems
from llmd_oke.planning.node_scaling import node_scaling_problems
from llmd_oke.planning.placement import (
    empty_nodes,
    lacks_virtual_functions,
    place,
    place_at_first,
    servers,
    unit_names,
)
from llmd_oke.planning.plan import Node, Pool, Server
from llmd_oke.planning.pools import pool_problems
from llmd_oke.planning.registration import registration_problems
from llmd_oke.planning.releases import release_problems
from llmd_oke.planning.routers import router_problems
from llmd_oke.planning.rules import Subject, answer_changes, other_problems, topology_problems
from llmd_oke.planning.scaling import room_problems
from llmd_oke.planning.storage import pod_disk_problems, storage_problems


def problems(config: StackConfig) -> list[Problem]:
    """All problems of a stack."""
    of_topologies = topology_problems_by_model(config)
    placeable = [model for i, model in enumerate(config.models) if not of_topologies.get(i)]
    return [*problems_of_parts(config), *_capacity(config, placeable), *router_problems(config)]


def problems_of_parts(config: StackConfig) -> list[Problem]:
    """The problems that each part of a stack has by itself, whatever is beside it."""
    of_topologies = topology_problems_by_model(config)
    of_models = [
        problem for i, subject in subjects(config).items() for problem in (*of_topologies[i], *other_problems(subject))
    ]
    return [
        *layer_problems(config),
        *_names(config),
        *release_problems(config),
        *_shapes(config),
        *network_problems(config),
        *iam_problems(config),
        *pool_problems(config),
        *availability_domain_problems(config),
        *node_scaling_problems(config),
        *registration_problems(config),
        *add_on_problems(config),
        *gpu_stack_problems(config),
        *storage_problems(config),
        *of_models,
        *_evaluation_problems(config),
    ]


def topology_problems_by_model(config: StackConfig) -> dict[int, list[Problem]]:
    """The problems of each model's servers; models and shapes that the catalogue doesn't know are left out."""
    return {i: list(topology_problems(subject)) for i, subject in subjects(config).items()}


def pools(config: StackConfig) -> tuple[Pool, ...]:
    """The pools whose shape the catalogue has."""
    known = ((pool, catalogue.shape(pool.shape)) for pool in config.gpu_pools)
    maker = functions_made_by(config)
    return tuple(
        Pool(pool.name, operators.named_by(shape, maker), pool.size, pool.limits, pool.autoscaled)
        for pool, shape in known
        if shape is not None
    )


def subjects(config: StackConfig) -> dict[int, Subject]:
    """The models that can be judged. Pools have one shape, so the first that is known stands for all."""
    known = pools(config)
    return {
        i: Subject(config, model, f"models[{i}]", facts, known[0].shape)
        for i, model in enumerate(config.models)
        if known and (facts := catalogue.model(model.model)) is not None
    }


def min_accuracy(subject: Subject) -> float | None:
    """The share of right answers that a model's benchmark must find: what the stack file says, or the kit's floor where
    something changes answers; None where nothing is asked, or no floor is known.
    """
    said = subject.stack.smoke.thresholds.min_accuracy
    return _floor(subject) if said is None and any(answer_changes(subject)) else said


def _floor(subject: Subject) -> float | None:
    floor = evals().floor(BUILTIN, subject.facts.name)
    return floor.score if floor else None


def _evaluation_problems(config: StackConfig) -> Iterator[Problem]:
    """What changes answers is evaluated by the benchmark of each update, and by no lower floor than the kit's."""
    for subject in subjects(config).values() if config.layer != "cluster" else ():
        change = next(answer_changes(subject), None)
        if change is None:
            continue
        name = subject.model.object_name
        why = f"{change.what} changes answers ({change.path}), so that each update evaluates {name}"
        least, floor = min_accuracy(subject), _floor(subject)
        if config.smoke.where == "none":
            yield Problem("smoke.where", "none", "cluster, or client", why)
        if least is None or (floor is not None and least < floor):
            accepted = f"at least {floor:g}, the kit's floor, or nothing" if floor else "a share of right answers"
            yield Problem("smoke.thresholds.minAccuracy", least, accepted, why)


def _names(config: StackConfig) -> Iterator[Problem]:
    """Names that the catalogue doesn't have, and names that are given twice."""
    for i, pool in enumerate(config.gpu_pools):
        if catalogue.shape(pool.shape) is None:
            yield _unknown(f"gpuPools[{i}].shape", pool.shape, catalogue.shape_names())
    for i, model in enumerate(config.models):
        if catalogue.model(model.model) is None:
            yield _unknown(f"models[{i}].model", model.model, catalogue.model_names())
    yield from _pools_twice([pool.name for pool in config.gpu_pools])
    yield from _units_twice(config.models)


def _unknown(path: str, value: str, known: list[str]) -> Problem:
    by_repository = catalogue.model_of_repository(value)
    accepted = among(value, known, by_repository.name if by_repository else None)
    return Problem(path, value, accepted, "the catalogue has no such entry")


def _pools_twice(names: Sequence[str]) -> Iterator[Problem]:
    for i, name in enumerate(names):
        if (first := names.index(name)) < i:
            yield Problem(f"gpuPools[{i}].name", name, "a name of its own", f"gpuPools[{first}] has it already")


def _units_twice(models: Sequence[Model]) -> Iterator[Problem]:
    owners: dict[str, int] = {}
    for i, model in enumerate(models):
        taken = [name for name in _object_names(model) if name in owners]
        if taken:
            key = "model" if model.name is None else "name"
            why = f"models[{owners[taken[0]]}] has objects of the name {taken[0]} already"
            yield Problem(f"models[{i}].{key}", model.name or model.model, "a name of its own (key name)", why)
        for name in _object_names(model):
            owners.setdefault(name, i)


def _object_names(model: Model) -> list[str]:
    """Names that a model's Services and Deployments begin with, or have."""
    units = unit_names(model)
    return sorted({model.object_name, *units, *(f"{unit}-epp" for unit in units if model.router.mode == "standalone")})


def _shapes(config: StackConfig) -> Iterator[Problem]:
    names = [pool.shape.name for pool in pools(config)]
    if len(set(names)) > 1:
        yield Problem("gpuPools", names, "pools of one shape", "models are placed on nodes of one shape")


def _capacity(config: StackConfig, models: Sequence[Model]) -> Iterator[Problem]:
    """Whether the nodes have room for all servers, and a network for those that hand over KV cache."""
    known = pools(config)
    if len(known) < len(config.gpu_pools) or len({pool.shape.name for pool in known}) > 1:
        return
    refused = lacks_virtual_functions(config, known[0].shape)  # GPUs are counted all the same
    counted = config.model_copy(update={"rdma": "none"}) if refused else config
    nodes, left = place(servers(counted, models), empty_nodes(known))
    if left:
        of_scaling = list(room_problems(counted, models, empty_nodes(known)))
        yield from of_scaling or [_too_few_nodes(known, list(servers(counted, models)), left)]
    else:
        yield from _at_first(counted, models, known)
    yield from pod_disk_problems(counted, nodes)
    used = sum(bool(node.servers) for node in nodes)
    if config.rdma == "none" and used > 1 and any(model.topology.disaggregated for model in models):
        accepted = "sriov-vf" if known[0].shape.rdma.virtual_functions else "units that fit one node, or another shape"
        yield Problem("rdma", "none", accepted, f"KV cache moves between {used} nodes and needs RDMA")


def _at_first(config: StackConfig, models: Sequence[Model], known: Sequence[Pool]) -> Iterator[Problem]:
    """Nodes that the autoscaler would have to add while an update waits for the servers on them."""
    if not any(pool.autoscaled for pool in known):
        return
    nodes, left = place_at_first(config, models, known)
    if left:
        placed = [server for node in nodes for server in node.servers]
        yield _too_few_nodes([pool.at_first() for pool in known], [*placed, *left], left)


def _too_few_nodes(known: Sequence[Pool], wanted: Sequence[Server], left: Sequence[Server]) -> Problem:
    pool, size = known[0], sum(pool.limits.most for pool in known)
    enough = _nodes_in_use(wanted, pool)
    gpus, functions = sum(server.gpus for server in wanted), sum(server.virtual_functions for server in wanted)
    needs = f"{gpus} GPUs" + (f" and {functions} virtual functions" if functions else "")
    has = f"{size * pool.shape.gpus} GPUs and {size * pool.shape.rdma.virtual_functions} virtual functions"
    have = "1 node has" if size == 1 else f"{size} nodes have"
    find = "1 server finds" if len(left) == 1 else f"{len(left)} servers find"
    why = f"the models need {needs}, {have} {has}; {find} no node with room"
    if len(known) == 1:
        key = "scaling.maxSize" if pool.autoscaled else "size"
        return Problem(f"gpuPools[0].{key}", size, f"at least {enough}, or fewer or smaller servers", why)
    sizes = " + ".join(str(pool.limits.most) for pool in known)
    return Problem("gpuPools", f"{sizes} nodes", f"at least {enough} nodes, or fewer or smaller servers", why)


def _nodes_in_use(wanted: Sequence[Server], pool: Pool) -> int:
    node = Node(pool.name, 0, pool.shape.gpus, (), pool.shape.rdma.virtual_functions)
    nodes, _ = place(wanted, [node] * len(wanted))
    return sum(bool(node.servers) for node in nodes)
