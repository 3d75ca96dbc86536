"""Published claims about prefill/decode disaggregation, as data that the event simulation is checked against.

`values/tuning/published-claims.yaml` has each claim with its source, how it is evaluated, how far a prediction may
be off, and where the model is known to miss it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from llmd_base.progress import Progress, SilentProgress
from llmd_base.row import Basis, Row
from llmd_oke.catalogue.conditions import DEFAULT_BLOCK_SIZE, Conditions
from llmd_oke.catalogue.latency_figures import LatencyFigures, known_figures
from llmd_oke.values import Entry, entry_reader
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
from llmd_tuner.simulation.simulation import simulate, simulate_users, tpsg_at

CheckVerdict = Literal["hit", "known miss", "miss", "unexpected hit"]
"""Verdict on a published claim; with `unexpected hit` the simulation agrees with a claim that is listed as a known
miss, so that the list is out of date.
"""

Band = tuple[float | None, float | None]
"""Smallest and largest value that the source of a claim states; None where it sets no limit."""


class ServersUnderLoad(Entry):
    """Servers of a model on a shape, with the lengths in tokens of the requests that they receive. `conditions` are the
    settings of the servers.
    """

    model: str
    shape: str
    conditions: Conditions
    input_tokens: int
    output_tokens: int

    @property
    def figures(self) -> LatencyFigures:
        """Latency figures of the kit for the model and the GPU of the shape."""
        return known_figures(known_model(self.model), known_shape(self.shape).gpu)

    @property
    def latency(self) -> LatencyModel:
        """Latency model of the servers, from the kit's latency figures."""
        return latency_model_of(self.figures, known_model(self.model), known_shape(self.shape), self.conditions)

    @property
    def workload(self) -> list[RequestClass]:
        """Workload that the simulation sends to the servers: requests of equal lengths."""
        return [RequestClass(self.input_tokens, self.output_tokens)]

    def deployment(self, topology: str, policy: Policy = "queue") -> SimulatedDeployment:
        """Return the deployment to simulate for a topology in short form, such as `8p-tp1-4d-tp2`."""
        block_size = self.conditions.block_size or DEFAULT_BLOCK_SIZE
        node = known_shape(self.shape)
        return deployment(known_model(self.model), node, topology, policy=policy, block_size=block_size)


class Sweep(ServersUnderLoad):
    """Simulation of topologies, each as a single unit behind one router, in a closed loop with rising concurrency."""

    concurrencies: tuple[int, ...]
    topologies: tuple[str, ...]


class ClaimedLoad(ServersUnderLoad):
    """Load of an open loop, on which published claims are checked: requests at a constant or Poisson rate for
    `duration_s` seconds.
    """

    arrival: Literal["constant", "poisson"]
    duration_s: float
    window: Window


class ServedDeployment(Entry):
    """Deployment under a load, with the policy by which its router picks servers."""

    topology: str
    policy: Policy


class Winner(Entry):
    """Claim that, at some speeds for each user (`tpsu`), a topology of the group `winner` has more output tokens per
    second and GPU than those of all other groups.
    """

    kind: Literal["winner"]
    sweep: str
    groups: dict[str, tuple[str, ...]]
    winner: str
    tpsu: tuple[float, ...]


class Throughput(Entry):
    """Claim about the output tokens per second and GPU of the best of some topologies, or about their ratio to the best
    of others.
    """

    kind: Literal["throughput"]
    sweep: str
    of: tuple[str, ...]
    over: tuple[str, ...] = ()
    tpsu: tuple[float, ...]
    published: Band
    tolerance: float


class ClaimedLatency(Entry):
    """Claim about a figure of a row, such as `e2e_ms.mean`, or about its ratio to that of another deployment or to
    another figure of the same row. Rates are requests per second, or shares of the maximum of the prefill servers of
    `of`.
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
    """Published claim that the simulation is checked against. `known_misses` has the reasons why the simulation misses
    it, by the point at which it does.
    """

    name: str
    statement: str
    source: str
    evaluate: Evaluation
    known_misses: dict[float, str] = Field(default_factory=dict[float, str])


class PublishedClaims(Entry):
    """Content of `values/tuning/published-claims.yaml`: claims about prefill/decode disaggregation, and the sweeps and
    loads that several of them share; `definitions` has YAML anchors.
    """

    definitions: dict[str, object]
    sweeps: dict[str, Sweep]
    loads: dict[str, ClaimedLoad]
    claims: tuple[PublishedClaim, ...]


published_claims = entry_reader("tuning", "published-claims", PublishedClaims)
"""Return the published claims about prefill/decode disaggregation that the simulation is checked against, from
`values/tuning/published-claims.yaml`.
"""


@dataclass(frozen=True)
class ClaimOutcome:
    """Comparison of the simulation with a published claim at one point, such as a speed or a request rate. `predicted`
    is the simulated value, with the basis of the latency figures behind it; `accepted` is the claimed range with its
    tolerance.
    """

    claim: PublishedClaim
    at: float
    unit: str
    basis: Basis
    predicted: str
    accepted: str
    holds: bool
    value: float | None = None
    """Simulated value as a number; None for claims about winners, and where the simulation doesn't reach the point."""

    @property
    def why(self) -> str | None:
        """Known reason why the simulation disagrees with the claim at this point; None without one."""
        return self.claim.known_misses.get(self.at)

    @property
    def verdict(self) -> CheckVerdict:
        """Verdict on the simulation: whether it agrees with the claim, and whether that was expected."""
        if self.why is None:
            return "hit" if self.holds else "miss"
        return "unexpected hit" if self.holds else "known miss"


def check_claims(claims: Iterable[PublishedClaim], progress: Progress | None = None) -> list[ClaimOutcome]:
    """Simulate what published claims are about, and judge the simulation at each of their points. The simulations,
    which claims share, take some seconds.
    """
    listener = progress or SilentProgress()
    outcomes: list[ClaimOutcome] = []
    for claim in claims:
        listener.step(f"simulating {claim.name}")
        match claim.evaluate:
            case Winner() as evaluation:
                outcomes += _winners(claim, evaluation)
            case Throughput() as evaluation:
                outcomes += _throughputs(claim, evaluation)
            case ClaimedLatency() as evaluation:
                outcomes += _latencies(claim, evaluation)
    return outcomes


def _winners(claim: PublishedClaim, evaluation: Winner) -> Iterator[ClaimOutcome]:
    basis = published_claims().sweeps[evaluation.sweep].figures.basis
    for tpsu in evaluation.tpsu:
        reached = {name: _best(evaluation.sweep, topologies, tpsu) for name, topologies in evaluation.groups.items()}
        known = {name: tpsg for name, tpsg in reached.items() if tpsg is not None}
        winner = max(known, key=known.__getitem__, default="none")
        ranking = ", ".join(f"{name} {tpsg:.0f}" for name, tpsg in sorted(known.items(), key=lambda item: -item[1]))
        accepted, holds = f"{evaluation.winner} first", winner == evaluation.winner
        yield ClaimOutcome(claim, tpsu, "TPSU", basis, ranking or "none", accepted, holds)


def _throughputs(claim: PublishedClaim, evaluation: Throughput) -> Iterator[ClaimOutcome]:
    basis = published_claims().sweeps[evaluation.sweep].figures.basis
    for tpsu in evaluation.tpsu:
        value = _best(evaluation.sweep, evaluation.of, tpsu)
        if evaluation.over and value is not None:
            other = _best(evaluation.sweep, evaluation.over, tpsu)
            value = None if other is None else value / other
        yield _judged(claim, tpsu, "TPSU", basis, value, evaluation)


def _latencies(claim: PublishedClaim, evaluation: ClaimedLatency) -> Iterator[ClaimOutcome]:
    load = published_claims().loads[evaluation.load]
    rates = [(rate, rate, "requests/s") for rate in evaluation.requests_per_s]
    if evaluation.prefill_shares:
        unit = load.deployment(evaluation.of.topology)
        prefill_s = load.latency.server(unit.limits["prefill"].parallelism).prefill_s(load.input_tokens)
        most = unit.topology.servers()["prefill"].replicas / prefill_s
        rates += [(share, share * most, "of prefill capacity") for share in evaluation.prefill_shares]
    for at, rate, unit_name in rates:
        result = _result(evaluation.load, evaluation.of.topology, evaluation.of.policy, rate)
        value = result.estimate(evaluation.figure).mean
        if other := evaluation.over:
            other_result = _result(evaluation.load, other.topology, other.policy, rate)
            value /= other_result.estimate(evaluation.figure).mean
        elif evaluation.over_figure is not None:
            value /= result.estimate(evaluation.over_figure).mean
        yield _judged(claim, at, unit_name, load.figures.basis, value, evaluation)


def _judged(
    claim: PublishedClaim,
    at: float,
    unit: str,
    basis: Basis,
    value: float | None,
    evaluation: Throughput | ClaimedLatency,
) -> ClaimOutcome:
    low, high = evaluation.published
    least = None if low is None else low * (1 - evaluation.tolerance)
    most = None if high is None else high * (1 + evaluation.tolerance)
    holds = value is not None and (least is None or value >= least) and (most is None or value <= most)
    if least is None or most is None:
        accepted = f"at most {_text(most)}" if most is not None else f"at least {_text(least or 0.0)}"
    else:
        accepted = f"{_text(least)} to {_text(most)}"
    predicted = "not reached" if value is None else _text(value)
    return ClaimOutcome(claim, at, unit, basis, predicted, accepted, holds, value)


def _text(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _best(sweep: str, topologies: Sequence[str], tpsu: float) -> float | None:
    """Return the most output tokens per second and GPU of any topology at so many per user, or None."""
    levels = published_claims().sweeps[sweep].concurrencies
    reached = (tpsg_at((_row(sweep, topology, level) for level in levels), tpsu) for topology in topologies)
    return max((tpsg for tpsg in reached if tpsg is not None), default=None)


@cache
def _row(name: str, topology: str, concurrency: int) -> Row:
    sweep = published_claims().sweeps[name]
    return simulate_users(sweep.deployment(topology), sweep.workload, concurrency, sweep.latency)


@cache
def _result(name: str, topology: str, policy: Policy, requests_per_s: float) -> SimulationResult:
    load = published_claims().loads[name]
    return simulate(
        load.deployment(topology, policy),
        load.workload,
        (PoissonArrivals if load.arrival == "poisson" else ConstantArrivals)(requests_per_s),
        load.latency,
        duration_s=load.duration_s,
        window=load.window,
    )
