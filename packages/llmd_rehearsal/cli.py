"""Command line `llmd-oke rehearse`. Commands that plan a stack are imported when they run (`stack_commands`)."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from llmd_base.errors import KitError
from llmd_oke.cli import console, options
from llmd_oke.cli.loading import LoadingGroup
from llmd_oke.values import require_project

from llmd_rehearsal import running_rehearsals
from llmd_rehearsal.rehearsal_settings import (
    DEFAULT_STACK,
    EFFORT,
    SLOWEST,
    PluginChoice,
    RehearsalSettings,
    VllmChoice,
)


class _Commands(LoadingGroup):
    places = {  # noqa: RUF012 - of the class by its base
        "preview": "llmd_rehearsal.stack_commands:preview",
        "destroy": "llmd_rehearsal.stack_commands:destroy",
        "programs": "llmd_rehearsal.stack_commands:programs",
    }


app = typer.Typer(
    cls=_Commands,
    help="Rehearse a stack on this machine: the real Pulumi engine, Kubernetes API server, endpoint picker, Envoy and "
    "routing sidecar, with simulated nodes and vLLM. A repeated run applies only what changed.",
    invoke_without_command=True,
)

Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="RESOURCE[/NAME]:FAULT[:TIMES]",
        help="Fault of the stand-in for OCI, such as `Vcn:late-failure:1`; may be given several times. An invalid one "
        "is refused with a list of all faults.",
    ),
]

Plugin = Annotated[
    PluginChoice,
    typer.Option(
        "--plugin",
        help="Pulumi's Kubernetes plug-in: the real one, or its stand-in. `auto` is the real one if it is installed in "
        "the version of the Python package and the stack installs no operators. A change starts a new rehearsal.",
    ),
]

Vllm = Annotated[
    VllmChoice,
    typer.Option(
        "--vllm",
        help="`real`: vLLM itself on this machine's processor, one process for each server, with a tiny model of the "
        "same family and as many servers as fit the memory. Answers and KV cache transfers are real; durations say "
        f"nothing about GPUs. Installed at first use: {EFFORT}. A change starts a new rehearsal.",
    ),
]

TimeScale = Annotated[
    float | None,
    typer.Option(
        help="Wall seconds for one second of model time. If left out, a running rehearsal keeps its time scale; for a "
        "new one, it is chosen for the stack and this machine's processors.",
        min=0.01,
        max=SLOWEST,
    ),
]

ScalingSpeed = Annotated[
    float | None,
    typer.Option(
        help="Seconds of scaling by load (KEDA, HorizontalPodAutoscalers, Prometheus) in one second of wall time; 1 is "
        "real time. If left out, a running rehearsal keeps its speed; for a new one, it is 15.",
        min=1,
        max=100,
    ),
]

After = Annotated[
    Path | None,
    typer.Option(
        "--after",
        metavar="PROJECT",
        help="Folder of another project whose stack of the same name is deployed first, in the same rehearsal: for "
        "programs that read its outputs (StackReference).",
        file_okay=False,
        exists=True,
        resolve_path=True,
    ),
]

Benchmark = Annotated[
    bool,
    typer.Option(
        help="Show the smoke benchmark's result; run the benchmark first if it runs on the client. A benchmark in the "
        "cluster is part of the update: `smoke: {where: none}` in the stack file disables it. With --vllm real the "
        "servers are checked too."
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
    fault: Faults = None,
    plugin: Plugin = PluginChoice.AUTO,
    scaling_speed: ScalingSpeed = None,
    vllm: Vllm = VllmChoice.SIMULATED,
    after: After = None,
) -> None:
    """Plan, deploy, serve and benchmark a stack on this machine. A repeated run applies only what changed."""
    if context.invoked_subcommand is not None:
        _refuse_misplaced_options(context, context.invoked_subcommand)
        return
    if vllm is VllmChoice.REAL:
        simulated_only = {
            "--time-scale": time_scale,
            "--startup-seconds": startup_seconds,
            "--scaling-speed": scaling_speed,
        }
        if given := [name for name, value in simulated_only.items() if value is not None]:
            raise KitError(f"vLLM itself goes by the wall clock: {', '.join(given)} would do nothing.", "Leave it out.")
    progress = console.progress()
    progress.step(f"rehearsing the stack {stack}")
    settings = RehearsalSettings(
        time_scale=time_scale,
        plugin=plugin,
        startup_s=startup_seconds,
        scaling_speed=scaling_speed,
        vllm=vllm,
        after=after,
    )
    from llmd_rehearsal.stack_commands import rehearse_stack  # noqa: PLC0415 - it loads the planning

    status = rehearse_stack(project, stack, settings, fault or [], progress, benchmark=benchmark, as_json=as_json)
    raise typer.Exit(status)


@app.command()
def down(
    stack: Annotated[str | None, typer.Option("--stack", "-s", help="Only this stack; all if left out.")] = None,
    project: options.Project = options.HERE,
) -> None:
    """End rehearsals: their processes, mounts, namespaces and files are removed; their logs are kept."""
    require_project(project)
    with_files = sorted(path.name for path in (project / running_rehearsals.FOLDER).glob("*") if path.is_dir())
    ended = [name for name in ([stack] if stack else with_files) if running_rehearsals.down(project, name)]
    for name in ended:
        console.errors().print(f"{name} is down", markup=False)
    if not ended:
        console.errors().print("nothing is up" if stack is None else f"{stack} is not up", markup=False)


@app.command()
def status(project: options.Project = options.HERE, as_json: options.Json = False) -> None:
    """Show which rehearsals are up, and how often their processes were restarted."""
    require_project(project)
    stacks = sorted(path.parent.name for path in (project / running_rehearsals.FOLDER).glob("*/cluster.json"))
    phases = {name: running_rehearsals.phase(project, name) for name in stacks}
    if as_json:
        console.show_json(phases)
        return
    for name, phase in phases.items():
        again = [
            f"{process} started again {count} times"
            for process, count in running_rehearsals.restarts(project, name).items()
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
    raise console.ChildExit(running_rehearsals.run_command(project, stack, command, interruptible=True))


def _refuse_misplaced_options(context: typer.Context, subcommand: str) -> None:
    """Refuse options of `rehearse` that stand before a sub-command, where they would have no effect.

    Raises:
        KitError: the command line has such options; the message says where to put each of them.
    """
    group = cast("Any", context.command)
    # Options from environment variables are allowed: sub-commands read these variables too.
    sources = ((item, context.get_parameter_source(item.name)) for item in group.params)
    options = {
        item.opts[0]: context.params[item.name] for item, source in sources if source and source.name == "COMMANDLINE"
    }
    if options:
        allowed = {name for parameter in group.commands[subcommand].params for name in parameter.opts}
        behind = [name if value is True else f"{name} {value}" for name, value in options.items() if name in allowed]
        unknown = ", ".join(name for name in options if name not in allowed)
        remedies = [f"`{subcommand}` has no {unknown}."] if unknown else []
        remedies += [f"Put it behind: llmd-oke rehearse {subcommand} {' '.join(behind)}"] if behind else []
        message = f"Options before `{subcommand}` count for nothing: {', '.join(options)}"
        raise KitError(message, " ".join(remedies))
