"""Ranking of deployments: the best one, why others lost, how sensitive the result is to its inputs, and simulations of
the best.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from llmd_base.row import Basis, Origin, Quantiles, Row
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue import CatalogueModel, NodeHardware
from llmd_oke.config import Topology
from llmd_oke.planning.conditions import DeployedConditions

from llmd_tuner.confidence import Confidence
from llmd_tuner.latency import LatencyModel
from llmd_tuner.search import Candidate, Search, search
from llmd_tuner.search_inputs import SearchInputs, Targets
from llmd_tuner.simulation.deployment import PoissonArrivals, RequestClass
from llmd_tuner.simulation.deployment import deployment as simulated_deployment
from llmd_tuner.simulation.simulation import simulate

SWING = 0.10
"""Relative change (0.1 is 10 %) by which each input of a search is made larger and smaller."""

DURATION_S = 120.0

SEEDS = (0,)


@dataclass(frozen=True)
class Loser:
    """Best deployment of a kind of servers that did not win, and the reason."""

    deployment: Candidate
    why: str


@dataclass(frozen=True)
class Swing:
    """Best deployment after the input `name` of a search was multiplied by `factor`; None if no deployment meets the
    targets then. `changes` says whether it differs from the best one with the original inputs.
    """

    name: str
    factor: float
    winner: Candidate | None
    changes: bool


@dataclass(frozen=True)
class Ranking:
    """Ranked deployments, with the reasons why others lost. `best` is None if none meets the targets: then `remedies`
    says what would have to change.
    """

    search: Search
    best: Candidate | None
    first: tuple[Candidate, ...]
    """Best deployments in order; the nearest misses where none meets the targets."""
    losers: tuple[Loser, ...]
    swings: tuple[Swing, ...]
    remedies: tuple[str, ...]


def rank(question: SearchInputs, most: int = 5, sensitivity: bool = True) -> Ranking:
    """Search all deployments, explain why those of other kinds of servers than the best one lost and, with
    `sensitivity`, repeat the search with larger and smaller inputs. `most` is the number of deployments to list.
    """
    result = search(question)
    best = result.best()
    return Ranking(
        search=result,
        best=best,
        first=tuple(result.deployments(most)),
        losers=tuple(
            Loser(deployment, _why_lost(deployment, best, question))
            for deployment in result.best_of_families()
            if best is None or deployment.family != best.family
        ),
        swings=tuple(
            Swing(name, factor, winner, winner is None or not same(winner, best))
            for name, vary in _INPUTS.items()
            for factor in (1 - SWING, 1 + SWING)
            if (varied := vary(question, factor))
            for winner in [search(varied).best()]
        )
        if best and sensitivity
        else (),
        # One thing that would have to change, or several together where no single one is enough.
        remedies=() if best else tuple([*_looser_latencies(result), *_less_load(result)] or _together(result)),
    )


def same(first: Candidate, second: Candidate) -> bool:
    """Tell whether two candidate deployments consist of the same servers."""
    return (first.topology, first.copies) == (second.topology, second.copies)


def binding_text(deployment: Candidate, question: SearchInputs) -> str:
    """Return the constraint that a deployment is nearest to violating, with its value and limit, as text."""
    targets, shares = question.targets, question.headroom
    name = deployment.binding
    loads = {
        "prefill": (deployment.prefill_load, shares.prefill_share),
        "decode": (deployment.decode_load, shares.decode_share),
        "KV transfer": (deployment.transfer_load, shares.prefill_share),
    }
    if name in loads:
        load, share = loads[name]
        return f"{name} at {load:.0%} of its rate, {share:.0%} allowed"
    latencies = {
        "TTFT": (deployment.ttft_s, targets.ttft_s),
        "ITL": (deployment.itl_s, targets.itl_s),
        "E2E": (deployment.e2e_s, targets.e2e_s),
    }
    seconds, limit_s = latencies[name]
    return f"{name} {seconds * 1000:.4g} ms{'' if limit_s is None else f', {limit_s * 1000:g} ms allowed'}"


def _why_lost(deployment: Candidate, best: Candidate | None, question: SearchInputs) -> str:
    if not deployment.feasible or best is None:
        return binding_text(deployment, question)
    if deployment.bound and not best.bound:
        sizes = " ".join(f"--size {kind}" for kind in unmeasured_kinds(deployment, question))
        return f"bound: {deployment.capacity_per_s:.1f} requests/s at most; `llmd-oke tune run {sizes}` would tell"
    if deployment.gpus_reserved > best.gpus_reserved:
        return f"needs whole nodes of {deployment.gpus_reserved} GPUs instead of {best.gpus_reserved}"
    less = 1 - deployment.capacity_per_s / best.capacity_per_s
    return f"carries {deployment.capacity_per_s:.1f} requests/s within the targets, {less:.0%} less"


def spreads_of(deployment: Candidate, question: SearchInputs) -> tuple[Parallelism, ...]:
    """Return the parallelism (tensor and data parallel sizes, nodes) of a deployment's servers, one for each role."""
    node_gpus = question.hardware.gpus_per_node
    servers = Topology.model_validate(deployment.topology).servers().values()
    return tuple(part.parallelism(expert_parallel=False, node_gpus=node_gpus) for part in servers)


def unmeasured_kinds(deployment: Candidate, question: SearchInputs) -> list[str]:
    """Return the kinds of a deployment's servers, such as `tp1dp8ep`, whose latencies nobody measured while those of
    other kinds were; empty if all were measured, or none.
    """
    spreads = dict.fromkeys(spreads_of(deployment, question))
    return [str(spread) for spread in spreads if question.is_bound(spread)]


def _together(result: Search) -> Iterator[str]:
    """Yield what the GPUs reach without targets for latencies, at the load that is asked for or else at any load."""
    question, rate = result.question, result.question.targets.requests_per_s
    for load, note in ((rate, ""), (None, f" instead of {rate:g}" if rate else "")):
        best = search(replace(question, targets=Targets(requests_per_s=load))).best()
        if best is not None:
            latencies = f"ttft={math.ceil(best.ttft_s * 1000)} and itl={math.ceil(best.itl_s * 1000)}"
            yield f"qps={math.floor(best.requests_per_s * 10) / 10:g}{note} with {latencies}: {name_with_basis(best)}"
            return


def _looser_latencies(result: Search) -> Iterator[str]:
    question, targets = result.question, result.question.targets
    for field, name in (("ttft_s", "ttft"), ("itl_s", "itl"), ("e2e_s", "e2e")):
        if getattr(targets, field) is None:
            continue
        if nearest := search(replace(question, targets=replace(targets, **{field: None}))).best(field):
            reached_ms = math.ceil(getattr(nearest, field) * 1000)
            yield f"{name}={reached_ms} instead of {getattr(targets, field) * 1000:g}: {name_with_basis(nearest)}"


def _less_load(result: Search) -> Iterator[str]:
    question, targets = result.question, result.question.targets
    rate = targets.requests_per_s
    most = next(search(replace(question, targets=replace(targets, requests_per_s=None))).deployments(1), None)
    if rate is None or most is None or most.capacity_per_s <= 0:
        return
    yield f"qps={math.floor(most.capacity_per_s * 10) / 10:g} instead of {rate:g}: {name_with_basis(most)}"
    copies = math.ceil(rate / most.capacity_per_s)
    more = replace(most, copies=copies * most.copies)
    yield f"{copies * most.gpus_reserved} GPUs instead of {question.hardware.gpus}: {name_with_basis(more)}"


def deployment_name(deployment: Candidate) -> str:
    """Return the topology of a deployment with the number of its copies, as text."""
    return deployment.topology if deployment.copies == 1 else f"{deployment.copies} copies of {deployment.topology}"


def name_with_basis(deployment: Candidate) -> str:
    """Return the name of a deployment, marked as `a bound` if the latencies of its servers are only lower bounds
    although those of other deployments' servers were measured.
    """
    return f"{deployment_name(deployment)}, a bound" if deployment.bound else deployment_name(deployment)


def _model(question: SearchInputs, change: Callable[[LatencyModel], LatencyModel]) -> SearchInputs:
    return replace(question, model=change(question.model))


def slower_decode(model: LatencyModel, factor: float) -> LatencyModel:
    """Return the latency model with decode steps that take `factor` times as long."""
    own = model.factors
    factors = replace(
        own,
        decode_layer_s=own.decode_layer_s * factor,
        decode_bytes_factor=own.decode_bytes_factor * factor,
        decode_flops_factor=own.decode_flops_factor * factor,
        decode_sequence_s=own.decode_sequence_s * factor,
        decode_fixed_s=tuple((size, fixed_s * factor) for size, fixed_s in own.decode_fixed_s),
    )
    return replace(model, factors=factors)


def slower_prefill(model: LatencyModel, factor: float) -> LatencyModel:
    """Return the latency model with prefills that take `factor` times as long."""
    own = model.factors
    factors = replace(
        own,
        prefill_overhead_s=own.prefill_overhead_s * factor,
        prefill_compute_efficiency=own.prefill_compute_efficiency / factor,
        all_reduce_efficiency=own.all_reduce_efficiency / factor,
    )
    return replace(model, factors=factors)


def _targets(question: SearchInputs, field: str, factor: float) -> SearchInputs | None:
    value = getattr(question.targets, field)
    return None if value is None else replace(question, targets=replace(question.targets, **{field: value * factor}))


_INPUTS: dict[str, Callable[[SearchInputs, float], SearchInputs | None]] = {
    "decode step": lambda question, factor: _model(question, lambda model: slower_decode(model, factor)),
    "prefill time": lambda question, factor: _model(question, lambda model: slower_prefill(model, factor)),
    "ISL": lambda question, factor: replace(question, workload=question.workload.scaled(input_factor=factor)),
    "OSL": lambda question, factor: replace(question, workload=question.workload.scaled(output_factor=factor)),
    "qps": lambda question, factor: _targets(question, "requests_per_s", factor),
    "TTFT target": lambda question, factor: _targets(question, "ttft_s", factor),
    "ITL target": lambda question, factor: _targets(question, "itl_s", factor),
}


@dataclass(frozen=True)
class SimulatedFinalist:
    """Deployment of a ranking, and the row of its simulation at the same load. Ratios are simulated values over those
    that the ranking computed in closed form.
    """

    deployment: Candidate
    row: Row

    @property
    def ttft_ratio(self) -> float | None:
        """Ratio of the simulated mean TTFT to that in closed form."""
        mean_ms = self.row.ttft_ms.mean
        return None if mean_ms is None else mean_ms / 1000 / self.deployment.ttft_s

    @property
    def itl_ratio(self) -> float | None:
        """Ratio of the simulated mean TPOT (a request's mean ITL) to that in closed form."""
        mean_ms = self.row.tpot_ms.mean
        return None if mean_ms is None else mean_ms / 1000 / self.deployment.itl_s


def simulate_finalists(
    question: SearchInputs,
    model: CatalogueModel,
    node: NodeHardware,
    deployments: Sequence[Candidate],
    seeds: Sequence[int] = SEEDS,
    duration_s: float = DURATION_S,
) -> Iterator[SimulatedFinalist]:
    """Simulate deployments one by one, each with `duration_s` seconds of requests."""
    workload = question.workload
    cached_share = workload.prefix_cache_hit_share + workload.host_hit_share
    for finalist in deployments:
        block_size = question.room.block_size if finalist.prefill else question.room.aggregated_block_size
        servers = simulated_deployment(
            model,
            node,
            finalist.topology,
            copies=finalist.copies,
            policy=question.profile,
            max_num_seqs=question.room.max_num_seqs,
            block_size=block_size,
        )
        # The share that is cached is one of whole blocks, as vLLM counts hits: to the nearest one.
        classes = [
            RequestClass(
                round(lengths.input_tokens),
                round(lengths.output_tokens),
                lengths.weight,
                round(lengths.input_tokens * cached_share / block_size) * block_size,
                host_tokens=round(lengths.input_tokens * workload.host_hit_share),
            )
            for lengths in workload.classes
        ]
        arrivals = PoissonArrivals(finalist.requests_per_s)
        result = simulate(servers, classes, arrivals, question.model, seeds=seeds, duration_s=duration_s)
        yield SimulatedFinalist(finalist, result.row)


def forecast_row(
    model: str,
    gpu: str,
    question: SearchInputs,
    confidence: Confidence,
    started: DeployedConditions,
    deployment: Candidate,
) -> Row:
    """Return the forecast of a deployment at its load as a row. Latencies are means; notes state the confidence.
    `started` are the settings of its servers.
    """
    own = started.of(deployment.topology)
    usd = question.hardware.price_usd_per_hour
    return Row(
        subject="end-to-end",
        basis=Basis.BOUND if deployment.bound else confidence.basis,
        model=model,
        gpu=gpu,
        origin=Origin(tool="llmd-oke tune"),
        **own.model_dump(exclude={"accepted_share"}),
        router_profile=question.profile,
        topology=deployment.topology,
        copies=deployment.copies,
        gpus_counted=deployment.gpus,
        gpus_reserved=deployment.gpus_reserved,
        input_tokens=question.workload.input_tokens,
        output_tokens=question.workload.output_tokens,
        arrival="poisson",
        concurrency=deployment.requests_per_s * deployment.e2e_s,
        offered_requests_per_s=deployment.requests_per_s,
        achieved_requests_per_s=deployment.requests_per_s,
        input_tokens_per_s=deployment.requests_per_s * question.workload.input_tokens,
        output_tokens_per_s=deployment.output_tokens_per_s,
        ttft_ms=Quantiles(mean=deployment.ttft_s * 1000),
        tpot_ms=Quantiles(mean=deployment.itl_s * 1000),
        itl_ms=Quantiles(mean=deployment.itl_s * 1000),
        e2e_ms=Quantiles(mean=deployment.e2e_s * 1000),
        max_num_seqs=deployment.max_num_seqs,
        prefix_cache_hit_share=question.workload.prefix_cache_hit_share + question.workload.host_hit_share or None,
        price_usd_per_hour=usd and deployment.gpus_reserved * usd,
        notes=(confidence.sentence, *confidence.conditions),
    )
