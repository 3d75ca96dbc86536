"""Checks of, and advice on, models whose servers are scaled by load: limits, thresholds, room and proportions."""

from collections.abc import Iterator, Sequence

from llmd_base.errors import SET, Problem

from llmd_oke import catalogue
from llmd_oke.catalogue.serving import scaling
from llmd_oke.config import ModelConfig, Role, ServersScaling, StackConfig
from llmd_oke.config.model import PrefillScaling
from llmd_oke.planning.model_plan import ModelPlan, PlacedNode, RolePlan
from llmd_oke.planning.placement import place, servers
from llmd_oke.planning.plan import Advice


def scaling_problems(model: ModelConfig, path: str) -> Iterator[Problem]:
    """Yield the problems of one model's scaling limits and thresholds."""
    scaled = model.scaling.servers() if model.scaling else {}
    if model.scaling and not scaled:
        yield Problem(f"{path}.scaling", None, " or ".join(model.topology.servers()), "it names no role to scale")
    for role, limits in scaled.items():
        yield from _role(model, role, limits, f"{path}.scaling.{role}")


def room_problems(config: StackConfig, models: Sequence[ModelConfig], nodes: Sequence[PlacedNode]) -> Iterator[Problem]:
    """Yield a problem for models whose initial servers fit the nodes but whose maximum number of servers doesn't.

    Each problem is about one role whose lower maximum would suffice, with the highest one that fits while all other
    roles are at their maximum.
    """
    if not _fits(config, [model.model_copy(update={"scaling": None}) for model in models], nodes):
        return
    for model in models:
        for role in model.scaling.servers() if model.scaling else ():
            if role in model.topology.servers():
                yield from _too_many(config, models, nodes, model, role)


def scaling_advice(model: ModelPlan, shape: catalogue.Shape, path: str) -> Iterator[Advice]:
    """Yield advice on scaling that may not pay off, and on thresholds that the topology's servers never reach."""
    if model.scaling is None:
        return
    scaled = model.scaling.servers()
    if model.topology.disaggregated and len(scaled) == 1:
        (role,) = scaled
        other = "decode" if role == "prefill" else "prefill"
        yield Advice(
            f"{path}.scaling", f"only {role} servers are scaled: where {other} servers are too few, more don't help"
        )
    yield from _proportions(model, path)
    for planned in model.units[0].roles:
        if planned.scaling is not None:
            yield from _out_of_reach(model, planned, planned.scaling, shape, f"{path}.scaling.{planned.role}")


def _role(model: ModelConfig, role: Role, limits: ServersScaling, path: str) -> Iterator[Problem]:
    part = model.topology.servers().get(role)
    if part is None:
        own = " or ".join(f"scaling.{other}" for other in model.topology.servers())
        example = "agg-tp1-16r" if role == "aggregated" else "8p-tp1-4d-tp2"
        accepted = f"{own}, or a topology with {role} servers, such as {example}"
        yield Problem(path, SET, accepted, f"{model.topology} has no {role} servers")
        return
    why = f"the topology starts with {part.replicas} {role} {'server' if part.replicas == 1 else 'servers'}"
    if limits.min_replicas > part.replicas:
        yield Problem(f"{path}.minReplicas", limits.min_replicas, f"at most {part.replicas}", why)
    if limits.max_replicas < part.replicas:
        yield Problem(f"{path}.maxReplicas", limits.max_replicas, f"at least {part.replicas}", why)
    if not limits.thresholds():
        fields = (name for name in type(limits).model_fields if name not in {"min_replicas", "max_replicas"})
        names = ", ".join(type(limits).model_fields[name].alias or name for name in fields)
        yield Problem(path, None, f"at least one of {names}", "no threshold says when a server is added")


def _too_many(
    config: StackConfig, models: Sequence[ModelConfig], nodes: Sequence[PlacedNode], model: ModelConfig, role: Role
) -> Iterator[Problem]:
    """Yield a problem for a scaled role whose maximum number of servers doesn't fit the nodes, though its initial
    number does.
    """
    scaling_of_model, start = model.scaling, model.topology.servers()[role].replicas
    assert scaling_of_model  # noqa: S101 - only scaled roles are judged
    limits = scaling_of_model.servers()[role]

    def fits(replicas: int) -> bool:
        smaller = scaling_of_model.model_copy(update={role: limits.model_copy(update={"max_replicas": replicas})})
        changed = model.model_copy(update={"scaling": smaller})
        return _fits(config, [changed if other is model else other for other in models], nodes)

    counts = range(limits.max_replicas - 1, start - 1, -1)
    if not counts:
        return
    enough = next((count for count in counts if fits(count)), None)
    index = next(i for i, other in enumerate(config.models) if other is model)
    fewer = "fewer, with fewer of the other servers that are scaled too" if enough is None else f"at most {enough}"
    gpus = sum(server.gpus for server in servers(config, models))
    yield Problem(
        f"models[{index}].scaling.{role}.maxReplicas",
        limits.max_replicas,
        f"{fewer}, or more nodes in gpuPools",
        f"all models at their most need {gpus} GPUs in whole servers, and the pools' {len(nodes)} nodes"
        f" have {sum(node.gpus for node in nodes)}",
    )


def _fits(config: StackConfig, models: Sequence[ModelConfig], nodes: Sequence[PlacedNode]) -> bool:
    return not place(servers(config, models), nodes)[1]


def _out_of_reach(
    model: ModelPlan, servers: RolePlan, limits: ServersScaling, shape: catalogue.Shape, path: str
) -> Iterator[Advice]:
    """Yield advice on thresholds beyond a server's capacity, by its settings, its memory or its GPUs' peak rate."""
    at_once = servers.settings.max_num_seqs
    if servers.role != "prefill" and (limits.requests or 0) > at_once:
        yield Advice(
            f"{path}.requests",
            f"servers are added only once requests wait: one server runs {at_once} at a time (engine.maxNumSeqs)",
        )
    flops = shape.gpu.dense_tflops.of(model.model.weights.format) * 1e12 * servers.parallelism.gpus
    most_per_s = flops / (2e9 * model.model.work.prefill_parameters_billions)
    if isinstance(limits, PrefillScaling) and (limits.prompt_tokens_per_s or 0) > most_per_s:
        yield Advice(
            f"{path}.promptTokensPerS",
            f"servers are added only once prompts wait: one server computes at most {most_per_s:,.0f} tokens a second"
            f" (bound: peak rate of {servers.parallelism.gpus} {shape.gpu.product})",
        )
    tokens = at_once * (model.workload.input_tokens + model.workload.output_tokens + servers.memory.state_tokens)
    share = tokens / max(servers.memory.key_value_tokens, 1)
    alone = limits.thresholds().get("kv_cache_usage", 0.0) if len(limits.thresholds()) == 1 else 0.0
    if alone > share:
        yield Advice(
            f"{path}.kvCacheUsage",
            f"no server is ever added at this workload: {at_once} requests at a time (engine.maxNumSeqs) fill at most"
            f" {share:.1%} of a server's KV cache",
        )


def _proportions(model: ModelPlan, path: str) -> Iterator[Advice]:
    """Yield advice on ratios of prefill to decode servers, at their minimum and maximum, that differ much from the
    topology's.
    """
    prefill, decode = model.units[0].role("prefill"), model.units[0].role("decode")
    if not (prefill and prefill.scaling and decode and decode.scaling):
        return
    planned = prefill.replicas / decode.replicas
    ends = {
        "minReplicas": (prefill.scaling.min_replicas, decode.scaling.min_replicas),
        "maxReplicas": (prefill.scaling.max_replicas, decode.scaling.max_replicas),
    }
    for key, (of_prefill, of_decode) in ends.items():
        factor = of_prefill / of_decode / planned
        if max(factor, 1 / factor) > scaling().ratio_factor:
            yield Advice(
                f"{path}.scaling",
                f"{key} has {of_prefill} prefill for {of_decode} decode servers where {model.topology} has"
                f" {prefill.replicas} for {decode.replicas}; one role would wait for the other",
            )
