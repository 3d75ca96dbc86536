"""Checks of servers whose pods the controller of LeaderWorkerSets makes: those with more GPUs than a node, as groups of
pods with a whole node and an equal number of ranks each, and roles of DisaggregatedSets.
"""

from collections.abc import Iterator
from dataclasses import replace

from llmd_base.errors import SET, Problem
from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue.releases import OverNodes, release_names
from llmd_oke.catalogue.releases import release as known
from llmd_oke.config import Role
from llmd_oke.planning.placement import unit_names
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
    if ranks == 1 or spread_over_nodes(context, role, size) is not None:
        return None
    in_node = shape.gpus // size
    each = "1 GPU" if size == 1 else f"{size} GPUs"
    why = f"{ranks} ranks of {each} each need {spread.gpus} GPUs, a node has {shape.gpus}, and"
    if _facts(context) is None:
        release = used_release(context.stack)
        name = context.stack.release if release is None else release.name
        able = " or ".join(name for name in release_names() if (item := known(name)) and item.vllm.over_nodes)
        accepted = f"at most {max(1, in_node)} ranks, or release: {able}"
        why += f" the kit can't spread a server over nodes with {name}"
    elif not in_node or shape.gpus % size:
        accepted, why = str(max(1, in_node)), f"{why} a rank can't span nodes"
    else:
        fewer = ranks // in_node * in_node
        accepted = f"at most {in_node}, or all ranks of whole nodes, such as {fewer} or {fewer + in_node}"
        why += " servers that span nodes have all of their GPUs"
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
            yield Problem(f"{context.path}.scaling.{role}", SET, "nothing", why)


LONGEST_STATEFUL_SET = 52
"""Longest name of a StatefulSet in characters. Its pods have it in the label `controller-revision-hash`, before a dash
and up to 10 characters (Kubernetes, pkg/controller/history), and a label has 63 at most.
"""

_DIGEST = "-12345678"
"""Form of the digests in names of units (`llmd_oke.program.models.unit_name`), and in those of a DisaggregatedSet's
LeaderWorkerSets (LWS 0.9.0, pkg/utils/disaggregatedset).
"""


def disaggregated_set_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield the problems of a model whose servers are to be roles of a DisaggregatedSet."""
    model, release, path = context.model, used_release(context.stack), f"{context.path}.disaggregatedSet"
    if not model.disaggregated_set:
        return
    if release is not None and release.disaggregated_sets is None:
        having = [item.name for name in release_names() if (item := known(name)) and item.disaggregated_sets]
        accepted = f"false, or release: {' or '.join(having)}"
        yield Problem(path, value=True, accepted=accepted, why=f"{release.name} has no DisaggregatedSets")
    if not model.topology.disaggregated:
        why = "a DisaggregatedSet has prefill and decode servers, and the topology has aggregated ones"
        yield Problem(path, value=True, accepted="false", why=why)
        return
    if model.scaling is not None:
        why = "KEDA scales Deployments, and the servers are roles of a DisaggregatedSet"
        yield Problem(f"{context.path}.scaling", SET, "nothing", why)
    names = {role: _longest_name(context, role) for role in model.topology.servers()}
    role, longest = max(names.items(), key=lambda item: len(item[1]))
    if (excess := len(longest) - LONGEST_STATEFUL_SET) > 0:
        accepted = f"a name of at most {len(model.object_name) - excess} characters"
        why = (
            f"{role} servers would have a StatefulSet with a name like {longest}, {excess}"
            f" {'character' if excess == 1 else 'characters'} too long for a label of its pods"
        )
        yield Problem(f"{context.path}.name", model.name, accepted, why)


def _longest_name(context: PlannedModel, role: Role) -> str:
    """Return the longest name that a StatefulSet of a role's servers can get, with digits in place of digests. Servers
    that span nodes have one of their own for each server.
    """
    last = f"-{context.model.topology.servers()[role].replicas - 1}" if context.parallelism(role).nodes > 1 else ""
    return f"{unit_names(context.model)[-1]}{_DIGEST}{_DIGEST}-{role}{last}"


def _facts(context: PlannedModel) -> OverNodes | None:
    release = used_release(context.stack)
    return None if release is None else release.vllm.over_nodes
