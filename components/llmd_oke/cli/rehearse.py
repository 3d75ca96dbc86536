"""`llmd-oke rehearse`: the whole job on this machine, without cloud or GPU."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from llmd_oke.cli import console, options, plan_view, rehearse_view
from llmd_oke.config import require_project
from llmd_oke.errors import KitError
from llmd_oke.progress import Progress
from llmd_oke.rehearsal import making_room, rehearsal
from llmd_oke.rehearsal.inventory import IN_PODS, IN_TESTS
from llmd_oke.rehearsal.oci_plugin.faults import asked
from llmd_oke.rehearsal.plugins import PluginChoice
from llmd_oke.rehearsal.programs import ensure
from llmd_oke.rehearsal.rehearsal import Prepared, Settings
from llmd_oke.rehearsal.time_scale import SLOWEST

app = typer.Typer(
    help="Rehearse a stack on this machine: the real Pulumi engine, Kubernetes API server, endpoint picker, Envoy and "
    "routing sidecar, with simulated nodes and vLLM. Once more, and only what changed is applied.",
    invoke_without_command=True,
)

DEFAULT_STACK = "rehearsal"

_OPERATING = {"preview": "previewing an update of", "destroy": "destroying"}

AskedFaults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="RESOURCE[/NAME]:FAULT[:TIMES]",
        help="Let the stand-in for OCI fail, such as `Vcn:late-failure:1`; several times. A wrong one is answered with "
        "all that there are.",
    ),
]
WhichPlugin = Annotated[
    PluginChoice,
    typer.Option(
        "--plugin",
        help="Pulumi's Kubernetes plug-in: the real one, or its stand-in. `auto` is the real one where it is installed "
        "in the version of the Python package, and the stack installs no operators. Another one than before starts "
        "the rehearsal anew.",
    ),
]
TimeScale = Annotated[
    float | None,
    typer.Option(
        help="Wall seconds for a second of model time. If left out, a running rehearsal keeps its own; another gets "
        "one that suits the stack and this machine's processors.",
        min=0.01,
        max=SLOWEST,
    ),
]
Benchmark = Annotated[
    bool,
    typer.Option(
        help="Show the smoke benchmark's result, or run it if it is the client's. The cluster's is part of the update: "
        "`smoke: {where: none}` in the stack file leaves it out."
    ),
]


@app.callback()
def rehearse(
    context: typer.Context,
    stack: options.Stack = DEFAULT_STACK,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
    time_scale: TimeScale = None,
    startup_seconds: options.StartupSeconds = None,
    benchmark: Benchmark = True,
    fault: AskedFaults = None,
    plugin: WhichPlugin = PluginChoice.AUTO,
) -> None:
    """Plan, deploy, serve and benchmark a stack; once more, and only what changed is applied."""
    if context.invoked_subcommand is not None:
        _refuse_what_stands_before(context, context.invoked_subcommand)
        return
    faults = [asked(text) for text in fault or []]
    progress = console.progress()
    progress.step(f"rehearsing the stack {stack}")
    settings = Settings(time_scale=time_scale, plugin=plugin, startup_s=startup_seconds)
    prepared = rehearsal.prepare(project, stack, settings, progress)
    _tell_release(prepared, progress)
    if not as_json:
        plan_view.show(stack, prepared.plan, release=rehearse_view.release(prepared.inventory.release))
    rehearsal.ask_for_faults(prepared, faults)
    making_room.make_room(prepared, progress)
    progress.step("updating the stack with the real engine")
    try:
        update = rehearsal.run_engine(prepared, "up", progress)
    except KitError:
        _show_failed_benchmark(prepared)
        raise
    progress.step(rehearse_view.changes(update))
    simulated = prepared.simulated(update["placeholders"])
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
    require_project(project)
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
    require_project(project)
    phases = {name: rehearsal.phase(project, name) for name in rehearsal.rehearsed_stacks(project)}
    if as_json:
        typer.echo(json.dumps(phases, indent=2))
        return
    for name, phase in phases.items():
        again = [
            f"{process} started again {count} times" for process, count in rehearsal.restarts(project, name).items()
        ]
        console.output().print(f"{name}  {'; '.join([phase, *again])}", markup=False)
    if not phases:
        console.output().print("nothing is up")


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", show_default=False)] = None,
    stack: options.Stack = DEFAULT_STACK,
    project: options.Project = options.HERE,
) -> None:
    """Run a command inside a rehearsal, with KUBECONFIG set and `llmd-oke` on PATH.

    For example: `llmd-oke rehearse run -- kubectl get pods -A`.
    """
    if not command:
        raise KitError("No command was given.", "For example: llmd-oke rehearse run -- kubectl get pods -A")
    raise console.Told(rehearsal.run_command(project, stack, command, interruptible=True))


@app.command()
def programs(
    tests: Annotated[bool, typer.Option("--tests", help="What only the kit's own tests run, too.")] = False,
) -> None:
    """Have all programs that rehearsals need at hand: found on PATH, in the cache, or built."""
    progress = console.progress()
    found = rehearsal.have_programs(progress).programs
    rehearse_view.show_programs([*found.values(), *(ensure(IN_TESTS, progress) if tests else {}).values()])


def _refuse_what_stands_before(context: typer.Context, subcommand: str) -> None:
    """Options before a sub-command belong to the group, so that they would count for nothing.

    Raises:
        KitError: there are some; says where they belong.
    """
    group = cast("Any", context.command)
    known = {name for parameter in group.commands[subcommand].params for name in parameter.opts}
    given = {each.opts[0]: context.params[each.name] for each in group.params if _is_typed(context, each.name)}
    if given:
        behind = " ".join(
            name if value is True else f"{name} {value}" for name, value in given.items() if name in known
        )
        strange = ", ".join(name for name in given if name not in known)
        remedies = [f"`{subcommand}` has no {strange}."] if strange else []
        remedies += [f"Put it behind: llmd-oke rehearse {subcommand} {behind}"] if behind else []
        said = f"Options before `{subcommand}` count for nothing: {', '.join(given)}"
        raise KitError(said, " ".join(remedies))


def _is_typed(context: typer.Context, parameter: str) -> bool:
    """Whether an option stands on the command line; the environment counts for sub-commands too."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _operate(operation: str, stack: str, project: Path, *, as_json: bool, unprotect: bool = False) -> None:
    progress = console.progress()
    progress.step(f"{_OPERATING[operation]} the stack {stack}")
    was_up = rehearsal.phase(project, stack) == "ready"
    prepared = rehearsal.prepare(project, stack, rehearsal.running_settings(project, stack), progress)
    _tell_release(prepared, progress)
    rehearsal.ask_for_faults(prepared, ())
    done = rehearsal.run_engine(prepared, operation, progress, unprotect=unprotect)
    progress.step(rehearse_view.changes(done))
    if not was_up:
        progress.step(f"the rehearsal of {stack} is up since; to end it: scripts/rehearse down --stack {stack}")
    if as_json:
        typer.echo(json.dumps({**done, **rehearse_view.releases_as_json(prepared.inventory.release)}, indent=2))


def _tell_release(prepared: Prepared, progress: Progress) -> None:
    """Says which release stands in for the stack's own, if one does."""
    if told := rehearse_view.substitution(prepared.inventory.release):
        progress.step(told)


def _benchmark(prepared: Prepared, simulated: Sequence[str], *, as_json: bool) -> int:
    """Runs `llmd-oke smoke` inside, or has it fetch what the benchmark in the cluster found."""
    if prepared.plan.smoke.where == "none":
        return 0
    if prepared.plan.smoke.where == "cluster":
        return _smoke(prepared, ["--fetch"], as_json=as_json)
    parts = [word for part in simulated for word in ("--simulated", part)]
    scale = ["--time-scale", str(prepared.time_scale.scale)]
    programs = prepared.inventory.programs
    ran = [word for name in IN_PODS for word in ("--ran", f"{name}={programs[name].version}")]
    return _smoke(prepared, [*scale, *parts, *ran], as_json=as_json)


def _show_failed_benchmark(prepared: Prepared) -> None:
    """Shows the benchmark in the cluster if that is what ended the update."""
    if prepared.plan.smoke.where == "cluster":
        _smoke(prepared, ["--fetch", "--if-failed"], as_json=True)


def _smoke(prepared: Prepared, words: Sequence[str], *, as_json: bool) -> int:
    own = ["--stack", prepared.stack, "--project", str(prepared.project), "--router", prepared.router]
    argv = [sys.executable, "-m", "llmd_oke", "smoke", *own, *words]
    environment = console.inherited_environment()
    output = sys.stderr if as_json else None
    return rehearsal.run_command(prepared.project, prepared.stack, argv, env=environment, output=output)


def _report_folder(project: Path, stack: str, began_s: float) -> Path | None:
    """Where the report lies, if one was stored since."""
    latest = project / "reports" / stack / "latest"
    return latest if latest.exists() and latest.lstat().st_mtime >= began_s else None
