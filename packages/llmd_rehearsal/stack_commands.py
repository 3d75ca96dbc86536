"""Commands of `llmd-oke rehearse` that plan a stack, and operate on it with the engine."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke.cli import console, options
from llmd_oke.cli.check import show_plan, shows_all
from llmd_oke.cli.plan_summary import show_summary
from rich.markup import escape
from rich.table import Table

from llmd_rehearsal import engine_operations, output, rehearsal
from llmd_rehearsal.cluster_plan import programs_in_pods
from llmd_rehearsal.inventory import IN_TESTS, LANGUAGES, fetch_charts
from llmd_rehearsal.local_cluster import command_line
from llmd_rehearsal.oci_plugin.faults import parse_rule
from llmd_rehearsal.programs import ensure
from llmd_rehearsal.rehearsal import Prepared
from llmd_rehearsal.rehearsal_settings import DEFAULT_STACK, RehearsalSettings, running_settings
from llmd_rehearsal.running_rehearsals import phase, run_command

if TYPE_CHECKING:
    from llmd_rehearsal.real_vllm.checks import ServerCheck

_OPERATING = {"preview": "previewing an update of", "destroy": "destroying"}


def rehearse_stack(
    project: Path,
    stack: str,
    settings: RehearsalSettings,
    faults: Sequence[str],
    progress: Progress,
    *,
    benchmark: bool,
    as_json: bool,
) -> int:
    """Plan, deploy, serve and benchmark a stack on this machine, show the result, and return the exit code.

    Args:
        project: folder of Pulumi.yaml.
        stack: name of the stack.
        settings: options of the rehearsal.
        faults: rules for requests to the simulated OCI, and for nodes, that fail (`--fault`).
        progress: receives the steps.
        benchmark: whether to show the smoke benchmark's result, and to run it first if it runs on the client.
        as_json: whether to show the result as JSON.

    Raises:
        KitError: a rule is invalid, the stack can't be rehearsed, or its update failed.
    """
    rules = [parse_rule(text) for text in faults]
    prepared = rehearsal.prepare(project, stack, settings, progress)
    _tell_release(prepared, progress)
    if not as_json:
        show = show_plan if shows_all() else show_summary
        show(stack, prepared.plan, release=output.release_text(prepared.inventory.release))
    rehearsal.ask_for_faults(prepared, rules)
    if settings.after is not None:
        progress.step(output.changes_text(engine_operations.deploy_before(prepared, settings.after, progress)))
    update = _update(prepared, progress)
    simulated = prepared.simulated(update["placeholders"])
    started_s = time.time()
    status = _benchmark(prepared, simulated, as_json=as_json) if benchmark else 0
    checks: Sequence[ServerCheck] = ()
    if prepared.real and benchmark:
        from llmd_rehearsal.real_vllm.report import check_servers  # noqa: PLC0415 - it loads Pulumi

        checks = check_servers(prepared, prepared.real)
    status = status or int(not all(check.passed for check in checks))
    latest = project / "reports" / stack / "latest"
    report = latest if latest.exists() and latest.lstat().st_mtime >= started_s else None
    if as_json:
        found = [dataclasses.asdict(check) for check in checks]
        console.show_json({**output.rehearsal_document(prepared, update, report), "vllm": found})
    else:
        table = Table.grid(padding=(0, 2))
        for name, text in output.facts(prepared, update["placeholders"], report):
            table.add_row(f"[dim]{name}[/]", escape(text))
        console.output().print(table)
        output.show_checks(checks)
    return status


def _update(prepared: Prepared, progress: Progress) -> dict[str, Any]:
    """Update a rehearsed stack with the engine and return the result. If the update fails, and a benchmark in the
    cluster may be the cause, its results are shown.

    Raises:
        KitError: the update failed.
    """
    engine_operations.pre_scale_down(prepared, progress)
    progress.step("updating the stack with the real engine")
    try:
        update = engine_operations.run_engine(prepared, "up", progress)
    except KitError:
        if prepared.plan.smoke.where == "cluster":
            _smoke(prepared, ["--fetch", "--if-failed"], as_json=True)
        raise
    progress.step(output.changes_text(update))
    return update


def preview(
    stack: options.Stack = DEFAULT_STACK, project: options.Project = options.HERE, as_json: options.Json = False
) -> None:
    """Show what an update of the rehearsed stack would change."""
    _operate("preview", stack, project, as_json=as_json)


def destroy(
    stack: options.Stack = DEFAULT_STACK,
    project: options.Project = options.HERE,
    unprotect: options.Unprotect = False,
    as_json: options.Json = False,
) -> None:
    """Destroy the rehearsed stack's resources with the engine; the local cluster's control plane stays up.

    As for a real stack, protected clusters and pools are only destroyed with --unprotect.
    """
    _operate("destroy", stack, project, as_json=as_json, unprotect=unprotect)


def programs(
    tests: Annotated[
        bool, typer.Option("--tests", help="Also the programs and charts that only the kit's own tests use.")
    ] = False,
    languages: Annotated[
        bool,
        typer.Option(
            "--languages", help="Also Pulumi's plug-ins for projects in TypeScript and YAML, and for policy packs."
        ),
    ] = False,
) -> None:
    """Find the programs that rehearsals need, on PATH or in the cache, and download or build missing ones.

    LLMD_OKE_DOWNLOADS names a mirror of release files; with `none` everything is built.
    """
    progress = console.progress()
    inventory = rehearsal.have_programs(progress)
    if text := output.substitution_text(inventory.release):
        progress.step(text)
    if tests:
        fetch_charts(progress)
    further = (*(IN_TESTS if tests else ()), *(LANGUAGES.values() if languages else ()))
    output.show_programs([*inventory.programs.values(), *ensure(further, progress).values()])


def _operate(operation: str, stack: str, project: Path, *, as_json: bool, unprotect: bool = False) -> None:
    progress = console.progress()
    progress.step(f"{_OPERATING[operation]} the stack {stack}")
    was_up = phase(project, stack) == "ready"
    prepared = rehearsal.prepare(project, stack, running_settings(project, stack), progress)
    _tell_release(prepared, progress)
    rehearsal.ask_for_faults(prepared, ())
    done = engine_operations.run_engine(prepared, operation, progress, unprotect=unprotect)
    progress.step(output.changes_text(done))
    if not was_up:
        end = command_line(project, f"down --stack {stack}")
        progress.step(f"the rehearsal of {stack} is up since; to end it: {end}")
    if as_json:
        console.show_json({**done, **output.releases_document(prepared.inventory.release)})


def _tell_release(prepared: Prepared, progress: Progress) -> None:
    """Report which release is rehearsed in place of the stack's, if it isn't the stack's own."""
    if text := output.substitution_text(prepared.inventory.release):
        progress.step(text)


def _benchmark(prepared: Prepared, simulated: Sequence[str], *, as_json: bool) -> int:
    """Run `llmd-oke smoke` inside the rehearsal, with `--fetch` if the benchmark runs in the cluster; return the exit
    code.
    """
    if prepared.plan.smoke.where == "none":
        return 0
    if prepared.plan.smoke.where == "cluster":
        return _smoke(prepared, ["--fetch"], as_json=as_json)
    parts = [word for part in simulated for word in ("--simulated", part)]
    scale = ["--time-scale", str(prepared.time_scale.scale)]
    programs = prepared.inventory.programs
    ran = [word for name in programs_in_pods(prepared.plan) for word in ("--ran", f"{name}={programs[name].version}")]
    return _smoke(prepared, [*scale, *parts, *ran], as_json=as_json)


def _smoke(prepared: Prepared, arguments: Sequence[str], *, as_json: bool) -> int:
    options = ["--stack", prepared.stack, "--project", str(prepared.project), "--router", prepared.router]
    argv = [sys.executable, "-m", "llmd_oke", "smoke", *options, *arguments]
    environment = console.inherited_environment()
    stream = sys.stderr if as_json else None
    return run_command(prepared.project, prepared.stack, argv, env=environment, output=stream)
