"""Measurements beside what is simulated under their loads."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.nodes import Node
from llmd_oke.errors import KitError
from llmd_oke.progress import Progress, SilentProgress, Ticker
from llmd_oke.results.errors import Compared, compared
from llmd_oke.results.row import Basis, Row
from llmd_oke.tuning.fidelity.left_out import unseen
from llmd_oke.tuning.fidelity.runs import Run
from llmd_oke.tuning.fidelity.same_load import Simulator, simulated, unsuitable
from llmd_oke.tuning.fidelity.standings import Known, Standing, alike
from llmd_oke.tuning.measurements.hygiene import Inspection, Rule, place
from llmd_oke.tuning.servers.conditions import AS_VLLM, DEFAULT_BLOCK_SIZE, Started, conditions_of
from llmd_oke.tuning.servers.figures import latency_model_of

_THROUGHPUT = ("output_tokens_per_s", "tpsg", "tpsu")
METRICS_BY_SUBJECT = {
    "end-to-end": (
        *("ttft_ms.mean", "ttft_ms.p95", "itl_ms.mean", "tpot_ms.mean", "e2e_ms.mean", "e2e_ms.p95"),
        *_THROUGHPUT,
    ),
    "prefill": ("ttft_ms.mean", "e2e_ms.mean", "input_tokens_per_s"),
    "decode": ("itl_ms.mean", "tpot_ms.mean", "e2e_ms.mean", *_THROUGHPUT),
}
"""What is compared, by the row's subject; shown in this order."""

SIMULATED_TOO = frozenset({Rule.MAX_NUM_SEQS, Rule.KEY_VALUE_CACHE})
"""Rules of hygiene that say that requests waited: a fit can't use such rows, but simulated requests wait too."""


@dataclass(frozen=True)
class Case:
    """One measurement, what the event simulation has under its load, and what a rehearsal had, where one was under it.

    For a standing of `REHEARSED`, `reference` is the rehearsal's row.
    """

    standing: Standing
    reference: Row
    simulated: Row
    rehearsed: Row | None = None

    @property
    def figures(self) -> list[Compared]:
        """The event simulation against the reference."""
        return list(compared(METRICS_BY_SUBJECT[self.reference.subject], self.simulated, self.reference))

    @property
    def rehearsed_figures(self) -> list[Compared]:
        """The rehearsal against the measurement."""
        if self.rehearsed is None:
            return []
        return list(compared(METRICS_BY_SUBJECT[self.reference.subject], self.rehearsed, self.reference))


@dataclass(frozen=True)
class Omitted:
    """A row that is not compared, and why."""

    row: Row
    why: str

    def __str__(self) -> str:
        return f"{place(self.row)}: {self.why}"


@dataclass(frozen=True)
class Held:
    """What is held against each other: all that is simulated, and what is not."""

    cases: tuple[Case, ...]
    omitted: tuple[Omitted, ...]


@dataclass(frozen=True)
class Subject:
    """A model on nodes, and the latency figures that are to be judged. `started` is what servers are taken to have been
    started with where a run doesn't tell.
    """

    model: Model
    node: Node
    known: Known
    started: Started = AS_VLLM

    def simulator(self, run: Run) -> Simulator:
        """What stands in for the deployment of a run."""
        own = conditions_of(run.row)
        told = run.conditions or (own if own.started_told else self.started.of(run.row.topology))
        cached = run.key_value_bytes_per_token
        latency = latency_model_of(self.known.figures, self.model, self.node, told, cached)
        block_size = told.block_size or DEFAULT_BLOCK_SIZE
        return Simulator(self.model, self.node, latency, self.known.basis(run.row), block_size)


def held_against(
    subject: Subject,
    runs: Sequence[Run],
    rehearsed: Sequence[Row] = (),
    inspection: Inspection | None = None,
    progress: Progress | None = None,
) -> Held:
    """Simulates each run's load, and each rehearsal's that no measurement was under.

    `inspection` is what hygiene found in the runs' rows: what can't be right is left out. Rehearsed rows have to be of
    the model, no bounds, and of loads that can be sent again, as runs have to.
    """
    ticker = Ticker(progress or SilentProgress())
    every = [*runs, *(Run(row=row) for row in dict.fromkeys(rehearsed))]
    whys = dict(_omissions(subject, every, inspection))
    kept = [run for run in runs if run.row not in whys]
    rehearsed = [run.row for run in every[len(runs) :] if run.row not in whys]
    alone = [Run(row=row) for row in rehearsed if not any(alike(row, run.row) for run in kept)]
    omitted = [Omitted(row, whys[row]) for row in dict.fromkeys(run.row for run in every) if row in whys]
    cases: list[Case] = []
    for run in (*kept, *alone):
        ticker.tell(f"{len(kept) + len(alone) - len(cases)} loads to go")
        try:
            cases.append(_case(subject, run, rehearsed))
        except KitError as error:
            omitted.append(Omitted(run.row, error.message))
    return Held((*cases, *_left_out(subject, cases)), tuple(omitted))


def _omissions(subject: Subject, runs: Iterable[Run], inspection: Inspection | None) -> Iterator[tuple[Row, str]]:
    """Why some rows can't be compared."""
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


def _case(subject: Subject, run: Run, rehearsed: Sequence[Row]) -> Case:
    row = run.row
    standing = subject.known.standing(row)
    found = simulated(row, subject.simulator(run), run.policy, run.window, run.lengths)
    other = next((each for each in rehearsed if alike(each, row)), None)
    return Case(standing, row, found, None if standing is Standing.REHEARSED else other)


def _left_out(subject: Subject, cases: Sequence[Case]) -> Iterator[Case]:
    """The points of the fit again, each simulated with a model that has not seen it."""
    if subject.known.fitted is None:
        return
    rows = [case.reference for case in cases if case.standing is Standing.IN_SAMPLE]
    base = latency_model_of(subject.known.figures, subject.model, subject.node)
    for row, latency in unseen(rows, base):
        simulator = replace(subject.simulator(Run(row=row)), latency=latency)
        yield Case(Standing.LEFT_OUT, row, simulated(row, simulator))
