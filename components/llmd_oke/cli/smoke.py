"""`llmd-oke smoke`: a short benchmark of what is deployed."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmd_oke import planning
from llmd_oke.cli import console, options, passport
from llmd_oke.errors import KitError
from llmd_oke.operations.kubeconfigs import leading_to_cluster
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.planning import Plan
from llmd_oke.results.files import make_folder

if TYPE_CHECKING:
    from llmd_oke.bench.deployment.circumstances import Circumstances
    from llmd_oke.experiments.deployed.smoke import Outcome

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
    router: options.Router = None,
    rehearse: options.Rehearse = False,
) -> None:
    """Benchmark every model of a deployed stack, hold it against the stack's thresholds and store a report.

    Ends with exit code 1, and says why, where a threshold is not met.
    """
    if rehearse:
        words = ["smoke", *(["--json"] if as_json else []), *(["--fetch"] if fetch else [])]
        raise console.Told(_rehearsed(project, stack, words, reports))
    how = circumstances(time_scale, tuple(simulated or ()), ran or ())
    plan = planning.plan_stack_file(project, stack, router)
    folder = reports or project / "reports"
    make_folder(folder)
    if if_failed:
        _show_failed(stack, plan, folder)
        return
    outcomes = _fetched(stack, plan, folder) if fetch else _measured(stack, plan, how, folder)
    if as_json:
        typer.echo(json.dumps({"stack": stack, "models": [outcome.summary for outcome in outcomes]}, indent=2))
    _show(outcomes, tables=not as_json)
    passport.issue(stack, plan, folder)
    if not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(1)


def _rehearsed(project: Path, stack: str, words: Sequence[str], reports: Path | None) -> int:
    from llmd_oke.cli.inside import run_inside  # noqa: PLC0415 - not needed without a rehearsal
    from llmd_oke.rehearsal.rehearsal import running_settings  # noqa: PLC0415 - the same

    scale = ["--time-scale", str(running_settings(project, stack).time_scale or 1.0)]
    return run_inside(project, stack, [*words, *scale], reports)


@dataclass(frozen=True)
class Benchmarked:
    """What the benchmark of an update said; `error` is why it could not be run or read.

    That decides nothing where the benchmark is the cluster's: the update itself waited for that.
    """

    outcomes: Sequence["Outcome"] = ()
    passports: Sequence[Path] = ()
    error: KitError | None = None
    decides: bool = True

    @property
    def failure(self) -> KitError | None:
        """Why the update is not as good as was asked, None where it is."""
        missed = [_missed(outcome) for outcome in self.outcomes if not outcome.passed]
        return (self.error if self.decides else None) or (KitError("; ".join(missed)) if missed else None)


def after_update(pulumi: PulumiCli, plan: Plan, *, failed: bool, as_json: bool) -> Benchmarked:
    """Shows the benchmark that belongs to an update, or runs it where it belongs to the client; `as_json` leaves the
    tables out. After a failed update it is the benchmark only if that is what failed.
    """
    if plan.smoke.where == "none" or not plan.models or (failed and plan.smoke.where == "client"):
        return Benchmarked()
    try:
        with leading_to_cluster(pulumi, plan):
            return _benchmarked(pulumi.stack, plan, pulumi.project / "reports", failed=failed, as_json=as_json)
    except KitError as error:
        if failed:
            return Benchmarked()
        console.show_error(error)
        return Benchmarked(error=error, decides=plan.smoke.where == "client")


def _benchmarked(stack: str, plan: Plan, reports: Path, *, failed: bool, as_json: bool) -> Benchmarked:
    outcomes = _after_update(stack, plan, reports)
    if failed and all(outcome.passed for outcome in outcomes):
        return Benchmarked()
    _show(outcomes, tables=not as_json)
    return Benchmarked(outcomes, () if failed else passport.issue(stack, plan, reports))


def _after_update(stack: str, plan: Plan, reports: Path) -> list["Outcome"]:
    if plan.smoke.where == "cluster":
        return _fetched(stack, plan, reports)
    make_folder(reports)
    return _measured(stack, plan, circumstances(1.0, (), ()), reports)


def _show_failed(stack: str, plan: Plan, reports: Path) -> None:
    """Shows what the benchmark in the cluster found, if an update failed by that; its error comes after."""
    with suppress(KitError):
        outcomes = _fetched(stack, plan, reports)
        if not all(outcome.passed for outcome in outcomes):
            _show_tables(outcomes)


def _show_tables(outcomes: Sequence["Outcome"]) -> None:
    for outcome in outcomes:
        console.output().print(outcome.table)
        if outcome.report:
            console.output().print(f"report  {outcome.report}", soft_wrap=True)


def _show(outcomes: Sequence["Outcome"], *, tables: bool) -> None:
    """Shows results where tables are wanted, and in any case what was not passed."""
    if tables:
        _show_tables(outcomes)
    for outcome in outcomes:
        if not outcome.passed:
            console.show_error(KitError(_missed(outcome)))


def _missed(outcome: "Outcome") -> str:
    return f"{outcome.name} did not pass: {'; '.join([', '.join(outcome.failed), *outcome.excuses])}"


def _fetched(stack: str, plan: Plan, reports: Path) -> list["Outcome"]:
    from llmd_oke.experiments.deployed.smoke_jobs import fetch as fetch_results  # noqa: PLC0415 - other commands don't need it

    return fetch_results(stack, plan, reports)


def _measured(stack: str, plan: Plan, how: "Circumstances", reports: Path) -> list["Outcome"]:
    from llmd_oke.experiments.deployed.smoke import run_all  # noqa: PLC0415 - other commands don't need it

    return run_all(stack, plan, how, reports, datetime.now(UTC), console.progress())


def circumstances(time_scale: float, simulated: tuple[str, ...], ran: Sequence[str]) -> "Circumstances":
    """What a benchmark from this machine must know; `ran` has the versions of programs, NAME=VERSION.

    Raises:
        KitError: one of these is no version.
    """
    from llmd_oke.bench.deployment.circumstances import Circumstances  # noqa: PLC0415 - other commands don't need it
    from llmd_oke.results.row import Basis  # noqa: PLC0415 - other commands don't need it

    if wrong := [text for text in ran if "=" not in text]:
        raise KitError(f"--ran {wrong[0]!r} says no version.", "Give NAME=VERSION.")
    versions = dict(text.split("=", 1) for text in ran)
    return Circumstances(time_scale, Basis.CALIBRATED if simulated else Basis.MEASURED, simulated, versions)
