"""`llmd-oke smoke`: a short benchmark of what is deployed."""

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmd_oke import planning
from llmd_oke.cli import console, options, passport
from llmd_oke.errors import KitError
from llmd_oke.planning import Plan
from llmd_oke.results.files import make_folder

if TYPE_CHECKING:
    from llmd_oke.bench.circumstances import Circumstances
    from llmd_oke.experiments.smoke import Outcome

Ran = Annotated[
    list[str] | None,
    typer.Option("--ran", help="Program that ran in another version than the release's: NAME=VERSION; several times."),
]


def smoke(
    stack: options.Stack,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Measure nothing: read what the benchmark in the cluster found.")
    ] = False,
    if_failed: Annotated[bool, typer.Option("--if-failed", help="Say nothing unless it failed.", hidden=True)] = False,
    time_scale: options.TimeScale = 1.0,
    simulated: options.Simulated = None,
    ran: Ran = None,
    reports: options.Reports = None,
    release: options.Release = None,
) -> None:
    """Benchmark every model of a deployed stack, hold it against the stack's thresholds and store a report.

    Ends with exit code 1, and says why, where a threshold is not met.
    """
    how = circumstances(time_scale, tuple(simulated or ()), ran or ())
    plan = planning.plan_stack_file(project, stack, release)
    folder = reports or project / "reports"
    make_folder(folder)
    if if_failed:
        _show_failed(stack, plan, folder)
        return
    outcomes = _fetched(stack, plan, folder) if fetch else _measured(stack, plan, how, folder)
    passed = show(stack, outcomes, as_json=as_json)
    passport.issue(stack, plan, folder)
    if not passed:
        raise typer.Exit(1)


def after_update(stack: str, project: Path, plan: Plan, *, failed: bool) -> None:
    """Shows the benchmark that belongs to an update, or runs it where it belongs to the client.

    After a failed update it shows the benchmark only if that is what failed.
    """
    if plan.smoke.where == "none" or not plan.models:
        return
    if plan.smoke.where == "client":
        if not failed:
            smoke(stack, project)
        return
    if failed:
        _show_failed(stack, plan, project / "reports")
        return
    try:
        show(stack, _fetched(stack, plan, project / "reports"), as_json=False)
        passport.issue(stack, plan, project / "reports")
    except KitError as error:
        console.show_error(error)


def _show_failed(stack: str, plan: Plan, reports: Path) -> None:
    """Shows what the benchmark in the cluster found, if that is what an update failed by."""
    with suppress(KitError):
        outcomes = _fetched(stack, plan, reports)
        if not all(outcome.passed for outcome in outcomes):
            show(stack, outcomes, as_json=False)


def show(stack: str, outcomes: Sequence["Outcome"], *, as_json: bool) -> bool:
    """Shows results, and what was not passed; gives whether all was."""
    if as_json:
        typer.echo(json.dumps({"stack": stack, "models": [outcome.summary for outcome in outcomes]}, indent=2))
    else:
        for outcome in outcomes:
            console.output().print(outcome.table)
            if outcome.report:
                console.output().print(f"report  {outcome.report}", soft_wrap=True)
    for outcome in outcomes:
        if not outcome.passed:
            console.show_error(KitError(f"{outcome.name} did not pass: {', '.join(outcome.failed)}"))
    return all(outcome.passed for outcome in outcomes)


def _fetched(stack: str, plan: Plan, reports: Path) -> list["Outcome"]:
    from llmd_oke.experiments.jobs_smoke import fetch as fetch_results  # noqa: PLC0415 - other commands don't need it

    return fetch_results(stack, plan, reports)


def _measured(stack: str, plan: Plan, how: "Circumstances", reports: Path) -> list["Outcome"]:
    from llmd_oke.experiments.smoke import run_all  # noqa: PLC0415 - other commands don't need it

    return run_all(stack, plan, how, reports, datetime.now(UTC), console.progress())


def circumstances(time_scale: float, simulated: tuple[str, ...], ran: Sequence[str]) -> "Circumstances":
    """What a benchmark from this machine must know; `ran` has the versions of programs, NAME=VERSION.

    Raises:
        KitError: one of these is no version.
    """
    from llmd_oke.bench.circumstances import Circumstances  # noqa: PLC0415 - other commands don't need it
    from llmd_oke.results.row import Basis  # noqa: PLC0415 - other commands don't need it

    if wrong := [text for text in ran if "=" not in text]:
        raise KitError(f"--ran {wrong[0]!r} says no version.", "Give NAME=VERSION.")
    versions = dict(text.split("=", 1) for text in ran)
    return Circumstances(time_scale, Basis.CALIBRATED if simulated else Basis.MEASURED, simulated, versions)
