"""Parallelisms (GPUs, ranks, nodes) with which a model's servers can be deployed, for aggregated servers and for pairs
of prefill and decode servers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue.models import CatalogueModel, blocks_allow, heads_allow, shared_size
from llmd_oke.catalogue.shapes import NodeHardware
from llmd_oke.config import Role, Topology
from llmd_oke.config.model import Servers
from llmd_oke.planning import checks
from llmd_oke.planning.model_plan import Memory
from llmd_oke.planning.models import other_problems, topology_problems
from llmd_oke.planning.plan import Plan
from llmd_oke.planning.planned_model import PlannedModel, memory

Pair = tuple[Parallelism, Parallelism]
"""Parallelism of a prefill server and of the decode server that takes its KV cache."""


@dataclass(frozen=True)
class ServerChoices:
    """Parallelisms to choose from for aggregated servers and for pairs of prefill and decode servers, and the memory of
    one server with each parallelism by its role.
    """

    aggregated: tuple[Parallelism, ...]
    disaggregated: tuple[Pair, ...]
    memory: Mapping[Role, Mapping[Parallelism, Memory]]

    @cached_property
    def spreads(self) -> tuple[Parallelism, ...]:
        """All parallelisms of the choices, without repetitions."""
        pairs = (spread for pair in self.disaggregated for spread in pair)
        return tuple(dict.fromkeys([*self.aggregated, *pairs]))

    def among(self, accepted: Callable[[Parallelism], bool]) -> "ServerChoices":
        """Return the choices restricted to servers for which `accepted` is true."""
        return replace(
            self,
            aggregated=tuple(filter(accepted, self.aggregated)),
            disaggregated=tuple(pair for pair in self.disaggregated if all(map(accepted, pair))),
        )


def divided_spreads(model: CatalogueModel, node_gpus: int, most_gpus: int) -> Iterator[Parallelism]:
    """Yield the parallelisms of at most `most_gpus` GPUs by which a model's heads, experts and blocks of weights are
    divisible: over 1, 2, 4 and so on of a node's GPUs, or over whole nodes. For dense models they use tensor
    parallelism only.
    """
    powers = [1 << power for power in range(node_gpus.bit_length())]
    inside = [gpus for gpus in powers if gpus <= most_gpus]
    over = range(2 * node_gpus, most_gpus + 1, node_gpus)
    for gpus in (*inside, *over):
        for size in (size for size in powers if heads_allow(model, size)):
            for whole in (False, True):
                spread = Parallelism(size, gpus // size, whole).over_nodes(node_gpus)
                if spread is not None and spread.gpus == gpus and _experts_allow(model, spread):
                    yield spread


def _experts_allow(model: CatalogueModel, spread: Parallelism) -> bool:
    """Tell whether GPUs have equally many whole experts, or equal parts of each. Where a model's GPUs have whole
    experts unless a stack file says otherwise, parts can't be told in the short form of a topology.
    """
    experts = model.architecture.experts
    if spread.gpus == 1 or experts is None:
        return spread.data_parallel_size == 1 and not spread.expert_parallel and blocks_allow(model, spread)
    if spread.expert_parallel:
        return experts.count % spread.gpus == 0
    inner = shared_size(model, spread)
    return not model.expert_parallel and (inner is None or inner % spread.gpus == 0) and blocks_allow(model, spread)


def possible_servers(model: CatalogueModel, node: NodeHardware, most_gpus: int, utilization: float) -> ServerChoices:
    """Return the parallelisms of at most `most_gpus` GPUs that a model's heads, experts and memory permit,
    independently of any stack file. A prefill server is paired with decode servers of at least its tensor parallel
    size, or of any size if the model has latent attention.
    """
    all_memory = {
        spread: memory(model, node, spread, utilization) for spread in divided_spreads(model, node.gpus, most_gpus)
    }
    each = {spread: of_server for spread, of_server in all_memory.items() if of_server.sequences(1)}
    spreads = tuple(each)
    latent = model.architecture.latent_attention is not None
    pairs = tuple(
        (prefill, decode)
        for prefill in spreads
        for decode in spreads
        if prefill.gpus + decode.gpus <= most_gpus
        and (latent or prefill.tensor_parallel_size <= decode.tensor_parallel_size)
    )
    return ServerChoices(spreads, pairs, {"prefill": each, "decode": each, "aggregated": each})


def accepted_servers(plan: Plan, index: int, most_gpus: int) -> ServerChoices:
    """Return the parallelisms of at most `most_gpus` GPUs with which planning accepts the servers of `models[index]` of
    a stack instead of its present ones, all other keys unchanged. For a model with scaling, servers that span nodes are
    excluded.
    """
    context = checks.model_contexts(plan.config)[index]
    spreads = list(divided_spreads(context.facts, context.shape.gpus, most_gpus))
    if context.model.scaling is not None:
        spreads = [spread for spread in spreads if spread.nodes == 1]
    parts = {
        spread: Servers(
            replicas=1,
            tensor_parallel_size=spread.tensor_parallel_size,
            data_parallel_size=spread.data_parallel_size,
            expert_parallel=spread.expert_parallel or None,
        )
        for spread in spreads
    }
    aggregated = tuple(spread for spread in spreads if _accepted(context, index, Topology(aggregated=parts[spread])))
    pairs = tuple(
        (prefill, decode)
        for prefill in spreads
        for decode in spreads
        if prefill.gpus + decode.gpus <= most_gpus
        and _accepted(context, index, Topology(prefill=parts[prefill], decode=parts[decode]))
    )
    return ServerChoices(
        aggregated,
        pairs,
        {
            "prefill": {spread: context.memory("prefill", spread) for spread, _ in pairs},
            "decode": {spread: context.memory("decode", spread) for _, spread in pairs},
            "aggregated": {spread: context.memory("aggregated", spread) for spread in aggregated},
        },
    )


def _accepted(context: PlannedModel, index: int, topology: Topology) -> bool:
    """Tell whether planning takes one unit of a topology, first by what costs the least to look at."""
    model = context.model.model_copy(
        update={"topology": topology, "copies": 1, "scaling": None, "disaggregated_set": False}
    )
    changed = replace(context, model=model)
    for problems in (topology_problems, other_problems):
        if next(problems(changed), None) is not None:
            return False
    models = [model if i == index else other for i, other in enumerate(context.stack.models)]
    return not checks.problems(context.stack.model_copy(update={"models": models}))
