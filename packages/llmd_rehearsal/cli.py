"""Command line `llmd-oke rehearse`, and the implementation of the kit's commands for rehearsed stacks."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke.cli import console, options
from llmd_oke.cli.check import show_plan, shows_all
from llmd_oke.cli.plan_summary import show_summary
from llmd_oke.cli.rehearsals import Rehearsals
from llmd_oke.config import require_project
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.previews import Preview, of_document
from rich.markup import escape
from rich.table import Table

from llmd_rehearsal import engine_operations, output, rehearsal
from llmd_rehearsal.cluster_plan import PROGRAMS, SIMULATED_NODES, SIMULATED_PLUGIN, programs_in_pods, simulated_servers
from llmd_rehearsal.engine_project import DEPLOYED
from llmd_rehearsal.inventory import IN_TESTS, LANGUAGES, fetch_charts
from llmd_rehearsal.local_cluster import command_line
from llmd_rehearsal.oci_plugin.faults import parse_rule
from llmd_rehearsal.plugins import PluginChoice
from llmd_rehearsal.programs import ensure
from llmd_rehearsal.real_vllm.choice import VllmChoice
from llmd_rehearsal.real_vllm.environment import EFFORT
from llmd_rehearsal.rehearsal import Prepared, RehearsalSettings
from llmd_rehearsal.time_scale import SLOWEST

if TYPE_CHECKING:
    from llmd_rehearsal.real_vllm.checks import ServerCheck


app = typer.Typer(
    help="Rehearse a stack on this machine: the real Pulumi engine, Kubernetes API server, endpoint picker, Envoy and "
    "routing sidecar, with simulated nodes and vLLM. A repeated run applies only what changed.",
    invoke_without_command=True,
)

DEFAULT_STACK = "rehearsal"

_OPERATING = {"preview": "previewing an update of", "destroy": "destroying"}

_ASK_PROMETHEUS = frozenset(("status", "doctor", "support"))
"""Sub-commands of `llmd-oke` that have the option `--prometheus`."""


def run_inside(
    project: Path,
    stack: str,
    command: Sequence[str],
    reports: Path | None = None,
    *,
    time_scale: bool = True,
    measures: bool = True,
    interruptible: bool = False,
) -> int:
    """Run `llmd-oke COMMAND` inside a stack's rehearsal, on the rehearsal's copy of the stack file, and return the exit
    code.

    With `time_scale`, the command gets the rehearsal's time scale: wall seconds that simulated servers take for one
    second of work on real hardware. With `measures`, it gets options with the names of the rehearsal's simulated parts,
    and writes these names into its results. `status` gets the versions of the running programs. Commands with
    `--prometheus` get the URL of the rehearsal's Prometheus, because the API server's proxy reaches only pods. With
    `interruptible`, Ctrl-C is left to the command, which ends by itself.

    Raises:
        KitError: the stack isn't rehearsed, or its rehearsal isn't up.
    """
    copy = rehearsal.rehearsal_folder(project, stack) / DEPLOYED
    if not copy.is_dir():
        begin = command_line(project, f"--stack {stack}")
        raise KitError(f"{stack} is not rehearsed here.", f"Rehearse it: {begin}")
    options = ["--stack", stack, "--project", str(copy), "--reports", str((reports or project / "reports").resolve())]
    running = rehearsal.running_settings(project, stack)
    has_plugin = running.plugin is PluginChoice.REAL
    parts = (SIMULATED_NODES, simulated_servers(running.vllm), *([] if has_plugin else [SIMULATED_PLUGIN]))
    simulated = [word for part in parts for word in ("--simulated", part) if measures]
    from llmd_rehearsal.prometheus_operator import PROMETHEUS_URL  # noqa: PLC0415 - it loads lightkube

    record = rehearsal.cluster_record(project, stack)
    versions = record.facts.get(PROGRAMS, "").split() if record else []
    ran = [word for version in versions for word in ("--ran", version)]
    asked = command[0] in _ASK_PROMETHEUS and "--prometheus" not in command
    prometheus = ["--prometheus", PROMETHEUS_URL] if asked and record and "prometheus" in record.processes else []
    argv = [
        sys.executable,
        "-m",
        "llmd_oke",
        *command,
        *options,
        *(["--time-scale", str(running.time_scale or 1.0)] if time_scale else []),
        *simulated,
        *(ran if command[0] == "status" else []),
        *prometheus,
    ]
    environment = console.inherited_environment()
    return rehearsal.run_command(project, stack, argv, env=environment, interruptible=interruptible)


class LocalRehearsals:
    """Operations of `llmd-oke`'s commands on rehearsed stacks, by which the kit's command line reaches this package
    (`llmd_oke.cli.rehearsals.Rehearsals`).
    """

    run_inside = staticmethod(run_inside)

    def drift(self, project: Path, stack: str, progress: Progress) -> Sequence[Drift]:
        """Return the changes that were made by hand to a rehearsed stack's resources.

        Raises:
            KitError: the stack's rehearsal isn't up, or the drift can't be determined.
        """
        prepared = _running(project, stack, progress)
        progress.step("looking for changes by hand; nothing is changed")
        return [Drift(**change) for change in engine_operations.run_engine(prepared, "drift", progress)["drift"]]

    def preview(self, project: Path, stack: str, progress: Progress) -> Preview:
        """Return the changes that an update of a rehearsed stack would make. Starts the rehearsal if it isn't up.

        Raises:
            KitError: the preview failed; the message has the engine's reason.
        """
        prepared = rehearsal.prepare(project, stack, rehearsal.running_settings(project, stack), progress)
        return of_document(engine_operations.run_engine(prepared, "preview", progress))

    def replace_nodes(
        self,
        project: Path,
        stack: str,
        names: Sequence[str],
        progress: Progress,
        *,
        at_once: int,
        drain_limit_s: float | None,
        force: bool,
    ) -> None:
        """Replace nodes of a rehearsed stack by new instances; drain each node first, unless `drain_limit_s` is None.

        Raises:
            KitError: the stack's rehearsal isn't up, or a node can't be replaced.
        """
        prepared = _running(project, stack, progress)
        progress.step("launching nodes of the rehearsed stack anew")
        limit = ["--drain-limit", str(drain_limit_s)] if drain_limit_s is not None else []
        more = ["--at-once", str(at_once), *limit, *["--force"] * force]
        engine_operations.run_engine(prepared, "replace", progress, targets=names, more=more)

    def forget_losses(self, project: Path, stack: str, progress: Progress) -> Sequence[str]:
        """Remove from a rehearsed stack's Pulumi state the resources that the stand-in for OCI no longer has; return a
        sentence on each removed resource, and on each lost resource that was kept.

        Raises:
            KitError: the stack's rehearsal isn't up, or the state can't be changed.
        """
        prepared = _running(project, stack, progress)
        return list(engine_operations.run_engine(prepared, "forget", progress)["outputs"]["losses"])


def _running(project: Path, stack: str, progress: Progress) -> Prepared:
    if rehearsal.phase(project, stack) != "ready":
        begin = command_line(project, f"--stack {stack}")
        raise KitError(f"The rehearsal of {stack} is not up.", f"Rehearse it: {begin}")
    return rehearsal.prepare(project, stack, rehearsal.running_settings(project, stack), progress)


rehearsals: Rehearsals = LocalRehearsals()

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
    faults = [parse_rule(text) for text in fault or []]
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
    prepared = rehearsal.prepare(project, stack, settings, progress)
    _tell_release(prepared, progress)
    if not as_json:
        show = show_plan if shows_all() else show_summary
        show(stack, prepared.plan, release=output.release_text(prepared.inventory.release))
    rehearsal.ask_for_faults(prepared, faults)
    if after is not None:
        progress.step(output.changes_text(engine_operations.deploy_before(prepared, after, progress)))
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
    raise typer.Exit(status)


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
    """Destroy the rehearsed stack's resources with the engine; the local cluster's control plane stays up.

    As for a real stack, protected clusters and pools are only destroyed with --unprotect.
    """
    _operate("destroy", stack, project, as_json=as_json, unprotect=unprotect)


@app.command()
def down(
    stack: Annotated[str | None, typer.Option("--stack", "-s", help="Only this stack; all if left out.")] = None,
    project: options.Project = options.HERE,
) -> None:
    """End rehearsals: their processes, mounts, namespaces and files are removed; their logs are kept."""
    require_project(project)
    with_files = sorted(path.name for path in (project / rehearsal.FOLDER).glob("*") if path.is_dir())
    ended = [name for name in ([stack] if stack else with_files) if rehearsal.down(project, name)]
    for name in ended:
        console.errors().print(f"{name} is down", markup=False)
    if not ended:
        console.errors().print("nothing is up" if stack is None else f"{stack} is not up", markup=False)


@app.command()
def status(project: options.Project = options.HERE, as_json: options.Json = False) -> None:
    """Show which rehearsals are up, and how often their processes were restarted."""
    require_project(project)
    stacks = sorted(path.parent.name for path in (project / rehearsal.FOLDER).glob("*/cluster.json"))
    phases = {name: rehearsal.phase(project, name) for name in stacks}
    if as_json:
        console.show_json(phases)
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
    raise console.ChildExit(rehearsal.run_command(project, stack, command, interruptible=True))


@app.command()
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


def _refuse_misplaced_options(context: typer.Context, subcommand: str) -> None:
    """Refuse options of `rehearse` that stand before a sub-command, where they would have no effect.

    Raises:
        KitError: the command line has such options; the message says where to put each of them.
    """
    group = cast("Any", context.command)
    allowed = {name for parameter in group.commands[subcommand].params for name in parameter.opts}
    # Options from environment variables are allowed: sub-commands read these variables too.
    sources = ((item, context.get_parameter_source(item.name)) for item in group.params)
    options = {
        item.opts[0]: context.params[item.name] for item, source in sources if source and source.name == "COMMANDLINE"
    }
    if options:
        behind = [name if value is True else f"{name} {value}" for name, value in options.items() if name in allowed]
        unknown = ", ".join(name for name in options if name not in allowed)
        remedies = [f"`{subcommand}` has no {unknown}."] if unknown else []
        remedies += [f"Put it behind: llmd-oke rehearse {subcommand} {' '.join(behind)}"] if behind else []
        message = f"Options before `{subcommand}` count for nothing: {', '.join(options)}"
        raise KitError(message, " ".join(remedies))


def _operate(operation: str, stack: str, project: Path, *, as_json: bool, unprotect: bool = False) -> None:
    progress = console.progress()
    progress.step(f"{_OPERATING[operation]} the stack {stack}")
    was_up = rehearsal.phase(project, stack) == "ready"
    prepared = rehearsal.prepare(project, stack, rehearsal.running_settings(project, stack), progress)
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
    return rehearsal.run_command(prepared.project, prepared.stack, argv, env=environment, output=stream)
