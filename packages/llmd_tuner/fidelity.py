"""Comparison of measurements with simulations under the same loads.

All requests of a simulation have the measured mean lengths, unless the run says how they vary. A server that was
measured by itself is simulated as one of a deployment without disaggregation; prompts of decode measurements are in its
prefix cache, as DecodeBench fills it and as prompts of two tokens nearly are. Published measurements of whole
deployments are in `values/tuning/published-runs.yaml`; published statements give a range at a speed instead of a row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache

from llmd_base.errors import KitError
from llmd_base.progress import Progress, SilentProgress, Ticker
from llmd_base.row import Basis, Row
from llmd_bench.comparison import ForecastError, forecast_errors
from llmd_bench.deployment import aggregated_short_form
from llmd_bench.loads import RequestedLoad
from llmd_bench.loads import deployment as deployment_of
from llmd_oke.catalogue.conditions import DEFAULT_BLOCK_SIZE, Conditions, conditions_of
from llmd_oke.catalogue.latency_figures import LatencyFigures
from llmd_oke.catalogue.models import CatalogueModel
from llmd_oke.catalogue.shapes import NodeHardware
from llmd_oke.config.engine import DEFAULT_ENGINE
from llmd_oke.planning.conditions import VLLM_DEFAULTS, DeployedConditions
from llmd_oke.values import Entry, entry_reader, required_entry

from llmd_tuner.calibration import left_out_models
from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import latency_model_of
from llmd_tuner.measurements import parallelism_of
from llmd_tuner.published_claims import Throughput, check_claims, published_claims
from llmd_tuner.row_filters import Inspection, Rule, place
from llmd_tuner.search_inputs import known_shape
from llmd_tuner.simulation.deployment import (
    ClosedLoopArrivals,
    ConstantArrivals,
    PoissonArrivals,
    Policy,
    RequestClass,
    SimulatedDeployment,
    deployment,
)
from llmd_tuner.simulation.result import TRIMMED_SHARE, Window
from llmd_tuner.simulation.simulation import simulate, simulate_users

TRIMMED_NOTES = ("counted: ", "steady state: ")
"""Beginnings of the notes in this kit's rows that say which part of a run was evaluated."""

ALIKE = (1.0,)
"""Lengths of a run's requests as shares of their mean lengths, if all requests are equally long."""

_THROUGHPUT = ("output_tokens_per_s", "tpsg", "tpsu")

METRICS_BY_SUBJECT = {
    "end-to-end": (
        *("ttft_ms.mean", "ttft_ms.p95", "itl_ms.mean", "tpot_ms.mean", "e2e_ms.mean", "e2e_ms.p95"),
        *_THROUGHPUT,
    ),
    "prefill": ("ttft_ms.mean", "e2e_ms.mean", "input_tokens_per_s"),
    "decode": ("itl_ms.mean", "tpot_ms.mean", "e2e_ms.mean", *_THROUGHPUT),
}
"""Compared metrics by the subject of a row (whole deployment, prefill or decode server), in the order of display."""

SIMULATED_TOO = frozenset({Rule.MAX_NUM_SEQS, Rule.KEY_VALUE_CACHE})
"""Rules that find rows in which requests waited: a fit can't use such rows, but they can be compared with a simulation,
in which requests wait too.
"""


class PublishedRun(Entry):
    """Published measurement of a deployment.

    `policy` is how its router picks servers, `window` the part of its time that was evaluated (where None, the usual
    part of the tool that measured it). `conditions` are the settings of its servers, None where not published.
    `key_value_bytes_per_token` is set where its KV cache has another number format than the catalogue's. `lengths` are
    the lengths of its requests as shares of the row's mean lengths, all equally frequent.
    """

    row: Row
    policy: Policy = "queue"
    window: Window | None = None
    conditions: Conditions | None = None
    key_value_bytes_per_token: float | None = None
    lengths: tuple[float, ...] = (1.0,)


class PublishedRuns(Entry):
    """Content of `values/tuning/published-runs.yaml`; `definitions` has YAML anchors that several runs share."""

    definitions: dict[str, object]
    runs: tuple[PublishedRun, ...]


@cache
def published_runs(model: str, gpu: str) -> tuple[PublishedRun, ...]:
    """Return the published measurements of whole deployments or single servers with a model on a GPU product."""
    published = required_entry("tuning", "published-runs", PublishedRuns)
    return tuple(run for run in published.runs if (run.row.model, run.row.gpu) == (model, gpu))


class Standing(Enum):
    """Groups of measurements by their relation to the latency figures that are judged. Errors are never averaged over
    several groups; only groups that are `counted` say how accurate the figures are.
    """

    HELD_OUT = "held out", True, "same model, GPU and image; the latency figures were not fitted to these"
    LEFT_OUT = "left out", True, "points of the fit, each predicted by a fit without its load (prefill: its TP)"
    IN_SAMPLE = "in sample", True, "the latency figures were fitted to these"
    OTHER_IMAGE = "another image", False, "same model and GPU, but another vLLM image than the figures' own"
    UNKNOWN_IMAGE = "image not told", False, "same model and GPU; which vLLM image was measured is not told"
    ASSUMED = "assumptions", False, "the simulation rests on bounds or assumptions here: no forecast"
    SET_ASIDE = "set aside", False, "points that are known not to be what they seem"
    OTHER_ACCELERATOR = "another accelerator", False, "measured on another GPU than the figures': no error of theirs"
    REHEARSED = "rehearsed only", False, "no measurement: event simulation against simulated servers of a rehearsal"

    def __init__(self, title: str, counted: bool, about: str) -> None:
        self.title = title
        self.counted = counted
        self.about = about

    @property
    def has_mean(self) -> bool:
        """True if a mean error of the group makes sense, which it doesn't for measurements of another GPU."""
        return self is not Standing.OTHER_ACCELERATOR


@dataclass(frozen=True)
class KnownFigures:
    """Latency figures, and the measurements behind them.

    `fitted` are the rows that the figures were fitted to, None where these are not known. In that case measurements of
    single servers with the figures' image are assumed to be among them, so that errors on fitted points are never
    presented as errors on unseen ones. `set_aside` are published rows that are known not to be what their source says.
    """

    figures: LatencyFigures
    fitted: tuple[Row, ...] | None
    set_aside: tuple[Row, ...] = ()

    @property
    def images(self) -> frozenset[str]:
        """vLLM images that the latency figures were measured with."""
        own = {self.figures.image} if self.figures.image else {row.image for row in self.fitted or ()}
        return frozenset(image for image in own if image)

    def basis(self, row: Row) -> Basis:
        """Return the basis of a simulation of a row's deployment: `bound` if the latency figures of a role that the
        deployment has (prefill, decode) are hardware limits or assumptions, otherwise `calibrated`.
        """
        sections = {"prefill": self.figures.prefill.basis, "decode": self.figures.decode.basis}
        needed = sections.values() if row.subject == "end-to-end" else [sections[row.subject]]
        return Basis.BOUND if Basis.BOUND in needed else Basis.CALIBRATED

    def standing(self, row: Row) -> Standing:
        """Return the group to which a row's measurement belongs by its relation to the latency figures, such as fitted
        or held out.
        """
        if row.basis is not Basis.MEASURED:
            return Standing.REHEARSED
        if row.gpu != self.figures.gpu:
            return Standing.OTHER_ACCELERATOR
        if has_alike(self.set_aside, row):
            return Standing.SET_ASIDE
        if self.basis(row) is Basis.BOUND:
            return Standing.ASSUMED
        alone_and_of_image = row.subject != "end-to-end" and (not self.images or row.image in self.images)
        if alone_and_of_image if self.fitted is None else has_alike(self.fitted, row):
            return Standing.IN_SAMPLE
        if row.image is None:
            return Standing.UNKNOWN_IMAGE
        return Standing.HELD_OUT if row.image in self.images else Standing.OTHER_IMAGE


def has_alike(rows: Sequence[Row], row: Row) -> bool:
    """Tell whether one of `rows` has the same deployment, image and load as `row`."""
    return any(other.image == row.image and alike(other, row) for other in rows)


def alike(row: Row, other: Row) -> bool:
    """Tell whether two rows have the same deployment and load."""
    return RequestedLoad(row, deployment_of(row)).same(RequestedLoad(other, deployment_of(other)))


class SimulationLimits(Entry):
    """Limits of a simulation that repeats a measurement, from `values/tuning/fidelity.yaml`.

    `most_requests` is the maximum number of requests; longer measurements are not compared. `default_duration_s` is the
    assumed duration in seconds of an open loop whose source doesn't give one.
    """

    most_requests: int
    default_duration_s: float


limits = entry_reader("tuning", "fidelity", SimulationLimits)
"""Return the limits of simulations that repeat measurements, from `values/tuning/fidelity.yaml`."""


@dataclass(frozen=True)
class Simulator:
    """Inputs of the event simulation for a model on nodes: hardware, latency model, and the basis of its figures.
    `block_size` is in tokens of KV cache.
    """

    model: CatalogueModel
    node: NodeHardware
    latency: LatencyModel
    basis: Basis = Basis.CALIBRATED
    block_size: int = DEFAULT_BLOCK_SIZE


def unsuitable(row: Row, window: Window | None = None) -> str | None:
    """Return why the load of a row can't be simulated as a whole; None if it can.

    Simulating only a part of a long run would be another load: under overload, queues grow for as long as the run
    lasts.
    """
    if row.arrival == "trace":
        return "the times of its trace are not in the row"
    if row.arrival == "closed" and not row.concurrency:
        return "its concurrency is not told"
    if row.arrival != "closed" and not row.offered_requests_per_s:
        return "its rate is not told"
    if row.subject == "end-to-end" and row.topology is None:
        return "its topology is not told"
    if row.subject != "end-to-end" and not row.tensor_parallel_size:
        return "its tensor parallel size is not told"
    requests, most = _requests(row, window or _window(row)), limits().most_requests
    if requests <= most or (row.arrival == "closed" and not row.requests):
        return None
    return f"{requests:,} requests would have to be simulated, at most {most:,} are"


def simulated(
    row: Row,
    simulator: Simulator,
    policy: Policy = "queue",
    window: Window | None = None,
    lengths: Sequence[float] = ALIKE,
) -> Row:
    """Simulate the deployment of a row under the row's load, and return the row of the simulation.

    The steady part of the run is evaluated if the row's notes say that this was done for the measurement, else the
    whole run; `window` overrides both. `lengths` are the lengths of requests as shares of the means, all equally
    frequent.

    Raises:
        KitError: the deployment or the load can't be simulated.
    """
    servers = _servers(row, simulator, policy)
    # What a prefix cache answered are prompts that are cached whole.
    cached = 1.0 if row.subject == "decode" else row.prefix_cache_hit_share or 0.0
    workload: list[RequestClass] = []
    for length in lengths:
        prompt, answer = max(1, round(row.input_tokens * length)), max(1, round(row.output_tokens * length))
        shares = ((1 - cached, 0), (cached, prompt))
        workload += (RequestClass(prompt, answer, share, tokens) for share, tokens in shares if share > 0)
    if row.arrival == "closed" and not row.requests:
        result = simulate_users(servers, workload, _users(row), simulator.latency)
        return result.model_copy(update={"basis": simulator.basis})
    counted = window or _window(row)
    return simulate(
        servers,
        workload,
        _arrivals(row),
        simulator.latency,
        requests=_requests(row, counted),
        window=counted,
        basis=simulator.basis,
    ).row


def _window(row: Row) -> Window:
    return "steady" if any(note.startswith(TRIMMED_NOTES) for note in row.notes) else "whole"


def _servers(row: Row, simulator: Simulator, policy: Policy) -> SimulatedDeployment:
    alone = parallelism_of(row)
    topology = row.topology if row.subject == "end-to-end" else alone and aggregated_short_form(alone, 1)
    return deployment(
        simulator.model,
        simulator.node,
        topology or "",
        copies=row.copies,
        policy=policy,
        max_num_seqs=row.max_num_seqs or DEFAULT_ENGINE.max_num_seqs,
        block_size=simulator.block_size,
    )


def _users(row: Row) -> int:
    return max(1, round(row.concurrency or 0))


def _arrivals(row: Row) -> ClosedLoopArrivals | ConstantArrivals | PoissonArrivals:
    if row.arrival == "closed":
        return ClosedLoopArrivals(_users(row))
    rate = row.offered_requests_per_s or 0.0
    if row.arrival == "constant":
        return ConstantArrivals(rate)
    if row.arrival == "poisson":
        return PoissonArrivals(rate)
    raise KitError("Recorded arrivals can't be sent again: their times are not in the row.")


def _requests(row: Row, window: Window) -> int:
    """Return how many requests to send: those that were measured, and those that a steady window leaves out."""
    measured = row.requests or round(limits().default_duration_s * (row.offered_requests_per_s or 0.0))
    sent = measured / (1 - 2 * TRIMMED_SHARE) if window == "steady" else measured
    return max(1, round(sent))


@dataclass(frozen=True)
class Case:
    """Measurement with its simulation under the same load, and with the rehearsal under that load, where there is one.

    In the group `REHEARSED`, which has no measurement, `reference` is the rehearsal's row.
    """

    standing: Standing
    reference: Row
    simulated: Row
    rehearsed: Row | None = None

    @property
    def figures(self) -> list[ForecastError]:
        """Relative errors of the event simulation's latencies and rates against those of the reference."""
        return list(forecast_errors(METRICS_BY_SUBJECT[self.reference.subject], self.simulated, self.reference))

    @property
    def rehearsed_figures(self) -> list[ForecastError]:
        """Relative errors of the rehearsal's latencies and rates against the measured ones; empty without a
        rehearsal.
        """
        if self.rehearsed is None:
            return []
        return list(forecast_errors(METRICS_BY_SUBJECT[self.reference.subject], self.rehearsed, self.reference))


@dataclass(frozen=True)
class Omission:
    """Measured row that was left out of the comparison with simulations, and the reason."""

    row: Row
    why: str

    def __str__(self) -> str:
        return f"{place(self.row)}: {self.why}"


@dataclass(frozen=True)
class FidelityComparison:
    """Result of a comparison: measurements with their simulations, and the rows that were left out."""

    cases: tuple[Case, ...]
    omitted: tuple[Omission, ...]


@dataclass(frozen=True)
class FidelityContext:
    """Model, nodes and latency figures that are judged. `started` are the settings assumed for servers of runs that
    don't give them.
    """

    model: CatalogueModel
    node: NodeHardware
    known: KnownFigures
    started: DeployedConditions = VLLM_DEFAULTS

    def simulator(self, run: PublishedRun) -> Simulator:
        """Return the inputs of the simulation of a published run's deployment."""
        own = conditions_of(run.row)
        conditions = run.conditions or (own if own.started_told else self.started.of(run.row.topology))
        cached = run.key_value_bytes_per_token
        latency = latency_model_of(self.known.figures, self.model, self.node, conditions, cached)
        block_size = conditions.block_size or DEFAULT_BLOCK_SIZE
        return Simulator(self.model, self.node, latency, self.known.basis(run.row), block_size)


def compare(
    subject: FidelityContext,
    runs: Sequence[PublishedRun],
    rehearsed: Sequence[Row] = (),
    inspection: Inspection | None = None,
    progress: Progress | None = None,
) -> FidelityComparison:
    """Simulate the load of each run, and the load of each rehearsed row without a measurement.

    `inspection` has the findings of the row filters: rejected rows are left out. Rehearsed rows are also left out if
    they are of another model than `subject`, have bounds as figures, or have a load that can't be simulated.
    """
    ticker = Ticker(progress or SilentProgress())
    every = [*runs, *(PublishedRun(row=row) for row in dict.fromkeys(rehearsed))]
    whys = dict(_omissions(subject, every, inspection))
    measured = [run for run in runs if run.row not in whys]
    rehearsed = [run.row for run in every[len(runs) :] if run.row not in whys]
    alone = [PublishedRun(row=row) for row in rehearsed if not any(alike(row, run.row) for run in measured)]
    omitted = [Omission(row, whys[row]) for row in dict.fromkeys(run.row for run in every) if row in whys]
    cases: list[Case] = []
    for run in (*measured, *alone):
        ticker.tell(f"{len(measured) + len(alone) - len(cases)} loads to go")
        row, standing = run.row, subject.known.standing(run.row)
        others = (other for other in rehearsed if standing is not Standing.REHEARSED and alike(other, row))
        try:
            simulation = simulated(row, subject.simulator(run), run.policy, run.window, run.lengths)
            cases.append(Case(standing, row, simulation, next(others, None)))
        except KitError as error:
            omitted.append(Omission(run.row, error.message))
    return FidelityComparison((*cases, *_left_out(subject, cases)), tuple(omitted))


def _omissions(
    subject: FidelityContext, runs: Iterable[PublishedRun], inspection: Inspection | None
) -> Iterator[tuple[Row, str]]:
    """Yield the rows that can't be compared, and why."""
    for finding in inspection.rejected if inspection else ():
        if finding.rule not in SIMULATED_TOO:
            yield finding.row, f"{finding.rule}: {finding.why}"
    for run in runs:
        row = run.row
        if row.model not in {subject.model.name, subject.model.repository}:
            yield row, f"it is of {row.model}, the latency figures are of {subject.model.name}"
        elif row.basis is Basis.BOUND:
            yield row, "a bound is no measurement"
        elif why := unsuitable(row, run.window):
            yield row, why


def _left_out(subject: FidelityContext, cases: Sequence[Case]) -> Iterator[Case]:
    """Simulate the points of the fit again, each with a model that has not seen it."""
    if subject.known.fitted is None:
        return
    rows = [case.reference for case in cases if case.standing is Standing.IN_SAMPLE]
    base = latency_model_of(subject.known.figures, subject.model, subject.node)
    for row, latency in left_out_models(rows, base):
        simulator = replace(subject.simulator(PublishedRun(row=row)), latency=latency)
        yield Case(Standing.LEFT_OUT, row, simulated(row, simulator))


@dataclass(frozen=True)
class ClaimSimulation:
    """Published statement at one point `at`, such as a speed, with the published range of a figure, and the simulated
    figure.
    """

    text: str
    source: str
    at: str
    published: tuple[float | None, float | None]
    simulated: float | None
    basis: Basis

    @property
    def error(self) -> float | None:
        """Distance of the simulated value from the published range, as a share of the range's nearer end: 0 within the
        range, None where the simulation doesn't reach the point.
        """
        if self.simulated is None:
            return None
        least, most = self.published
        if least is not None and self.simulated < least:
            return self.simulated / least - 1
        return self.simulated / most - 1 if most is not None and self.simulated > most else 0.0


def statements(model: str, gpu: str, progress: Progress | None = None) -> tuple[ClaimSimulation, ...]:
    """Simulate the published statements about a model on a GPU with the kit's own latency figures; takes
    some seconds.
    """
    published = published_claims()
    throughputs = {
        claim.name: claim.evaluate
        for claim in published.claims
        if isinstance(claim.evaluate, Throughput)
        and (sweep := published.sweeps[claim.evaluate.sweep]).model == model
        and known_shape(sweep.shape).gpu.product == gpu
    }
    selected = [claim for claim in published.claims if claim.name in throughputs]
    return tuple(
        ClaimSimulation(
            outcome.claim.statement,
            outcome.claim.source,
            f"{outcome.at:g} {outcome.unit}",
            throughputs[outcome.claim.name].published,
            outcome.value,
            outcome.basis,
        )
        for outcome in check_claims(selected, progress)
    )
