"""Checks of servers with more GPUs than a node: groups of pods, each with a whole node and an equal number of ranks."""

from collections.abc import Iterator
from dataclasses import replace

from llmd_base.errors import Problem
from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue.releases import OverNodes
from llmd_oke.config import Role
from llmd_oke.config.base import DNS_LABEL_FORM
from llmd_oke.planning.planned_model import PlannedModel
from llmd_oke.planning.releases import used_release


def spread_over_nodes(context: PlannedModel, role: Role, size: int) -> Parallelism | None:
    """Return the parallelism of a role's servers with tensor parallel size `size`, spread over nodes; None if their
    ranks don't fill whole nodes, or the release doesn't support servers that span nodes.
    """
    spread = replace(context.parallelism(role), tensor_parallel_size=size).over_nodes(context.shape.gpus)
    return None if spread is None or (spread.nodes > 1 and _facts(context) is None) else spread


def over_nodes_problem(context: PlannedModel, role: Role) -> Problem | None:
    """Return a problem if the ranks of a role's servers need more GPUs than a node has, but not those of whole nodes;
    None otherwise.
    """
    spread, shape = context.parallelism(role), context.shape
    size, ranks = spread.tensor_parallel_size, spread.data_parallel_size
    if ranks == 1 or spread.gpus <= shape.gpus or spread_over_nodes(context, role, size) is not None:
        return None
    in_node = shape.gpus // size
    why = f"a node has {shape.gpus} GPUs, and {ranks} ranks of {size} take {spread.gpus}"
    if _facts(context) is None:
        accepted = f"at most {in_node}" if in_node else "1"
        release = used_release(context.stack)
        name = context.stack.release if release is None else release.name
        why += f", on several nodes, which the kit doesn't know how {name} serves"
    elif not in_node or shape.gpus % size:
        accepted, why = str(max(1, in_node)), f"{why}: a rank can't span nodes"
    else:
        fewer = ranks // in_node * in_node
        accepted = f"at most {in_node}, or all ranks of whole nodes, such as {fewer} or {fewer + in_node}"
        why += ": servers that span nodes have all of their GPUs"
    return context.servers_problem(role, "dataParallelSize", ranks, accepted, why)


def over_nodes_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield the problems of settings that servers spanning nodes don't support."""
    roles: list[Role] = [role for role in context.model.topology.servers() if context.parallelism(role).nodes > 1]
    if not roles or _facts(context) is None:
        return
    if context.stack.rdma == "none":
        role = roles[0]
        nodes = context.parallelism(role).nodes
        why = f"{role} servers span {nodes} nodes, between which experts exchange tokens in each layer"
        yield Problem("rdma", "none", "sriov-vf", why)
    for role in roles:
        if context.model.scaling is not None and role in context.model.scaling.servers():
            why = f"{role} servers span nodes, and nobody has shown that KEDA scales groups of pods by vLLM's counters"
            yield Problem(f"{context.path}.scaling.{role}", "given", "nothing", why)
    if not context.model.object_name[0].isalpha():
        name = context.model.object_name
        why = f"a LeaderWorkerSet's name begins with a letter ({DNS_LABEL_FORM})"
        yield Problem(f"{context.path}.name", name, "a name that begins with a letter", why)


def _facts(context: PlannedModel) -> OverNodes | None:
    release = used_release(context.stack)
    return None if release is None else release.vllm.over_nodes
