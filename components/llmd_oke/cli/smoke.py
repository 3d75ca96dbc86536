"""`llmd-oke smoke`, `llmd-oke passport`: a short benchmark of a deployed stack, and a passport with its evidence.

Modules that load Pulumi are imported where they are needed, since `--help` and `bench` don't need them.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_bench.files import make_folder
from llmd_bench.run_context import RunContext

from llmd_oke import planning
from llmd_oke.cli import console, options
from llmd_oke.cli.rehearsals import run_rehearsed
from llmd_oke.operations.kubeconfig import cluster_kubeconfig
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.planning import Plan

if TYPE_CHECKING:
    from llmd_oke.operations.smoke import SmokeOutcome

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
    """Benchmark every model of a deployed stack, compare it with the stack's thresholds and store a report.

    Ends with exit code 1, and shows the reasons, if a threshold is missed.
    """
    if rehearse:
        run_rehearsed(project, stack, "smoke", {"--json": as_json, "--fetch": fetch}, reports)
    plan = planning.plan_stack_file(project, stack, router)
    how = run_context(plan, time_scale, tuple(simulated or ()), ran or ())
    folder = reports or project / "reports"
    make_folder(folder)
    if if_failed:
        with suppress(KitError):  # the update's own error follows
            outcomes = _fetched(stack, plan, folder)
            if not all(outcome.passed for outcome in outcomes):
                _show_tables(outcomes)
        return
    outcomes = _fetched(stack, plan, folder) if fetch else _measured(stack, plan, how, folder)
    if as_json:
        console.show_json({"stack": stack, "models": [outcome.summary for outcome in outcomes]})
    _show(outcomes, tables=not as_json)
    write_passports(stack, plan, folder)
    if not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(1)


@dataclass(frozen=True)
class UpdateBenchmark:
    """Smoke benchmark of an update: the summary of each model and the passports' paths. `failure` is the error if a
    threshold is missed, `error` the reason if the benchmark could not be run or read.
    """

    summaries: Sequence[Mapping[str, Any]] = ()
    passports: Sequence[Path] = ()
    failure: KitError | None = None
    error: KitError | None = None


def after_update(pulumi: PulumiCli, plan: Plan, *, failed: bool, as_json: bool) -> UpdateBenchmark:
    """Show the benchmark of an update, or run it if the stack file says so (`smoke.where: client`). `as_json` omits the
    tables. After a failed update the benchmark is shown only if it is the cause of the failure.

    A benchmark of the client that can't be run or read counts as a failure of the update; one in the cluster doesn't,
    as its Job is part of the update, which waits for it.
    """
    by_client = plan.smoke.where == "client"
    if plan.smoke.where == "none" or not plan.models or (failed and by_client):
        return UpdateBenchmark()
    reports = pulumi.project / "reports"
    try:
        with cluster_kubeconfig(pulumi, plan):
            if by_client:
                make_folder(reports)
                outcomes = _measured(pulumi.stack, plan, run_context(plan, 1.0, (), ()), reports)
            else:
                outcomes = _fetched(pulumi.stack, plan, reports)
            if failed and all(outcome.passed for outcome in outcomes):
                return UpdateBenchmark()
            _show(outcomes, tables=not as_json)
            passports = [] if failed else write_passports(pulumi.stack, plan, reports)
    except KitError as error:
        if failed:
            return UpdateBenchmark()
        console.show_error(error)
        return UpdateBenchmark(failure=error if by_client else None, error=error)
    missed = [_missed(outcome) for outcome in outcomes if not outcome.passed]
    failure = KitError("; ".join(missed)) if missed else None
    return UpdateBenchmark([outcome.summary for outcome in outcomes], passports, failure)


def _show_tables(outcomes: Sequence["SmokeOutcome"]) -> None:
    for outcome in outcomes:
        console.output().print(outcome.table)
        if outcome.report:
            console.show_line(f"report  {outcome.report}")


def _show(outcomes: Sequence["SmokeOutcome"], *, tables: bool) -> None:
    """Show the tables if wanted, and in any case the missed thresholds."""
    if tables:
        _show_tables(outcomes)
    for outcome in outcomes:
        if not outcome.passed:
            console.show_error(KitError(_missed(outcome)))


def _missed(outcome: "SmokeOutcome") -> str:
    return f"{outcome.name} did not pass: {'; '.join([', '.join(outcome.failed), *outcome.excuses])}"


def _fetched(stack: str, plan: Plan, reports: Path) -> list["SmokeOutcome"]:
    from llmd_oke.operations.smoke import fetch  # noqa: PLC0415

    return fetch(stack, plan, reports)


def _measured(stack: str, plan: Plan, how: RunContext, reports: Path) -> list["SmokeOutcome"]:
    from llmd_oke.operations.smoke import run_all  # noqa: PLC0415

    return run_all(stack, plan, how, reports, datetime.now(UTC), console.progress())


def run_context(plan: Plan, time_scale: float, simulated: tuple[str, ...], ran: Sequence[str]) -> RunContext:
    """Return the context of a benchmark from this machine: time scale, simulated parts, and versions of programs
    (`ran`) as NAME=VERSION.

    Raises:
        KitError: an element of `ran` contains no `=`.
    """
    if wrong := [text for text in ran if "=" not in text]:
        raise KitError(f"--ran {wrong[0]!r} says no version.", "Give NAME=VERSION.")
    from llmd_oke.operations.smoke import run_context_of  # noqa: PLC0415

    versions = dict(text.split("=", 1) for text in ran)
    return run_context_of(plan, time_scale, simulated, versions)


def passport(
    stack: options.Stack,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
    reports: options.Reports = None,
    rehearse: options.Rehearse = False,
) -> None:
    """Show the passport of each model of a deployed stack, renewed from its last benchmark and evaluation.

    It contains the configuration's hash, image digests, topology, proof of remote prefill, smoke benchmark, accuracy,
    price of a million tokens and cold-start time. Updates and evaluations write it beside the report.
    """
    if rehearse:
        run_rehearsed(project, stack, "passport", {"--json": as_json}, reports, time_scale=False, measures=False)
    from rich.markdown import Markdown  # noqa: PLC0415 - takes longer to load than the rest of rich

    from llmd_oke.operations.passport import issue_passports  # noqa: PLC0415

    files = issue_passports(stack, planning.plan_stack_file(project, stack), reports or project / "reports")
    if not files:
        raise KitError(
            f"{stack} has no benchmark of its present configuration.",
            f"Run one: llmd-oke smoke --stack {stack} (with --rehearse where it is rehearsed)",
        )
    if as_json:
        texts = [path.with_suffix(".json").read_text(encoding="utf-8") for path in files]
        typer.echo(f"[{','.join(texts)}]")
        return
    for path in files:
        console.output().print(Markdown(path.read_text(encoding="utf-8")))
        console.show_line(f"passport  {path}")


def write_passports(stack: str, plan: Plan, reports: Path) -> list[Path]:
    """Write the passports of a stack's models after a benchmark or an evaluation, show their paths and return them. If
    the cluster can't be read, a message is shown and no passport is written.
    """
    from llmd_oke.operations.passport import issue_passports  # noqa: PLC0415

    try:
        files = issue_passports(stack, plan, reports)
    except KitError as error:
        console.tell(f"no passport: {error.message}")
        return []
    for path in files:
        console.tell(f"passport  {path}")
    return files
