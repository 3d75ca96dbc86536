"""The fidelity report as cells of tables, as Markdown and as plain data."""

import json
from collections.abc import Iterator
from typing import Any

from llmd_oke.plots.comparison_texts import number, plain
from llmd_oke.tuning.fidelity.report import Entry, Errors, Group, Report, all_entries
from llmd_oke.tuning.fidelity.statements import Statement
from llmd_oke.tuning.fidelity.verdict import Verdict

SUMMARY = ("of", "metric", "points", "mean error", "rehearsed", "worst", "at")
"""`rehearsed` is the rehearsal's mean error, where measurements have one under the same load."""

STATEMENTS = ("published", "at", "range", "simulated", "outside by")
NOT_COUNTED = "Not counted."
ERROR = "Errors are simulated over measured, less one; mean errors are without their signs (MAPE)."


def about(report: Report) -> str:
    """What is held against what."""
    return (
        f"{report.model} on {report.gpu}: the event simulation with {report.figures}, under the loads of measurements. "
        f"{ERROR}"
    )


def title(group: Group) -> str:
    """What a section about the group is called: an image's name stays as it is."""
    return f"{group.title[0].upper()}{group.title[1:]}"


def heading(group: Group) -> str:
    """The group, and whether it counts."""
    quiet = "" if group.standing.counted else f" {NOT_COUNTED}"
    return f"{group.standing.about[0].upper()}{group.standing.about[1:]}.{quiet}"


def summary(group: Group) -> list[tuple[str, ...]]:
    """A line for each metric."""
    return [
        (
            errors.subject,
            f"{errors.metric.title} ({errors.metric.units})",
            str(len(errors.entries)),
            _mean(errors.mean_absolute if group.standing.has_mean else None),
            _mean(errors.rehearsed_mean_absolute if group.standing.has_mean else None),
            percent(errors.worst.compared.error),
            errors.worst.name,
        )
        for errors in group.metrics
    ]


def point_columns(group: Group, errors: Errors) -> tuple[str, ...]:
    """The columns of a metric's table."""
    bases = sorted({entry.case.simulated.basis.value for entry in errors.entries})
    seen = "rehearsed (calibrated)" if group.standing.name == "REHEARSED" else "measured"
    simulated = (f"simulated ({', '.join(bases)})", "error")
    rehearsed = ("rehearsed (calibrated)", "error") if _has_rehearsed(errors) else ()
    return (f"{errors.title}, {errors.metric.units}", seen, *simulated, *rehearsed)


def points(errors: Errors) -> list[tuple[str, ...]]:
    """A line for each load."""
    return [_point(entry, _has_rehearsed(errors)) for entry in errors.entries]


def statement_lines(report: Report) -> list[tuple[str, ...]]:
    """A line for each published statement and point."""
    return [
        (
            each.text,
            each.at,
            _range(each),
            f"{'not reached' if each.simulated is None else number(each.simulated)} ({each.basis.value})",
            outside(each),
        )
        for each in report.statements
    ]


def outside(statement: Statement) -> str:
    """How far the simulation is from the published range."""
    if statement.error is None:
        return "-"
    return percent(statement.error) if statement.error else "within"


def percent(share: float) -> str:
    """An error as a percentage, with its sign."""
    return f"{share:+.1%}"


def markdown(report: Report) -> str:
    """The whole report as Markdown."""
    return "\n".join(_markdown(report)) + "\n"


def as_json(report: Report, verdict: Verdict | None = None) -> dict[str, Any]:
    """The whole report as plain data, with the verdict where one was asked for."""
    return {
        "model": report.model,
        "gpu": report.gpu,
        "figures": report.figures,
        "groups": [_group_json(group) for group in report.groups],
        "points": list(_entries_json(report)),
        "statements": [_statement_json(each) for each in report.statements],
        "omitted": [str(each) for each in report.omitted],
        **({} if verdict is None else {"verdict": verdict.as_json()}),
    }


def json_lines(report: Report) -> str:
    """One line for each figure of each load."""
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in _entries_json(report))


def _mean(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _has_rehearsed(errors: Errors) -> bool:
    return any(entry.rehearsed for entry in errors.entries)


def _point(entry: Entry, with_rehearsed: bool) -> tuple[str, ...]:
    own = entry.compared
    cells = (entry.name, number(own.seen), number(own.predicted), percent(own.error))
    if not with_rehearsed:
        return cells
    other = entry.rehearsed
    return (*cells, *(("", "") if other is None else (number(other.predicted), percent(other.error))))


def _range(statement: Statement) -> str:
    least, most = (None if each is None else number(each) for each in statement.published)
    if least is None or most is None:
        return f"at most {most}" if least is None else f"at least {least}"
    return least if least == most else f"{least} to {most}"


def _markdown(report: Report) -> Iterator[str]:
    yield f"# Fidelity of simulated measurements: {plain(report.model)} on {plain(report.gpu)}\n"
    yield f"{plain(about(report))}\n"
    for group in report.groups:
        yield f"## {plain(title(group))}\n\n{plain(heading(group))}\n"
        yield from (f"- {plain(each)}" for each in group.circumstances)
        yield from _table(SUMMARY, summary(group))
        for errors in group.metrics:
            yield from _table(point_columns(group, errors), points(errors))
    if report.statements:
        yield "\n## Published statements"
        yield from _table(STATEMENTS, statement_lines(report))
    if report.omitted:
        yield "\n## Not compared\n"
        yield from (f"- {plain(str(each))}" for each in report.omitted)


def _table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"\n| {' | '.join(map(plain, columns))} |"
    yield f"|{'|'.join('---' for _ in columns)}|"
    yield from (f"| {' | '.join(map(plain, line))} |" for line in lines)


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "standing": group.standing.title,
        "image": group.image,
        "counted": group.standing.counted,
        "about": group.standing.about,
        "circumstances": group.circumstances,
        "metrics": [_errors_json(group, errors) for errors in group.metrics],
    }


def _errors_json(group: Group, errors: Errors) -> dict[str, Any]:
    return {
        "subject": errors.subject,
        "metric": errors.metric.name,
        "points": len(errors.entries),
        "mean_absolute_error": errors.mean_absolute if group.standing.has_mean else None,
        "rehearsed_mean_absolute_error": errors.rehearsed_mean_absolute if group.standing.has_mean else None,
        "worst_error": errors.worst.compared.error,
        "worst_at": errors.worst.name,
    }


def _entries_json(report: Report) -> Iterator[dict[str, Any]]:
    for group, errors, entry in all_entries(report.groups):
        reference = entry.case.reference
        yield {
            "standing": group.standing.title,
            "counted": group.standing.counted,
            "subject": errors.subject,
            "load": entry.name,
            "gpu": reference.gpu,
            "image": reference.image,
            "source": reference.origin.tool,
            "metric": errors.metric.name,
            "units": errors.metric.units,
            "reference": entry.compared.seen,
            "reference_basis": reference.basis.value,
            "simulated": entry.compared.predicted,
            "simulated_basis": entry.case.simulated.basis.value,
            "error": entry.compared.error,
            "rehearsed": entry.rehearsed.predicted if entry.rehearsed else None,
            "rehearsed_error": entry.rehearsed.error if entry.rehearsed else None,
        }


def _statement_json(statement: Statement) -> dict[str, Any]:
    return {
        "statement": statement.text,
        "source": statement.source,
        "at": statement.at,
        "published": list(statement.published),
        "simulated": statement.simulated,
        "simulated_basis": statement.basis.value,
        "outside_by": statement.error,
    }
