"""Checks of the event simulation against published findings: what it predicts at each point, and whether that holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llmd_oke.progress import Progress, SilentProgress
from llmd_oke.results.row import Basis
from llmd_oke.tuning.proving.findings import Band, Finding, Findings, Latency, Load, Served, Sweep, Throughput, Winner
from llmd_oke.tuning.search.asking import known_figures, known_model, known_shape
from llmd_oke.tuning.servers.conditions import DEFAULT_BLOCK_SIZE
from llmd_oke.tuning.servers.figures import latency_model_of
from llmd_oke.tuning.servers.latency import LatencyModel
from llmd_oke.tuning.simulation.arrivals import ConstantRate, PoissonRate, RequestClass
from llmd_oke.tuning.simulation.deployment import Deployment, Policy, deployment
from llmd_oke.tuning.simulation.result import SimulationResult
from llmd_oke.tuning.simulation.simulation import simulate
from llmd_oke.tuning.simulation.sweeps import Curve, best_at, concurrency_sweep

Verdict = Literal["hit", "known miss", "miss", "unexpected hit"]
"""An unexpected hit is listed as a known miss and holds none the less: the list is out of date."""


@dataclass(frozen=True)
class Outcome:
    """One finding at one point. `predicted` is the event simulation's, with the basis of the latency figures behind it;
    `accepted` includes the tolerance.
    """

    finding: Finding
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
    def verdict(self) -> Verdict:
        """Whether the prediction holds, and whether that was known."""
        if self.why is None:
            return "hit" if self.holds else "miss"
        return "unexpected hit" if self.holds else "known miss"


def check_findings(findings: Findings, progress: Progress | None = None) -> list[Outcome]:
    """Evaluate every finding at every point; takes some seconds for simulations, which findings share."""
    listener = progress or SilentProgress()
    bench = _Bench(findings)
    outcomes: list[Outcome] = []
    for finding in findings.findings:
        listener.step(f"simulating {finding.name}")
        outcomes += _outcomes(finding, bench)
    return outcomes


@dataclass
class _Bench:
    """Simulations that were done already."""

    findings: Findings
    curves: dict[str, dict[str, Curve]] = field(default_factory=dict[str, dict[str, Curve]])
    results: dict[tuple[str, Served, float], SimulationResult] = field(
        default_factory=dict[tuple[str, Served, float], SimulationResult]
    )

    def curve(self, sweep: str, topology: str) -> Curve:
        """The curve of a topology in a sweep."""
        known = self.curves.setdefault(sweep, {})
        if topology not in known:
            known[topology] = _curve(self.findings.sweeps[sweep], topology)
        return known[topology]

    def basis(self, finding: Finding) -> Basis:
        """Calibrated where all latency figures are, bound where some are limits or assumptions."""
        asked = finding.evaluate
        subject = self.findings.loads[asked.load] if isinstance(asked, Latency) else self.findings.sweeps[asked.sweep]
        figures = known_figures(known_model(subject.model), known_shape(subject.shape))
        calibrated = figures.prefill.basis is figures.decode.basis is Basis.CALIBRATED
        return Basis.CALIBRATED if calibrated else Basis.BOUND

    def result(self, load: str, served: Served, requests_per_s: float) -> SimulationResult:
        """What a deployment does at a rate."""
        key = (load, served, requests_per_s)
        if key not in self.results:
            self.results[key] = _result(self.findings.loads[load], served, requests_per_s)
        return self.results[key]


def _outcomes(finding: Finding, bench: _Bench) -> Iterator[Outcome]:
    match finding.evaluate:
        case Winner() as asked:
            yield from _winners(finding, asked, bench)
        case Throughput() as asked:
            yield from _throughputs(finding, asked, bench)
        case Latency() as asked:
            yield from _latencies(finding, asked, bench)


def _winners(finding: Finding, asked: Winner, bench: _Bench) -> Iterator[Outcome]:
    for tpsu in asked.tpsu:
        reached = {name: _best(bench, asked.sweep, topologies, tpsu) for name, topologies in asked.groups.items()}
        known = {name: tpsg for name, tpsg in reached.items() if tpsg is not None}
        winner = max(known, key=known.__getitem__, default="none")
        told = ", ".join(f"{name} {tpsg:.0f}" for name, tpsg in sorted(known.items(), key=lambda each: -each[1]))
        holds = winner == asked.winner
        yield Outcome(finding, tpsu, "TPSU", bench.basis(finding), told or "none", f"{asked.winner} first", holds)


def _throughputs(finding: Finding, asked: Throughput, bench: _Bench) -> Iterator[Outcome]:
    for tpsu in asked.tpsu:
        value = _best(bench, asked.sweep, asked.of, tpsu)
        if asked.over and value is not None:
            other = _best(bench, asked.sweep, asked.over, tpsu)
            value = None if other is None else value / other
        yield _judged(finding, tpsu, "TPSU", bench.basis(finding), value, asked.published, asked.tolerance)


def _latencies(finding: Finding, asked: Latency, bench: _Bench) -> Iterator[Outcome]:
    rates = [(rate, rate, "requests/s") for rate in asked.requests_per_s]
    if asked.prefill_shares:
        most = _prefill_requests_per_s(bench.findings.loads[asked.load], asked.of)
        rates += [(share, share * most, "of prefill capacity") for share in asked.prefill_shares]
    for at, rate, unit in rates:
        result = bench.result(asked.load, asked.of, rate)
        value = result.estimate(asked.figure).mean
        if asked.over is not None:
            value /= bench.result(asked.load, asked.over, rate).estimate(asked.figure).mean
        elif asked.over_figure is not None:
            value /= result.estimate(asked.over_figure).mean
        yield _judged(finding, at, unit, bench.basis(finding), value, asked.published, asked.tolerance)


def _judged(
    finding: Finding, at: float, unit: str, basis: Basis, value: float | None, band: Band, tolerance: float
) -> Outcome:
    low, high = band
    least = None if low is None else low * (1 - tolerance)
    most = None if high is None else high * (1 + tolerance)
    holds = value is not None and (least is None or value >= least) and (most is None or value <= most)
    predicted = "not reached" if value is None else _text(value)
    return Outcome(finding, at, unit, basis, predicted, _band(least, most), holds, value)


def _band(least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return f"at most {_text(most)}" if most is not None else f"at least {_text(least or 0.0)}"
    return f"{_text(least)} to {_text(most)}"


def _text(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _best(bench: _Bench, sweep: str, topologies: Sequence[str], tpsu: float) -> float | None:
    return best_at([bench.curve(sweep, topology) for topology in topologies], tpsu)


def _latency_model(under: Sweep | Load) -> LatencyModel:
    chosen, nodes = known_model(under.model), known_shape(under.shape)
    return latency_model_of(known_figures(chosen, nodes), chosen, nodes, under.conditions)


def _deployment(under: Sweep | Load, topology: str, policy: Policy = "queue") -> Deployment:
    block_size = under.conditions.block_size or DEFAULT_BLOCK_SIZE
    chosen, nodes = known_model(under.model), known_shape(under.shape)
    return deployment(chosen, nodes, topology, policy=policy, block_size=block_size)


def _curve(sweep: Sweep, topology: str) -> Curve:
    workload = [RequestClass(sweep.input_tokens, sweep.output_tokens)]
    return concurrency_sweep(_deployment(sweep, topology), workload, sweep.concurrencies, _latency_model(sweep))


def _result(load: Load, served: Served, requests_per_s: float) -> SimulationResult:
    return simulate(
        _deployment(load, served.topology, served.policy),
        [RequestClass(load.input_tokens, load.output_tokens)],
        (PoissonRate if load.arrival == "poisson" else ConstantRate)(requests_per_s),
        _latency_model(load),
        duration_s=load.duration_s,
        window=load.window,
    )


def _prefill_requests_per_s(load: Load, served: Served) -> float:
    """What the prefill servers can do at most."""
    unit = _deployment(load, served.topology)
    server = _latency_model(load).server(unit.limits["prefill"].tensor_parallel_size)
    return unit.topology.servers()["prefill"].replicas / server.prefill_s(load.input_tokens)
