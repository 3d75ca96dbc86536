"""Published findings about prefill/decode disaggregation, as data that the event simulation is checked against.

`values/tuning/published-findings.yaml` has each finding with its source, how it is evaluated, how far a prediction may
be off, and where the model is known to miss it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

from llmd_base.progress import Progress, SilentProgress
from llmd_base.row import Basis
from llmd_oke.catalogue.conditions import DEFAULT_BLOCK_SIZE, Conditions
from llmd_oke.catalogue.latency_figures import known_figures
from llmd_oke.values import Entry, required_entry
from pydantic import Field

from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import latency_model_of
from llmd_tuner.search_inputs import known_model, known_shape
from llmd_tuner.simulation.deployment import (
    ConstantArrivals,
    PoissonArrivals,
    Policy,
    RequestClass,
    SimulatedDeployment,
    deployment,
)
from llmd_tuner.simulation.result import SimulationResult, Window
from llmd_tuner.simulation.simulation import Curve, best_at, concurrency_sweep, simulate

CheckVerdict = Literal["hit", "known miss", "miss", "unexpected hit"]
"""An unexpected hit is listed as a known miss and holds none the less: the list is out of date."""

Band = tuple[float | None, float | None]
"""The least and the most that the source says; None where it sets no limit."""


class Sweep(Entry):
    """Deployments of one unit under rising concurrency, in a closed loop. `conditions` is what servers were started
    with.
    """

    model: str
    shape: str
    conditions: Conditions
    input_tokens: int
    output_tokens: int
    concurrencies: tuple[int, ...]
    topologies: tuple[str, ...]


class ClaimedLoad(Entry):
    """Requests at a rate, in an open loop. `conditions` is what servers were started with."""

    model: str
    shape: str
    conditions: Conditions
    input_tokens: int
    output_tokens: int
    arrival: Literal["constant", "poisson"]
    duration_s: float
    window: Window


class ServedDeployment(Entry):
    """A deployment under a load, and how its router picks servers."""

    topology: str
    policy: Policy


class Winner(Entry):
    """Which group of topologies reaches the most output tokens per second and GPU at some speeds for each user."""

    kind: Literal["winner"]
    sweep: str
    groups: dict[str, tuple[str, ...]]
    winner: str
    tpsu: tuple[float, ...]


class Throughput(Entry):
    """Output tokens per second and GPU of the best of some topologies, or their ratio to the best of others."""

    kind: Literal["throughput"]
    sweep: str
    of: tuple[str, ...]
    over: tuple[str, ...] = ()
    tpsu: tuple[float, ...]
    published: Band
    tolerance: float


class ClaimedLatency(Entry):
    """A figure of a row (`e2e_ms.mean`), or its ratio to that of another deployment or to another figure of its own.

    Rates are requests per second, or shares of what the prefill servers of `of` can do at most.
    """

    kind: Literal["latency"]
    load: str
    of: ServedDeployment
    over: ServedDeployment | None = None
    figure: str
    over_figure: str | None = None
    requests_per_s: tuple[float, ...] = ()
    prefill_shares: tuple[float, ...] = ()
    published: Band
    tolerance: float


Evaluation = Annotated[Winner | Throughput | ClaimedLatency, Field(discriminator="kind")]


class PublishedClaim(Entry):
    """One finding. `known_misses` has why the model misses it, by the point at which it does."""

    name: str
    statement: str
    source: str
    evaluate: Evaluation
    known_misses: dict[float, str] = Field(default_factory=dict[float, str])


class Findings(Entry):
    """The file of findings, with the sweeps and loads that they share; `definitions` has what several of these have."""

    definitions: dict[str, object]
    sweeps: dict[str, Sweep]
    loads: dict[str, ClaimedLoad]
    findings: tuple[PublishedClaim, ...]


@cache
def published_findings() -> Findings:
    """The findings of `values/tuning/published-findings.yaml`."""
    return required_entry("tuning", "published-findings", Findings)


@dataclass(frozen=True)
class ClaimOutcome:
    """One finding at one point. `predicted` is the event simulation's, with the basis of the latency figures behind it;
    `accepted` includes the tolerance.
    """

    finding: PublishedClaim
    at: float
    unit: str
    basis: Basis
    predicted: str
    accepted: str
    holds: bool
    value: float | None = None
    """The same as a number; None for winners, and where the simulation doesn't get there."""

    @property
    def why(self) -> str | None:
        """Why the model is known to miss this point, or None."""
        return self.finding.known_misses.get(self.at)

    @property
    def verdict(self) -> CheckVerdict:
        """Whether the prediction holds, and whether that was known."""
        if self.why is None:
            return "hit" if self.holds else "miss"
        return "unexpected hit" if self.holds else "known miss"


def check_findings(findings: Findings, progress: Progress | None = None) -> list[ClaimOutcome]:
    """Evaluate every finding at every point; takes some seconds for simulations, which findings share."""
    listener = progress or SilentProgress()
    simulations = _Simulations(findings)
    outcomes: list[ClaimOutcome] = []
    for finding in findings.findings:
        listener.step(f"simulating {finding.name}")
        outcomes += _outcomes(finding, simulations)
    return outcomes


@dataclass
class _Simulations:
    """Simulations that were done already."""

    findings: Findings
    curves: dict[str, dict[str, Curve]] = field(default_factory=dict[str, dict[str, Curve]])
    results: dict[tuple[str, ServedDeployment, float], SimulationResult] = field(
        default_factory=dict[tuple[str, ServedDeployment, float], SimulationResult]
    )

    def curve(self, sweep: str, topology: str) -> Curve:
        """The curve of a topology in a sweep."""
        known = self.curves.setdefault(sweep, {})
        if topology not in known:
            known[topology] = _curve(self.findings.sweeps[sweep], topology)
        return known[topology]

    def basis(self, finding: PublishedClaim) -> Basis:
        """Calibrated where all latency figures are, bound where some are limits or assumptions."""
        evaluation = finding.evaluate
        setup = (
            self.findings.loads[evaluation.load]
            if isinstance(evaluation, ClaimedLatency)
            else self.findings.sweeps[evaluation.sweep]
        )
        return known_figures(known_model(setup.model), known_shape(setup.shape).gpu).basis

    def result(self, load: str, served: ServedDeployment, requests_per_s: float) -> SimulationResult:
        """What a deployment does at a rate."""
        key = (load, served, requests_per_s)
        if key not in self.results:
            self.results[key] = _result(self.findings.loads[load], served, requests_per_s)
        return self.results[key]


def _outcomes(finding: PublishedClaim, simulations: _Simulations) -> Iterator[ClaimOutcome]:
    match finding.evaluate:
        case Winner() as evaluation:
            yield from _winners(finding, evaluation, simulations)
        case Throughput() as evaluation:
            yield from _throughputs(finding, evaluation, simulations)
        case ClaimedLatency() as evaluation:
            yield from _latencies(finding, evaluation, simulations)


def _winners(finding: PublishedClaim, evaluation: Winner, simulations: _Simulations) -> Iterator[ClaimOutcome]:
    for tpsu in evaluation.tpsu:
        reached = {
            name: _best(simulations, evaluation.sweep, topologies, tpsu)
            for name, topologies in evaluation.groups.items()
        }
        known = {name: tpsg for name, tpsg in reached.items() if tpsg is not None}
        winner = max(known, key=known.__getitem__, default="none")
        ranking = ", ".join(f"{name} {tpsg:.0f}" for name, tpsg in sorted(known.items(), key=lambda item: -item[1]))
        holds = winner == evaluation.winner
        yield ClaimOutcome(
            finding, tpsu, "TPSU", simulations.basis(finding), ranking or "none", f"{evaluation.winner} first", holds
        )


def _throughputs(finding: PublishedClaim, evaluation: Throughput, simulations: _Simulations) -> Iterator[ClaimOutcome]:
    for tpsu in evaluation.tpsu:
        value = _best(simulations, evaluation.sweep, evaluation.of, tpsu)
        if evaluation.over and value is not None:
            other = _best(simulations, evaluation.sweep, evaluation.over, tpsu)
            value = None if other is None else value / other
        yield _judged(
            finding, tpsu, "TPSU", simulations.basis(finding), value, evaluation.published, evaluation.tolerance
        )


def _latencies(
    finding: PublishedClaim, evaluation: ClaimedLatency, simulations: _Simulations
) -> Iterator[ClaimOutcome]:
    rates = [(rate, rate, "requests/s") for rate in evaluation.requests_per_s]
    if evaluation.prefill_shares:
        most = _prefill_requests_per_s(simulations.findings.loads[evaluation.load], evaluation.of)
        rates += [(share, share * most, "of prefill capacity") for share in evaluation.prefill_shares]
    for at, rate, unit in rates:
        result = simulations.result(evaluation.load, evaluation.of, rate)
        value = result.estimate(evaluation.figure).mean
        if evaluation.over is not None:
            value /= simulations.result(evaluation.load, evaluation.over, rate).estimate(evaluation.figure).mean
        elif evaluation.over_figure is not None:
            value /= result.estimate(evaluation.over_figure).mean
        yield _judged(finding, at, unit, simulations.basis(finding), value, evaluation.published, evaluation.tolerance)


def _judged(
    finding: PublishedClaim, at: float, unit: str, basis: Basis, value: float | None, band: Band, tolerance: float
) -> ClaimOutcome:
    low, high = band
    least = None if low is None else low * (1 - tolerance)
    most = None if high is None else high * (1 + tolerance)
    holds = value is not None and (least is None or value >= least) and (most is None or value <= most)
    predicted = "not reached" if value is None else _text(value)
    return ClaimOutcome(finding, at, unit, basis, predicted, _band(least, most), holds, value)


def _band(least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return f"at most {_text(most)}" if most is not None else f"at least {_text(least or 0.0)}"
    return f"{_text(least)} to {_text(most)}"


def _text(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _best(simulations: _Simulations, sweep: str, topologies: Sequence[str], tpsu: float) -> float | None:
    return best_at([simulations.curve(sweep, topology) for topology in topologies], tpsu)


def _latency_model(under: Sweep | ClaimedLoad) -> LatencyModel:
    chosen, nodes = known_model(under.model), known_shape(under.shape)
    return latency_model_of(known_figures(chosen, nodes.gpu), chosen, nodes, under.conditions)


def _deployment(under: Sweep | ClaimedLoad, topology: str, policy: Policy = "queue") -> SimulatedDeployment:
    block_size = under.conditions.block_size or DEFAULT_BLOCK_SIZE
    chosen, nodes = known_model(under.model), known_shape(under.shape)
    return deployment(chosen, nodes, topology, policy=policy, block_size=block_size)


def _curve(sweep: Sweep, topology: str) -> Curve:
    workload = [RequestClass(sweep.input_tokens, sweep.output_tokens)]
    return concurrency_sweep(_deployment(sweep, topology), workload, sweep.concurrencies, _latency_model(sweep))


def _result(load: ClaimedLoad, served: ServedDeployment, requests_per_s: float) -> SimulationResult:
    return simulate(
        _deployment(load, served.topology, served.policy),
        [RequestClass(load.input_tokens, load.output_tokens)],
        (PoissonArrivals if load.arrival == "poisson" else ConstantArrivals)(requests_per_s),
        _latency_model(load),
        duration_s=load.duration_s,
        window=load.window,
    )


def _prefill_requests_per_s(load: ClaimedLoad, served: ServedDeployment) -> float:
    """What the prefill servers can do at most."""
    unit = _deployment(load, served.topology)
    server = _latency_model(load).server(unit.limits["prefill"].tensor_parallel_size)
    return unit.topology.servers()["prefill"].replicas / server.prefill_s(load.input_tokens)
