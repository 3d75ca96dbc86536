"""The answer of a search: the best deployment, what comes next and why not, and how sure that is."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from llmd_oke.tuning.search.deployments import Deployment
from llmd_oke.tuning.search.question import Question, Targets
from llmd_oke.tuning.search.searching import Search, search
from llmd_oke.tuning.servers.latency import LatencyModel

SWING = 0.10
"""By how much each input is varied."""


@dataclass(frozen=True)
class Loser:
    """The best deployment of a family that lost, and why."""

    deployment: Deployment
    why: str


@dataclass(frozen=True)
class Swing:
    """What wins where one input is larger or smaller; None where nothing meets the targets then."""

    name: str
    factor: float
    winner: Deployment | None
    changes: bool


@dataclass(frozen=True)
class Ranking:
    """`best` is None where nothing meets the targets: `remedies` then says what would have to change."""

    search: Search
    best: Deployment | None
    first: tuple[Deployment, ...]
    """The first in order, the best among them; the nearest misses where nothing meets the targets."""
    losers: tuple[Loser, ...]
    swings: tuple[Swing, ...]
    remedies: tuple[str, ...]


def rank(question: Question, most: int = 5, sensitivity: bool = True) -> Ranking:
    """Searches, explains and varies."""
    found = search(question)
    best = found.best()
    return Ranking(
        search=found,
        best=best,
        first=tuple(found.deployments(most)),
        losers=tuple(_losers(found, best)),
        swings=tuple(_swings(question, best)) if best and sensitivity else (),
        remedies=() if best else tuple(_remedies(found)),
    )


def same(first: Deployment, second: Deployment) -> bool:
    """Whether two are the same servers."""
    return (first.topology, first.copies) == (second.topology, second.copies)


def binding_text(deployment: Deployment, question: Question) -> str:
    """The constraint that is nearest to its limit, with its figures."""
    targets, shares = question.targets, question.headroom
    texts = {
        "prefill": _load_text("prefill", deployment.prefill_load, shares.prefill_share),
        "decode": _load_text("decode", deployment.decode_load, shares.decode_share),
        "KV transfer": _load_text("KV transfer", deployment.transfer_load, shares.prefill_share),
        "TTFT": _latency_text("TTFT", deployment.ttft_s, targets.ttft_s),
        "ITL": _latency_text("ITL", deployment.itl_s, targets.itl_s),
        "E2E": _latency_text("E2E", deployment.e2e_s, targets.e2e_s),
    }
    return texts[deployment.binding]


def _load_text(role: str, load: float, share: float) -> str:
    return f"{role} at {load:.0%} of its rate, {share:.0%} allowed"


def _latency_text(name: str, seconds: float, limit_s: float | None) -> str:
    allowed = "" if limit_s is None else f", {limit_s * 1000:g} ms allowed"
    return f"{name} {seconds * 1000:.4g} ms{allowed}"


def _losers(found: Search, best: Deployment | None) -> Iterator[Loser]:
    for each in found.best_of_families():
        if best is None or each.family != best.family:
            yield Loser(each, _why_lost(each, best, found.question))


def _why_lost(each: Deployment, best: Deployment | None, question: Question) -> str:
    if not each.feasible or best is None:
        return binding_text(each, question)
    if each.gpus_reserved > best.gpus_reserved:
        return f"needs whole nodes of {each.gpus_reserved} GPUs instead of {best.gpus_reserved}"
    less = 1 - each.capacity_per_s / best.capacity_per_s
    return f"carries {each.capacity_per_s:.1f} requests/s within the targets, {less:.0%} less"


def _swings(question: Question, best: Deployment) -> Iterator[Swing]:
    for name, vary in _INPUTS.items():
        for factor in (1 - SWING, 1 + SWING):
            varied = vary(question, factor)
            if varied is not None:
                winner = search(varied).best()
                yield Swing(name, factor, winner, winner is None or not same(winner, best))


def _remedies(found: Search) -> list[str]:
    """What would have to change: one thing, or several together where no single one is enough."""
    single = [*_looser_latencies(found), *_less_load(found, found.question.targets)]
    return single or list(_together(found))


def _together(found: Search) -> Iterator[str]:
    """What the GPUs reach without targets for latencies, at the load that is asked for or at the most that there is."""
    question, wanted = found.question, found.question.targets.requests_per_s
    for load, note in ((wanted, ""), (None, f" instead of {wanted:g}" if wanted else "")):
        best = search(replace(question, targets=Targets(requests_per_s=load))).best()
        if best is not None:
            latencies = f"ttft={math.ceil(best.ttft_s * 1000)} and itl={math.ceil(best.itl_s * 1000)}"
            yield f"qps={math.floor(best.requests_per_s * 10) / 10:g}{note} with {latencies}: {named(best)}"
            return


def _looser_latencies(found: Search) -> Iterator[str]:
    question, targets = found.question, found.question.targets
    for field, name in (("ttft_s", "ttft"), ("itl_s", "itl"), ("e2e_s", "e2e")):
        if getattr(targets, field) is None:
            continue
        other = search(replace(question, targets=replace(targets, **{field: None})))
        if nearest := min(other.feasible(), key=attrgetter(field), default=None):
            reached_ms = math.ceil(getattr(nearest, field) * 1000)
            yield f"{name}={reached_ms} instead of {getattr(targets, field) * 1000:g}: {named(nearest)}"


def _less_load(found: Search, targets: Targets) -> Iterator[str]:
    question = found.question
    wanted = targets.requests_per_s
    most = next(search(replace(question, targets=replace(targets, requests_per_s=None))).deployments(1), None)
    if wanted is None or most is None or most.capacity_per_s <= 0:
        return
    yield f"qps={math.floor(most.capacity_per_s * 10) / 10:g} instead of {wanted:g}: {named(most)}"
    copies = math.ceil(wanted / most.capacity_per_s)
    more = replace(most, copies=copies * most.copies)
    yield f"{copies * most.gpus_reserved} GPUs instead of {question.hardware.gpus}: {named(more)}"


def named(deployment: Deployment) -> str:
    """Its topology and how many copies of it."""
    return deployment.topology if deployment.copies == 1 else f"{deployment.copies} copies of {deployment.topology}"


def _model(question: Question, change: Callable[[LatencyModel], LatencyModel]) -> Question:
    return replace(question, model=change(question.model))


def slower_decode(model: LatencyModel, factor: float) -> LatencyModel:
    """The same model with decode steps that take `factor` times as long."""
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
    """The same model with prefills that take `factor` times as long."""
    own = model.factors
    factors = replace(
        own,
        prefill_overhead_s=own.prefill_overhead_s * factor,
        prefill_compute_efficiency=own.prefill_compute_efficiency / factor,
        all_reduce_efficiency=own.all_reduce_efficiency / factor,
    )
    return replace(model, factors=factors)


def _targets(question: Question, field: str, factor: float) -> Question | None:
    value = getattr(question.targets, field)
    return None if value is None else replace(question, targets=replace(question.targets, **{field: value * factor}))


_INPUTS: dict[str, Callable[[Question, float], Question | None]] = {
    "decode step": lambda question, factor: _model(question, lambda model: slower_decode(model, factor)),
    "prefill time": lambda question, factor: _model(question, lambda model: slower_prefill(model, factor)),
    "ISL": lambda question, factor: replace(question, workload=question.workload.scaled(input_factor=factor)),
    "OSL": lambda question, factor: replace(question, workload=question.workload.scaled(output_factor=factor)),
    "qps": lambda question, factor: _targets(question, "requests_per_s", factor),
    "TTFT target": lambda question, factor: _targets(question, "ttft_s", factor),
    "ITL target": lambda question, factor: _targets(question, "itl_s", factor),
}
