"""`llmd-oke rehearse`, with what the kit's commands do on a rehearsed stack: the whole job on this machine."""

import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_base.records import document
from llmd_oke import planning
from llmd_oke.cli import console, options
from llmd_oke.cli.check import plan_document, show_plan
from llmd_oke.cli.rehearsals import Rehearsals
from llmd_oke.config import require_project
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.previews import Preview, of_document
from rich.markup import escape
from rich.table import Table

from llmd_rehearsal import rehearsal
from llmd_rehearsal.autoscaling import ScalingTime, keda_parts
from llmd_rehearsal.cluster_plan import SIMULATED_NODES, SIMULATED_PLUGIN, programs_in_pods, simulated_servers
from llmd_rehearsal.engine_project import DEPLOYED
from llmd_rehearsal.inventory import IN_TESTS, WATCHING, ReleaseChoice
from llmd_rehearsal.oci_plugin.faults import parse_rule
from llmd_rehearsal.plugins import PluginChoice
from llmd_rehearsal.programs import LocalProgram, ensure
from llmd_rehearsal.real_vllm.choice import VllmChoice
from llmd_rehearsal.real_vllm.differences import lines
from llmd_rehearsal.rehearsal import Prepared, RehearsalSettings
from llmd_rehearsal.time_scale import SLOWEST

if TYPE_CHECKING:
    from llmd_rehearsal.real_vllm.checks import ServerCheck
    from llmd_rehearsal.release_differences import ObjectDifference


app = typer.Typer(
    help="Rehearse a stack on this machine: the real Pulumi engine, Kubernetes API server, endpoint picker, Envoy and "
    "routing sidecar, with simulated nodes and vLLM. Once more, and only what changed is applied.",
    invoke_without_command=True,
)

DEFAULT_STACK = "rehearsal"

_OPERATING = {"preview": "previewing an update of", "destroy": "destroying"}

_REAL = ("pulumi", "kube-apiserver")

_ASK_PROMETHEUS = frozenset(("status", "support"))
"""Commands with the option `--prometheus`."""


def changes_text(result: Mapping[str, Any]) -> str:
    """One sentence on the result of an operation."""
    counts = {kind: count for kind, count in result["changes"].items() if kind not in {"same", "read"}}
    same = result["changes"].get("same", 0)
    if not counts and result["operation"] == "destroy":
        return "nothing was deployed"
    if not counts:
        return f"no changes: {same} resources are as they should be"
    text = ", ".join(
        f"{count} to {kind}" if result["operation"] == "preview" else f"{count} {kind}d"
        for kind, count in counts.items()
    )
    return f"{text}, {same} unchanged"


def _show(prepared: Prepared, placeholders: Mapping[str, int], report: Path | None) -> None:
    """Real parts, simulated parts, and next commands, for the end of a command."""
    table = Table.grid(padding=(0, 2))
    for name, text in _facts(prepared, placeholders, report):
        table.add_row(f"[dim]{name}[/]", escape(text))
    console.output().print(table)


def _document(prepared: Prepared, update: Mapping[str, Any], report: Path | None) -> dict[str, Any]:
    """The whole rehearsal as plain data."""
    summaries, plugin = sorted(report.rglob("summary.json")) if report else [], prepared.plugin
    return {
        "stack": prepared.stack,
        "plan": plan_document(prepared.plan),
        **releases_document(prepared.inventory.release),
        "version_differences": [
            dataclasses.asdict(difference) for difference in prepared.inventory.version_differences(prepared.plan)
        ],
        "release_differences": [dataclasses.asdict(difference) for difference in _differences(prepared)],
        "programs": {
            name: document("version origin path", program, path=str(program.path))
            for name, program in prepared.inventory.programs.items()
        },
        "kubernetes_plugin": document(
            "real version path", plugin, real=plugin.is_real, path=str(plugin.path) if plugin.path else None
        ),
        "simulated": list(prepared.simulated(update["placeholders"])),
        "time_scale": prepared.time_scale.scale,
        "time_scale_because": prepared.time_scale.because,
        "scaling": scaling_text(prepared.scaling_time) if prepared.scaling_time else None,
        "update": dict(update),
        "smoke": [json.loads(path.read_text()) for path in summaries],
        "report": str(report) if report else None,
    }


def _show_programs(programs: Iterable[LocalProgram]) -> None:
    """A line for each program; paths are whole in narrow terminals too."""
    rows = [(program.name, program.version, program.origin, str(program.path)) for program in programs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.output().print(line.rstrip(), markup=False, soft_wrap=True)


def substitution_text(choice: ReleaseChoice) -> str | None:
    """Notice that another release stands in for the stack's."""
    requested, used = choice.asked.name, choice.used.name
    if requested == used:
        return None
    nearest = f"{used}, the nearest that has, is rehearsed"
    return f"{requested} has no endpoint picker and sidecar that can be had here ({choice.because}); {nearest}"


def release_text(choice: ReleaseChoice) -> str:
    """The release that is rehearsed, and the one that it stands in for."""
    requested, used = choice.asked.name, choice.used.name
    return used if requested == used else f"{used}, in place of {requested}"


def releases_document(choice: ReleaseChoice) -> dict[str, str]:
    """The release that a stack asks for, and the one that it is rehearsed with."""
    return {"asked_release": choice.asked.name, "release": choice.used.name}


def _facts(prepared: Prepared, placeholders: Mapping[str, int], report: Path | None) -> Iterator[tuple[str, str]]:
    programs, scale = prepared.inventory.programs, prepared.time_scale.scale
    routed = any(model.routed for model in prepared.plan.models)
    real = [
        f"{name} {programs[name].version}" for name in (*_REAL, *(programs_in_pods(prepared.plan) if routed else ()))
    ]
    real += [f"{name} {programs[name].version}" for name in WATCHING if name in programs]
    real += [f"vLLM {prepared.real.version}"] if prepared.real else []
    real += [f"Kubernetes plug-in {prepared.plugin.version}"] if prepared.plugin.is_real else []
    yield "real", ", ".join(real)
    picker = ", in which endpoint pickers read servers too" if scale > 1 else ""
    pace = "" if scale == 1 else f"; model time is wall time / {scale:g}{picker}"
    start = "" if prepared.startup_s is None else f"; servers take {prepared.startup_s:g} s to start"
    if time := prepared.scaling_time:
        yield "scaling", scaling_text(time)
    yield "simulated", f"{', '.join(prepared.simulated({}))}{pace}{start}"
    if prepared.real:
        yield "cut", str(prepared.real.stack)
        yield "vLLM differs", "\n".join(lines())
    if placeholders:  # images without a program, by the last part of their names
        names = ", ".join(image.rsplit("/", 1)[-1] for image in placeholders)
        yield "not run", f"{sum(placeholders.values())} pods, whose images have no program here: {names}"
    if substitution := substitution_text(prepared.inventory.release):
        yield "release", substitution
        yield "differs", "\n".join(map(str, _differences(prepared)))
    if versions := "\n".join(map(str, prepared.inventory.version_differences(prepared.plan))):
        yield "versions", versions
    if report:
        yield "report", str(report)
    yield "next", f"change stacks/Pulumi.{prepared.stack}.yaml and rehearse again, or end it: scripts/rehearse down"


def _show_checks(checks: "Sequence[ServerCheck]") -> None:
    """Show what was checked of vLLM's own servers, a table for each model; nothing where they are simulated."""
    for model in dict.fromkeys(check.model for check in checks):
        table = Table("", "check", "evidence", title=f"vLLM itself: {model}", title_justify="left")
        for check in checks:
            if check.model == model:
                verdict = "pass" if check.passed else "[bold red]FAIL[/]"
                table.add_row(verdict, check.check, escape(f"{check.evidence} ({check.seconds:g} s)"))
        console.output().print(table)


def scaling_text(time: ScalingTime) -> str:
    """Notice about the scaling of servers and its differences from a real stack."""
    version = keda_parts().definitions.version
    return f"KEDA {version} and Kubernetes' own HPA controller, by the rehearsal's Prometheus; {time}"


def _differences(prepared: Prepared) -> "Sequence[ObjectDifference]":
    """Differences between the stack's release and the one that is rehearsed; empty where both are the same."""
    if prepared.inventory.release.asked.name == prepared.inventory.release.used.name:
        return ()
    from llmd_rehearsal.release_differences import release_differences  # noqa: PLC0415 - it loads Pulumi

    return release_differences(planning.plan_stack_file(prepared.project, prepared.stack), prepared.plan)


def run_inside(
    project: Path,
    stack: str,
    command: Sequence[str],
    reports: Path | None = None,
    *,
    measures: bool = True,
    interruptible: bool = False,
) -> int:
    """Run `llmd-oke COMMAND` in a stack's rehearsal, with the stack file as it is rehearsed, and return its exit code.

    A command that measures is told what is not real, `status` which versions of programs run, and one that asks
    Prometheus where the rehearsal's is: the API server passes on to pods alone. An interruptible one ends by itself
    after Ctrl-C.

    Raises:
        KitError: the stack isn't rehearsed, or its rehearsal isn't up.
    """
    copy = rehearsal.rehearsal_folder(project, stack) / DEPLOYED
    if not copy.is_dir():
        raise KitError(f"{stack} is not rehearsed here.", f"Rehearse it: scripts/rehearse --stack {stack}")
    options = ["--stack", stack, "--project", str(copy), "--reports", str((reports or project / "reports").resolve())]
    running = rehearsal.running_settings(project, stack)
    has_plugin = running.plugin is PluginChoice.REAL
    parts = (SIMULATED_NODES, simulated_servers(running.vllm), *([] if has_plugin else [SIMULATED_PLUGIN]))
    simulated = [word for part in parts for word in ("--simulated", part) if measures]
    from llmd_rehearsal.prometheus_operator import PROMETHEUS_URL  # noqa: PLC0415 - it loads lightkube

    ran = [word for version in rehearsal.running_programs(project, stack) for word in ("--ran", version)]
    asked = command[0] in _ASK_PROMETHEUS and "--prometheus" not in command and rehearsal.has_prometheus(project, stack)
    prometheus = ["--prometheus", PROMETHEUS_URL] if asked else []
    argv = [
        sys.executable,
        "-m",
        "llmd_oke",
        *command,
        *options,
        *simulated,
        *(ran if command[0] == "status" else []),
        *prometheus,
    ]
    environment = console.inherited_environment()
    return rehearsal.run_command(project, stack, argv, env=environment, interruptible=interruptible)


class LocalRehearsals:
    """Rehearsed stacks for the kit's commands (`llmd_oke.cli.rehearsals.Rehearsals`)."""

    run_inside = staticmethod(run_inside)

    def drift(self, project: Path, stack: str, progress: Progress) -> Sequence[Drift]:
        """Changes by hand that a rehearsed stack has.

        Raises:
            KitError: its rehearsal is not up, or it can't be seen.
        """
        prepared = _running(project, stack, progress)
        progress.step("looking for changes by hand; nothing is changed")
        return [Drift(**change) for change in rehearsal.run_engine(prepared, "drift", progress)["drift"]]

    def preview(self, project: Path, stack: str, progress: Progress) -> Preview:
        """Changes that an update of a rehearsed stack would make; starts the rehearsal where it is not up.

        Raises:
            KitError: there is no preview; says why.
        """
        prepared = rehearsal.prepare(project, stack, rehearsal.running_settings(project, stack), progress)
        return of_document(rehearsal.run_engine(prepared, "preview", progress))

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
        """Launches nodes of a rehearsed stack anew, drained unless `drain_limit_s` is None.

        Raises:
            KitError: its rehearsal is not up, or a node can't be replaced.
        """
        prepared = _running(project, stack, progress)
        progress.step("launching nodes of the rehearsed stack anew")
        limit = ["--drain-limit", str(drain_limit_s)] if drain_limit_s is not None else []
        more = ["--at-once", str(at_once), *limit, *["--force"] * force]
        rehearsal.run_engine(prepared, "replace", progress, targets=names, more=more)

    def time_scale(self, project: Path, stack: str) -> float:
        """Wall seconds for a second of model time in a rehearsal."""
        return rehearsal.running_settings(project, stack).time_scale or 1.0


def _running(project: Path, stack: str, progress: Progress) -> Prepared:
    if rehearsal.phase(project, stack) != "ready":
        raise KitError(f"The rehearsal of {stack} is not up.", f"Rehearse it: scripts/rehearse --stack {stack}")
    return rehearsal.prepare(project, stack, rehearsal.running_settings(project, stack), progress)


rehearsals: Rehearsals = LocalRehearsals()

Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="RESOURCE[/NAME]:FAULT[:TIMES]",
        help="Let the stand-in for OCI fail, such as `Vcn:late-failure:1`; several times. A wrong one is answered with "
        "all that there are.",
    ),
]

Plugin = Annotated[
    PluginChoice,
    typer.Option(
        "--plugin",
        help="Pulumi's Kubernetes plug-in: the real one, or its stand-in. `auto` is the real one where it is installed "
        "in the version of the Python package, and the stack installs no operators. Another one than before starts "
        "the rehearsal anew.",
    ),
]

Vllm = Annotated[
    VllmChoice,
    typer.Option(
        "--vllm",
        help="`real`: vLLM itself on this machine's processor, one for each server, with a tiny model of the same "
        "family and as many servers as memory holds; it shows what they answer and hand over, and says nothing of "
        "times. It is installed at first use (3 GiB to download). Another one than before starts the rehearsal anew.",
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

ScalingSpeed = Annotated[
    float | None,
    typer.Option(
        help="Seconds of scaling by load (KEDA, HorizontalPodAutoscalers, Prometheus) in one of wall time; 1 is real "
        "time. If left out, a running rehearsal keeps its own; another has 15.",
        min=1,
        max=100,
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
    fault: Faults = None,
    plugin: Plugin = PluginChoice.AUTO,
    scaling_speed: ScalingSpeed = None,
    vllm: Vllm = VllmChoice.SIMULATED,
) -> None:
    """Plan, deploy, serve and benchmark a stack; once more, and only what changed is applied."""
    if context.invoked_subcommand is not None:
        _refuse_misplaced_options(context, context.invoked_subcommand)
        return
    faults = [parse_rule(text) for text in fault or []]
    progress = console.progress()
    progress.step(f"rehearsing the stack {stack}")
    settings = RehearsalSettings(
        time_scale=time_scale, plugin=plugin, startup_s=startup_seconds, scaling_speed=scaling_speed, vllm=vllm
    )
    prepared = rehearsal.prepare(project, stack, settings, progress)
    _tell_release(prepared, progress)
    if not as_json:
        show_plan(stack, prepared.plan, release=release_text(prepared.inventory.release))
    rehearsal.ask_for_faults(prepared, faults)
    rehearsal.pre_scale_down(prepared, progress)
    progress.step("updating the stack with the real engine")
    try:
        update = rehearsal.run_engine(prepared, "up", progress)
    except KitError:
        if (
            prepared.plan.smoke.where == "cluster"
        ):  # shows the benchmark in the cluster if that is what ended the update
            _smoke(prepared, ["--fetch", "--if-failed"], as_json=True)
        raise
    progress.step(changes_text(update))
    simulated = prepared.simulated(update["placeholders"])
    started_s = time.time()
    status = _benchmark(prepared, simulated, as_json=as_json) if benchmark else 0
    checks = rehearsal.check_servers(prepared, prepared.real) if prepared.real and benchmark else ()
    status = status or int(not all(check.passed for check in checks))
    latest = project / "reports" / stack / "latest"
    report = latest if latest.exists() and latest.lstat().st_mtime >= started_s else None
    if as_json:
        found = [dataclasses.asdict(check) for check in checks]
        typer.echo(json.dumps({**_document(prepared, update, report), "vllm": found}, indent=2))
    else:
        _show(prepared, update["placeholders"], report)
        _show_checks(checks)
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
    raise console.ChildExit(rehearsal.run_command(project, stack, command, interruptible=True))


@app.command()
def programs(
    tests: Annotated[bool, typer.Option("--tests", help="What only the kit's own tests run, too.")] = False,
) -> None:
    """Find all programs that rehearsals need, on PATH or in the cache, and build those that are missing."""
    progress = console.progress()
    inventory = rehearsal.have_programs(progress)
    if text := substitution_text(inventory.release):
        progress.step(text)
    _show_programs([*inventory.programs.values(), *(ensure(IN_TESTS, progress) if tests else {}).values()])


def _refuse_misplaced_options(context: typer.Context, subcommand: str) -> None:
    """Options before a sub-command belong to the group, so that they would count for nothing.

    Raises:
        KitError: there are some; says where they belong.
    """
    group = cast("Any", context.command)
    allowed = {name for parameter in group.commands[subcommand].params for name in parameter.opts}
    options = {item.opts[0]: context.params[item.name] for item in group.params if _is_typed(context, item.name)}
    if options:
        behind = [name if value is True else f"{name} {value}" for name, value in options.items() if name in allowed]
        unknown = ", ".join(name for name in options if name not in allowed)
        remedies = [f"`{subcommand}` has no {unknown}."] if unknown else []
        remedies += [f"Put it behind: llmd-oke rehearse {subcommand} {' '.join(behind)}"] if behind else []
        message = f"Options before `{subcommand}` count for nothing: {', '.join(options)}"
        raise KitError(message, " ".join(remedies))


def _is_typed(context: typer.Context, parameter: str) -> bool:
    """Tell whether the command line has an option; an environment variable counts for sub-commands too."""
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
    progress.step(changes_text(done))
    if not was_up:
        progress.step(f"the rehearsal of {stack} is up since; to end it: scripts/rehearse down --stack {stack}")
    if as_json:
        typer.echo(json.dumps({**done, **releases_document(prepared.inventory.release)}, indent=2))


def _tell_release(prepared: Prepared, progress: Progress) -> None:
    """Print which release stands in for the stack's, if one does."""
    if text := substitution_text(prepared.inventory.release):
        progress.step(text)


def _benchmark(prepared: Prepared, simulated: Sequence[str], *, as_json: bool) -> int:
    """Run `llmd-oke smoke` inside the rehearsal, or let it fetch the results of the cluster's benchmark."""
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
    output = sys.stderr if as_json else None
    return rehearsal.run_command(prepared.project, prepared.stack, argv, env=environment, output=output)
