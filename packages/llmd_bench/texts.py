"""Texts of a comparison's tables, shared by terminal, Markdown and HTML, and escaping for Markdown."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from llmd_bench.comparison import Comparison, LoadComparison, Verdict

_MARKS = re.compile(r"[\\`*_\[\]|~]")


@dataclass(frozen=True)
class Line:
    """Line of a comparison's table: one metric with its values, change and verdict as texts."""

    metric: str
    a: str
    b: str
    change: str
    interval: str
    verdict: Verdict
    sure: bool
    """True if the verdict follows from repeated runs, with a confidence interval."""


COLUMNS = ("", "A", "B", "change", "95 % confidence", "")


def heading(load: LoadComparison) -> str:
    """Return a text with the load of a comparison, and the number of runs of each side."""
    return f"{load.load}; {_times(len(load.a))} of A, {_times(len(load.b))} of B"


def lines(load: LoadComparison) -> Iterator[Line]:
    """Yield a line of the comparison's table for each metric that both sides have."""
    for change in load.shown:
        interval = change.relative_interval
        shown = "" if interval is None else f"{min(interval):+.1%} … {max(interval):+.1%}"
        yield Line(
            metric=f"{change.metric.title} ({change.metric.units})",
            a=number(change.mean_a),
            b=number(change.mean_b),
            change="" if change.relative is None else f"{change.relative:+.1%}",
            interval="none: one run" if change.interval is None else shown,
            verdict=change.verdict,
            sure=change.interval is not None,
        )


def markdown(comparison: Comparison) -> str:
    """Return the whole comparison as Markdown."""
    return "\n".join(_markdown(comparison)) + "\n"


def _markdown(comparison: Comparison) -> Iterator[str]:
    yield f"# {plain(comparison.a.name)} against {plain(comparison.b.name)}\n"
    yield f"A is {plain(comparison.a.name)}, B is {plain(comparison.b.name)}.\n"
    yield from (f"- {plain(note)}" for note in comparison.notes)
    for load in comparison.loads:
        yield f"\n## {plain(heading(load))}\n"
        yield f"| {' | '.join(('metric', *COLUMNS[1:-1], 'B is'))} |"
        yield "|---|---:|---:|---:|---:|---|"
        for line in lines(load):
            yield f"| {line.metric} | {line.a} | {line.b} | {line.change} | {line.interval} | {line.verdict} |"


def number(value: float) -> str:
    """Return a figure as text with about four significant digits, and without decimals from a thousand on."""
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}"


def _times(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def plain(text: str) -> str:
    """Return the text escaped for Markdown and for HTML made from the Markdown: in one line, without markup, links or
    tags.
    """
    return _MARKS.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))


def code(text: str) -> str:
    """Return the text as inline code of Markdown, also valid in tables."""
    return f"`{' '.join(text.split()).replace('`', '').replace('|', '')}`"
