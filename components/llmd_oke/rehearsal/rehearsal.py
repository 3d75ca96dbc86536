"""A rehearsal from the stack file to the running stack, seen from the host."""

import json
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from llmd_oke import catalogue, config, planning
from llmd_oke.catalogue.cache import cache_folder
from llmd_oke.catalogue.remedies import remedy_for
from llmd_oke.errors import KitError
from llmd_oke.planning import Plan
from llmd_oke.planning.releases import with_router
from llmd_oke.progress import Progress
from llmd_oke.rehearsal import ending, time_scale
from llmd_oke.rehearsal import simulated as not_real
from llmd_oke.rehearsal.agent_config import POLICIES_FILE
from llmd_oke.rehearsal.exclusive import exclusive
from llmd_oke.rehearsal.foreign import is_scaled
from llmd_oke.rehearsal.inventory import Inventory, fetch_charts, fetch_manifests, fetch_scaling, take_inventory
from llmd_oke.rehearsal.oci_plugin.faults import FaultRule
from llmd_oke.rehearsal.oci_plugin.faults import write as write_faults
from llmd_oke.rehearsal.plugins import KubernetesPlugin, PluginChoice, choose_plugin
from llmd_oke.rehearsal.project_copy import DEPLOYED, PREVIEWED, copy_project
from llmd_oke.rehearsal.simulated import pod_environment
from llmd_oke.rehearsal.state_files import OCI_FOLDER, checkpoint_file, latest
from llmd_oke.rehearsal.time_scale import TimeScale
from llmd_oke.rehearsal.world import World
from llmd_oke.rehearsal.world_plan import OCI_FAULTS_FILE, PLUGIN_PORTS, SECONDS_TO_START, USUAL, world_spec
from llmd_oke.rehearsal.world_record import end_of_log

ENGINE_END_TIMEOUT_S = 30.0
COMMAND_END_TIMEOUT_S = 60.0
ENGINE_FREE_TIMEOUT_S = 3600.0
"""How long to wait for another program's operation on the same stack."""

_ENDED_BY_SIGNAL = 128
"""What shells add to the number of the signal that ended a command."""

FOLDER = ".rehearsal"

_GONE_WITH_A_WORLD = ("etcd", "backend", "pods", "nodes", "volumes", OCI_FOLDER)
"""What the control plane, the engine, the agent and OCI know of a world; the next world starts without it."""


@dataclass(frozen=True)
class Settings:
    """How to rehearse. `time_scale` is wall seconds for a second of model time, `probe_time_scale` that of probes.

    `startup_s` is the wall time that each simulated server takes to start; None is about a second.

    Where `time_scale` is None, a rehearsal that runs keeps its own, and another gets one that suits stack and machine.
    """

    time_scale: float | None = None
    probe_time_scale: float = 0.1
    plugin: PluginChoice = PluginChoice.AUTO
    startup_s: float | None = None


@dataclass(frozen=True)
class Prepared:
    """A rehearsal whose world runs: its plan, with the release that it is rehearsed with, and what is real in it."""

    project: Path
    stack: str
    world: World
    plan: Plan
    inventory: Inventory
    plugin: KubernetesPlugin
    time_scale: TimeScale
    probe_time_scale: float
    startup_s: float | None

    @property
    def router(self) -> str:
        """The release whose endpoint picker and routing sidecar run."""
        return self.inventory.release.used.name

    @property
    def state(self) -> Path:
        """The world's folder."""
        return self.world.folder.path

    def simulated(self, placeholders: Mapping[str, int]) -> tuple[str, ...]:
        """What is not real in it; its pods have these images without a program, with their number."""
        return (*not_real.simulated(self.plan, self.plugin, placeholders), *unpoliced(self.state))


def unpoliced(state: Path) -> tuple[str, ...]:
    """That NetworkPolicies are not enforced in the world of that folder, and why; nothing where they are."""
    file = state / POLICIES_FILE
    why = file.read_text() if file.exists() else ""
    return (f"NetworkPolicies (declared; not enforced, as this machine can't filter packets: {why})",) if why else ()


_STACK_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")
"""Pulumi's rule for the names of stacks, less the two that are folders."""


def rehearsal_folder(project: Path, stack: str) -> Path:
    """Where a stack's rehearsal keeps its files.

    Raises:
        KitError: that is no name of a stack. A path would lead out of the project, and `down` removes files.
    """
    if not _STACK_NAME.fullmatch(stack):
        accepted = "A name has letters, digits, dots, hyphens and underscores, as in stacks/Pulumi.<name>.yaml."
        raise KitError(f"{stack!r} is no name of a stack.", accepted)
    return project / FOLDER / stack


def rehearsed_stacks(project: Path) -> list[str]:
    """The stacks whose world is up, or has failed and not been taken down."""
    return sorted(path.parent.name for path in (project / FOLDER).glob("*/world.json"))


def stacks_with_files(project: Path) -> list[str]:
    """The stacks that have been rehearsed here, whether or not their world is up."""
    return sorted(path.name for path in (project / FOLDER).glob("*") if path.is_dir())


def phase(project: Path, stack: str) -> str:
    """How a stack's world is: `ready`, `starting`, `stopping`, `failed`, or `gone` when it ended without a word."""
    record = World(rehearsal_folder(project, stack)).status()
    return record.phase if record else "gone"


def restarts(project: Path, stack: str) -> dict[str, int]:
    """The processes of a stack's world that ended on their own and were started again, with how often."""
    record = World(rehearsal_folder(project, stack)).status()
    if record is None:
        return {}
    return {name: process.restarts for name, process in record.processes.items() if process.restarts}


def prepare(project: Path, stack: str, settings: Settings, progress: Progress) -> Prepared:
    """Plans the stack, has its programs at hand and its world up. A world that fits is left as it is.

    Raises:
        Refused: the stack file can't be deployed.
        KitError: a program can't be had, or the world doesn't get ready; says why.
    """
    asked = planning.plan_stack_file(project, stack)
    plugin = choose_plugin(settings.plugin, asked)
    inventory = take_inventory(asked.release, progress)
    if isinstance(asked.cluster, config.CreateCluster):
        fetch_charts(progress)
    if is_scaled(asked):
        fetch_scaling(progress)
    used = planning.plan(with_router(config.load(project, stack), inventory.release.used.name))
    prepared = Prepared(
        project=project,
        stack=stack,
        world=World(rehearsal_folder(project, stack)),
        plan=used,
        inventory=inventory,
        plugin=plugin,
        time_scale=_time_scale(project, stack, used, settings),
        probe_time_scale=settings.probe_time_scale,
        startup_s=settings.startup_s,
    )
    progress.step(str(prepared.time_scale))
    _start(prepared, progress)
    return prepared


def ask_for_faults(prepared: Prepared, faults: Sequence[FaultRule]) -> None:
    """Makes the stand-in for OCI fail as these rules say, and no longer as rules before them said."""
    write_faults(prepared.state / OCI_FAULTS_FILE, faults)


def _time_scale(project: Path, stack: str, plan: Plan, settings: Settings) -> TimeScale:
    """The one that is asked for, else that of the world that runs, else the one that suits."""
    if settings.time_scale is not None:
        return TimeScale(settings.time_scale, "as asked for")
    suits = time_scale.chosen(time_scale.demand_of(plan), time_scale.processors())
    running = running_settings(project, stack).time_scale if phase(project, stack) == "ready" else None
    if running is None or running == suits.scale:
        return suits
    other = f"--time-scale {suits.scale:g} would begin anew with what suits the stack as it is now"
    return TimeScale(running, f"the running rehearsal keeps its own; {other}")


def running_settings(project: Path, stack: str) -> Settings:
    """The settings that a stack's world runs with; the defaults where there is none."""
    record = World(rehearsal_folder(project, stack)).status()
    if record is None:
        return Settings()
    names = ("time_scale", "probe_time_scale")
    scales = {name: float(record.facts[name]) for name in names if name in record.facts}
    plugin, _, _version = record.facts.get("kubernetes_plugin", PluginChoice.AUTO).partition(" ")
    start = record.facts.get(SECONDS_TO_START, USUAL)
    return Settings(**scales, plugin=PluginChoice(plugin), startup_s=None if start == USUAL else float(start))


def _start(prepared: Prepared, progress: Progress) -> None:
    """Starts the world unless it runs from the same spec already."""
    state, scale = prepared.state, prepared.time_scale.scale
    state.mkdir(parents=True, exist_ok=True)
    paths = prepared.inventory.paths()
    told = pod_environment(prepared.plan, prepared.inventory.programs, prepared.plugin, scale)
    scales = (scale, prepared.probe_time_scale)
    spec = world_spec(state, prepared.plan, paths, *scales, told, plugin=prepared.plugin, startup_s=prepared.startup_s)
    prepared.world.start(spec, progress, discard=[state / name for name in _GONE_WITH_A_WORLD])


def run_engine(
    prepared: Prepared,
    operation: str,
    progress: Progress,
    *,
    targets: Sequence[str] = (),
    unprotect: bool = False,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs an operation of the real engine in the world: `up`, `preview`, `refresh`, `destroy`, `drift` or `replace`.

    `targets` are the URNs of what `destroy` is about, with all that depends on them, or the names of nodes for
    `replace`, whose options are in `more`; everything if left out. With `unprotect` it takes protected resources too.

    When it is interrupted, the engine still saves what it has done, so that the next operation goes on from there.

    Raises:
        KitError: the operation failed; says why in the engine's words.
    """
    lock_file = prepared.state / "engine.lock"
    with exclusive(lock_file, "finish with the engine", progress, ENGINE_FREE_TIMEOUT_S):
        chosen = [word for urn in targets for word in ("--target", urn)]
        one = ["--one-at-a-time"] if operation == "up" and _is_upgrade(prepared) else []
        words = [operation, *chosen, *(["--unprotect"] if unprotect else []), *more, *one]
        return _run_engine(prepared, words, progress)


def _is_upgrade(prepared: Prepared) -> bool:
    """Whether clusters or pools get another version of Kubernetes: one after the other, as `llmd-oke up` does it."""
    cluster = prepared.plan.cluster
    if not isinstance(cluster, config.CreateCluster):
        return False
    after = {cluster.kubernetes_version, *(pool.kubernetes_version for pool in prepared.plan.config.gpu_pools)}
    resources = latest(checkpoint_file(prepared.state, prepared.stack)).get("resources") or ()
    before = {resource.get("inputs", {}).get("kubernetesVersion") for resource in resources}
    return bool(before - after - {None})


def _run_engine(prepared: Prepared, words: Sequence[str], progress: Progress) -> dict[str, Any]:
    folder = PREVIEWED if words[0] in {"drift", "preview"} else DEPLOYED
    copy = copy_project(prepared.project, prepared.stack, prepared.state, prepared.router, folder)
    prepared.plugin.install(copy.pulumi_home)
    result_file = prepared.state / "engine.json"
    result_file.unlink(missing_ok=True)
    own = ["--project", str(copy.folder), "--stack", prepared.stack, "--result", str(result_file)]
    loaded = [word for module in program_modules(prepared.plan) for word in ("--load", module)]
    argv = [sys.executable, "-m", "llmd_oke.rehearsal.engine", *own, *words, *loaded]
    environment = {**copy.variables(), **_engine_environment(prepared)}
    log = prepared.world.folder.log_file("engine")
    with (
        log.open("w") as errors,
        prepared.world.process_inside(
            argv, env=environment, folder=copy.folder, output=subprocess.PIPE, errors=errors
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                progress.detail(line.rstrip())
            process.wait(ENGINE_END_TIMEOUT_S)
        except KeyboardInterrupt:
            progress.step("interrupted: the engine ends what it has begun")
            ending.end_group(process, ENGINE_END_TIMEOUT_S)
            progress.step("the rehearsal stays up as it is; the next run goes on from there")
            raise
    return _engine_result(prepared.stack, result_file, log)


CREATED_CLUSTER_MODULES = (
    "llmd_oke.stack.cluster",
    "llmd_oke.stack.operators",
    "pulumi_oci.containerengine.cluster",
    "pulumi_oci.containerengine.node_pool",
    "pulumi_oci.core.network_security_group_security_rule",
    "pulumi_oci.core.vcn",
)
"""What every program loads that creates a cluster; the modules of OCI's package bring the types of all of it."""


def program_modules(plan: Plan) -> list[str]:
    """The modules that a stack's program loads: OCI's packages only where it creates a cluster."""
    created = isinstance(plan.cluster, config.CreateCluster)
    return ["llmd_oke.stack", *(CREATED_CLUSTER_MODULES if created else ())]


def _engine_result(stack: str, result_file: Path, log: Path) -> dict[str, Any]:
    if not result_file.exists():
        raise KitError(f"The engine ended without a result: {end_of_log(log, lines=1).strip()}", f"Its log is {log}.")
    result: dict[str, Any] = json.loads(result_file.read_text())
    if "error" in result:
        over = f"Change what it complains of and rehearse again, or start over: scripts/rehearse down --stack {stack}"
        raise KitError(result["error"], result["remedy"] or remedy_for(result["error"]) or over)
    return result


def _engine_environment(prepared: Prepared) -> Mapping[str, str]:
    """What the program and the engine are told of the world: kubeconfig, where their programs are, and the stand-ins
    that the engine attaches to instead of starting a plug-in.
    """
    programs = prepared.inventory.link_engine(prepared.state / "bin")
    left_out = {"kubernetes"} if prepared.plugin.is_real else set[str]()
    attached = [f"{name}:{port}" for name, port in PLUGIN_PORTS.items() if name not in left_out]
    return {
        **_inside_environment(prepared.state),
        "PATH": f"{programs}:{prepared.world.environment()['PATH']}",
        "PULUMI_DEBUG_PROVIDERS": ",".join(attached),
    }


def _inside_environment(state: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(state / "kubeconfig.yaml"), "LLMD_OKE_CACHE": str(cache_folder())}


def run_command(
    project: Path,
    stack: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output: TextIO | None = None,
    interruptible: bool = False,
) -> int:
    """Runs a command inside a stack's world, its output where the caller's goes, and gives its exit code.

    The programs beside this Python are on its PATH, `llmd-oke` among them.

    Ctrl-C ends the command at once; an `interruptible` one hears of it, has a minute to end by itself, and counts as
    ended by SIGINT.

    Raises:
        KitError: the stack's world isn't up.
    """
    world = World(rehearsal_folder(project, stack))
    path = f"{sysconfig.get_path('scripts')}:{world.environment()['PATH']}"
    environment = {**_inside_environment(world.folder.path), "PATH": path, **(env or {})}
    with world.process_inside(argv, env=environment, folder=project, output=output) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            if not interruptible:
                raise
            ending.end_group(process, COMMAND_END_TIMEOUT_S, signal.SIGINT)
            return _ENDED_BY_SIGNAL + signal.SIGINT


def down(project: Path, stack: str) -> bool:
    """Ends a stack's world and removes its files, logs excepted. Says whether there was anything but logs."""
    world = World(rehearsal_folder(project, stack))
    if not world.folder.path.is_dir():
        return False
    world.stop()
    files = [path for path in world.folder.path.iterdir() if path not in {world.folder.logs, world.folder.lock_file}]
    for path in files:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return bool(files)


def have_programs(progress: Progress) -> Inventory:
    """Everything that rehearsals need, whichever release they ask for: programs, and all releases' charts and CRDs.

    Raises:
        KitError: something can't be had; names all of it, each with the command that installs it.
    """
    releases = [found for name in catalogue.release_names() if (found := catalogue.release(name))]
    for release in releases:
        fetch_manifests(release, progress)
    return take_inventory(releases[-1], progress)
