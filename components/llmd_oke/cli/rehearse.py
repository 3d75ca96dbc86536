"""`llmd-oke rehearse`: the whole job on this machine, without cloud or GPU."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke.cli import console, options, plan_view, rehearse_view
from llmd_oke.errors import KitError
from llmd_oke.rehearsal import making_room, rehearsal
from llmd_oke.rehearsal.inventory import IN_PODS
from llmd_oke.rehearsal.oci_plugin.faults import asked
from llmd_oke.rehearsal.rehearsal import Prepared, Settings

app = typer.Typer(
    help="Rehearse a stack on this machine: the real Pulumi engine, Kubernetes API server, endpoint picker, Envoy and "
    "routing sidecar, with simulated nodes and vLLM. Once more, and only what changed is applied.",
    invoke_without_command=True,
)

DEFAULT_STACK = "rehearsal"

AskedFaults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="RESOURCE[/NAME]:FAULT[:TIMES]",
        help="Let the stand-in for OCI fail, such as `Vcn:late-failure:1`; several times. A wrong one is answered with "
        "all that there are.",
    ),
]
Benchmark = Annotated[bool, typer.Option(help="Run the smoke benchmark after the update.")]


@app.callback()
def rehearse(
    context: typer.Context,
    stack: options.Stack = DEFAULT_STACK,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
    time_scale: options.TimeScale = Settings.time_scale,
    benchmark: Benchmark = True,
    fault: AskedFaults = None,
) -> None:
    """Plan, deploy, serve and benchmark a stack; once more, and only what changed is applied."""
    if context.invoked_subcommand is not None:
        return
    faults = [asked(text) for text in fault or []]
    progress = console.progress()
    progress.step(f"rehearsing the stack {stack}")
    prepared = rehearsal.prepare(project, stack, Settings(time_scale=time_scale), progress)
    release = prepared.inventory.release
    if told := rehearse_view.substitution(release.asked, release.used):
        progress.step(told)
    if not as_json:
        plan_view.show(stack, prepared.plan)
    rehearsal.ask_for_faults(prepared, faults)
    making_room.make_room(prepared, progress)
    progress.step("updating the stack with the real engine")
    try:
        update = rehearsal.run_engine(prepared, "up", progress)
    except KitError:
        if benchmark:
            _show_failed_benchmark(prepared)
        raise
    progress.step(rehearse_view.changes(update))
    simulated = rehearse_view.simulated(prepared.plan, update["placeholders"])
    began_s = time.time()
    status = _benchmark(prepared, simulated, as_json=as_json) if benchmark else 0
    report = _report_folder(project, stack, began_s)
    if as_json:
        typer.echo(json.dumps(rehearse_view.as_json(prepared, update, report), indent=2))
    else:
        rehearse_view.show(prepared, update["placeholders"], report)
    raise typer.Exit(status)


@app.command()
def preview(
    stack: options.Stack = DEFAULT_STACK, project: options.Project = options.HERE, as_json: options.Json = False
) -> None:
    """Show what an update of the rehearsed stack would change."""
    _operate("preview", stack, project, as_json=as_json)


@app.command()
def destroy(
    stack: options.Stack = DEFAULT_STACK,
    project: options.Project = options.HERE,
    unprotect: options.Unprotect = False,
    as_json: options.Json = False,
) -> None:
    """Destroy the rehearsed stack's resources with the engine; its control plane stays up.

    Where clusters or pools are protected it is refused without --unprotect, as it is for a real stack.
    """
    _operate("destroy", stack, project, as_json=as_json, unprotect=unprotect)


@app.command()
def down(
    stack: Annotated[str | None, typer.Option("--stack", "-s", help="Only this stack; all if left out.")] = None,
    project: options.Project = options.HERE,
) -> None:
    """End rehearsals: no process, mount, namespace or link of theirs stays. Their logs do."""
    ended = [
        name for name in ([stack] if stack else rehearsal.stacks_with_files(project)) if rehearsal.down(project, name)
    ]
    for name in ended:
        console.errors().print(f"{name} is down", markup=False)
    if not ended:
        console.errors().print("nothing is up" if stack is None else f"{stack} is not up", markup=False)


@app.command()
def status(project: options.Project = options.HERE, as_json: options.Json = False) -> None:
    """Show which rehearsals are up."""
    phases = {name: rehearsal.phase(project, name) for name in rehearsal.rehearsed_stacks(project)}
    if as_json:
        typer.echo(json.dumps(phases, indent=2))
        return
    for name, phase in phases.items():
        console.output().print(f"{name}  {phase}", markup=False)
    if not phases:
        console.output().print("nothing is up")


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", show_default=False)] = None,
    stack: options.Stack = DEFAULT_STACK,
    project: options.Project = options.HERE,
) -> None:
    """Run a command inside a rehearsal, with KUBECONFIG set: `llmd-oke rehearse run -- kubectl get pods -A`."""
    if not command:
        raise KitError("No command was given.", "For example: llmd-oke rehearse run -- kubectl get pods -A")
    raise typer.Exit(rehearsal.run_command(project, stack, command, interruptible=True))


@app.command()
def programs() -> None:
    """Have all programs that rehearsals need at hand: found on PATH, in the cache, or built."""
    rehearse_view.show_programs(rehearsal.have_programs(console.progress()))


def _operate(operation: str, stack: str, project: Path, *, as_json: bool, unprotect: bool = False) -> None:
    progress = console.progress()
    prepared = rehearsal.prepare(project, stack, rehearsal.running_settings(project, stack), progress)
    rehearsal.ask_for_faults(prepared, ())
    done = rehearsal.run_engine(prepared, operation, progress, unprotect=unprotect)
    progress.step(rehearse_view.changes(done))
    if as_json:
        typer.echo(json.dumps(done, indent=2))


def _benchmark(prepared: Prepared, simulated: Sequence[str], *, as_json: bool) -> int:
    """Runs `llmd-oke smoke` inside, or has it fetch what the benchmark in the cluster found."""
    if prepared.plan.smoke.where == "none":
        return 0
    if prepared.plan.smoke.where == "cluster":
        return _smoke(prepared, ["--fetch"], as_json=as_json)
    parts = [word for part in simulated for word in ("--simulated", part)]
    scale = ["--time-scale", str(prepared.settings.time_scale)]
    programs = prepared.inventory.programs
    ran = [word for name in IN_PODS for word in ("--ran", f"{name}={programs[name].version}")]
    return _smoke(prepared, [*scale, *parts, *ran], as_json=as_json)


def _show_failed_benchmark(prepared: Prepared) -> None:
    """Shows the benchmark in the cluster if that is what ended the update."""
    if prepared.plan.smoke.where == "cluster":
        _smoke(prepared, ["--fetch", "--if-failed"], as_json=True)


def _smoke(prepared: Prepared, words: Sequence[str], *, as_json: bool) -> int:
    own = ["--stack", prepared.stack, "--project", str(prepared.project), "--release", prepared.plan.release.name]
    argv = [sys.executable, "-m", "llmd_oke", "smoke", *own, *words]
    environment = console.inherited_environment()
    output = sys.stderr if as_json else None
    return rehearsal.run_command(prepared.project, prepared.stack, argv, env=environment, output=output)


def _report_folder(project: Path, stack: str, began_s: float) -> Path | None:
    """Where the report lies, if one was stored since."""
    latest = project / "reports" / stack / "latest"
    return latest if latest.exists() and latest.lstat().st_mtime >= began_s else None
