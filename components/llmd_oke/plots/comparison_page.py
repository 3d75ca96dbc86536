"""A comparison as one self-contained HTML page with its charts."""

from collections.abc import Iterator

from llmd_oke.plots.comparison_texts import COLUMNS, Line, heading, lines
from llmd_oke.plots.page import Cell, Section, Table, Tone, page
from llmd_oke.plots.results import distribution_section, latency_section, pareto_section
from llmd_oke.plots.series import Samples
from llmd_oke.results.comparison import Comparison, LoadComparison, Verdict
from llmd_oke.results.loads import deployment
from llmd_oke.results.sides import Loaded

_TONES: dict[Verdict, Tone] = {"better": "good", "worse": "bad", "unclear": "quiet", "equal": "quiet"}


def comparison_page(comparison: Comparison, a: Loaded, b: Loaded) -> str:
    """The page of a comparison; `a` and `b` are what was loaded for its sides.

    Raises:
        KitError: matplotlib is not installed.
    """
    title = f"{comparison.a.name} against {comparison.b.name}"
    return page(title, _sections(comparison, a, b))


def _sections(comparison: Comparison, a: Loaded, b: Loaded) -> list[Section]:
    """Charts go before the tables of several loads, and behind the table of one."""
    named = f"A is {comparison.a.name}, B is {comparison.b.name}."
    opening = Section("What is compared", "\n\n".join((named, *comparison.notes)))
    tables = [Section(heading(load), table=_table(load)) for load in comparison.loads]
    charts = list(_charts(comparison, a, b))
    return [opening, *charts, *tables] if len(tables) > 1 else [opening, *tables, *charts]


def _charts(comparison: Comparison, a: Loaded, b: Loaded) -> Iterator[Section]:
    names = _names(comparison)
    rows = dict(zip(names, (comparison.a.rows, comparison.b.rows), strict=True))
    single = [(name, each.basis, each.latencies()) for name, each in zip(names, (a, b), strict=True)]
    ttft = [Samples(name, latencies.ttft_ms, basis) for name, basis, latencies in single]
    itl = [Samples(name, latencies.itl_ms, basis) for name, basis, latencies in single]
    sections = (pareto_section(rows), latency_section(rows), distribution_section(ttft, itl))
    return (section for section in sections if section)


def _names(comparison: Comparison) -> tuple[str, str]:
    """How charts call the two: by what ran, where that is one deployment each and not the same."""
    ran = [list(dict.fromkeys(map(deployment, side.rows))) for side in (comparison.a, comparison.b)]
    if ran[0] != ran[1] and all(len(each) == 1 for each in ran):
        return f"A: {ran[0][0]}", f"B: {ran[1][0]}"
    return f"A: {comparison.a.name}", f"B: {comparison.b.name}"


def _table(load: LoadComparison) -> Table:
    rows = [
        (
            line.metric,
            line.a,
            line.b,
            Cell(line.change, _tone(line)),
            Cell(line.interval, "quiet"),
            Cell(line.verdict, _tone(line)),
        )
        for line in lines(load)
    ]
    return Table(("Metric", *COLUMNS[1:-1], "B is"), rows)


def _tone(line: Line) -> Tone:
    """Colour is for what is sure: a change between two single runs has none."""
    return _TONES[line.verdict] if line.sure else ""
