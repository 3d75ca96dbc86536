"""The fidelity report: measurements and simulations by group, subject and metric, with mean and worst errors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from llmd_oke.results.errors import Compared, mean_absolute_error
from llmd_oke.results.loads import deployment
from llmd_oke.results.metrics import METRICS, Metric
from llmd_oke.results.row import Row
from llmd_oke.tuning.fidelity.cases import METRICS_BY_SUBJECT, Case, Omitted
from llmd_oke.tuning.fidelity.standings import Standing
from llmd_oke.tuning.fidelity.statements import Statement


@dataclass(frozen=True)
class Entry:
    """One figure of one case; `rehearsed` is the same figure of a rehearsal, against the same measurement."""

    case: Case
    compared: Compared
    rehearsed: Compared | None

    @property
    def name(self) -> str:
        """The deployment and its load."""
        return named(self.case.reference)


@dataclass(frozen=True)
class Errors:
    """All figures of one metric in one group, of whole deployments or of servers of one role, which are never mixed."""

    subject: str
    metric: Metric
    entries: tuple[Entry, ...]

    @property
    def title(self) -> str:
        """Of what it is, and the metric: `decode TPSG`."""
        return f"{self.subject} {self.metric.title}"

    @property
    def mean_absolute(self) -> float:
        """MAPE as a share."""
        return mean_absolute_error([entry.compared for entry in self.entries])

    @property
    def worst(self) -> Entry:
        """What is furthest off."""
        return max(self.entries, key=lambda entry: abs(entry.compared.error))

    @property
    def rehearsed_mean_absolute(self) -> float | None:
        """MAPE of the rehearsal, where there was one."""
        found = [entry.rehearsed for entry in self.entries if entry.rehearsed]
        return mean_absolute_error(found) if found else None


@dataclass(frozen=True)
class Group:
    """The cases of one standing; of another image, those of one image."""

    standing: Standing
    cases: tuple[Case, ...]
    image: str | None = None

    @property
    def title(self) -> str:
        """What to call it."""
        return self.standing.title if self.image is None else f"{self.standing.title}: {self.image}"

    @cached_property
    def metrics(self) -> tuple[Errors, ...]:
        """What can be compared, metric by metric."""
        return tuple(self._metrics())

    @property
    def circumstances(self) -> list[str]:
        """On what, with what and by whom the references were measured, and what is to be known of them."""
        rows = [case.reference for case in self.cases]
        seen = dict.fromkeys(f"{row.gpu}, {row.image or 'image not told'}, {row.origin.tool}" for row in rows)
        return [*seen, *dict.fromkeys(note for row in rows for note in row.notes)]

    def _metrics(self) -> Iterator[Errors]:
        entries: dict[tuple[str, str], list[Entry]] = {}
        for case in self.cases:
            for entry in _entries(case):
                entries.setdefault((case.reference.subject, entry.compared.metric.name), []).append(entry)
        for subject, names in METRICS_BY_SUBJECT.items():
            for name in names:
                if own := entries.get((subject, name)):
                    yield Errors(subject, METRICS[name], tuple(own))


@dataclass(frozen=True)
class Report:
    """All of it. `figures` says which latency figures were judged, with the images behind them."""

    model: str
    gpu: str
    figures: str
    cases: tuple[Case, ...]
    omitted: tuple[Omitted, ...] = ()
    statements: tuple[Statement, ...] = ()

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups that have cases, what counts first."""
        found: dict[tuple[Standing, str | None], list[Case]] = {}
        for case in self.cases:
            image = case.reference.image if case.standing is Standing.OTHER_IMAGE else None
            found.setdefault((case.standing, image), []).append(case)
        order = list(Standing)
        keys = sorted(found, key=lambda key: order.index(key[0]))
        return tuple(Group(standing, tuple(found[standing, image]), image) for standing, image in keys)

    def beyond(self, most_error: float) -> list[tuple[Group, Errors]]:
        """The metrics of counted groups whose mean absolute error is larger."""
        return [
            (group, errors)
            for group in self.groups
            if group.standing.counted
            for errors in group.metrics
            if errors.mean_absolute > most_error
        ]

    @property
    def counted(self) -> bool:
        """Whether there is anything whose errors count."""
        return any(group.standing.counted and group.metrics for group in self.groups)


def named(row: Row) -> str:
    """A deployment and its load in a few words: `decode tp2 2/256 C 64`, `8p-tp1-2d-tp4 5151/281 45/s`."""
    role = "" if row.subject == "end-to-end" else f"{row.subject} "
    level = f"C {row.concurrency:g}" if row.arrival == "closed" else f"{row.offered_requests_per_s:g}/s"
    return f"{role}{deployment(row)} {row.input_tokens:.0f}/{row.output_tokens:.0f} {level}"


def _entries(case: Case) -> Iterator[Entry]:
    rehearsed = {each.metric.name: each for each in case.rehearsed_figures}
    for each in case.figures:
        yield Entry(case, each, rehearsed.get(each.metric.name))


def all_entries(groups: Sequence[Group]) -> Iterator[tuple[Group, Errors, Entry]]:
    """Every figure of every group."""
    for group in groups:
        for errors in group.metrics:
            yield from ((group, errors, entry) for entry in errors.entries)
