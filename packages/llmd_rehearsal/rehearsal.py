"""A rehearsal from the stack file to the running stack, seen from the host."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke import catalogue, config, planning
from llmd_oke.catalogue.operations import remedy_for
from llmd_oke.operations.guards import SERVERS, Displacement, displacement, gpus_of
from llmd_oke.operations.locks import file_lock
from llmd_oke.operations.previews import of_document
from llmd_oke.operations.pulumi_cli import end_group
from llmd_oke.planning import Plan
from llmd_oke.planning.releases import with_router
from llmd_oke.values import cache_folder

from llmd_rehearsal import cluster_plan, plugins, time_scale
from llmd_rehearsal.autoscaling import ScalingTime, is_scaled, keda_parts
from llmd_rehearsal.cluster_plan import (
    MEMORY_GIB,
    OCI_FAULTS_FILE,
    PLUGIN_PORTS,
    PROGRAMS,
    SCALING_SPEED,
    SECONDS_TO_START,
    USUAL,
    further_programs,
    local_cluster_spec,
    pod_environment,
    preinstalled_definitions,
    programs_in_pods,
)
from llmd_rehearsal.cluster_spec import POLICIES_FILE, end_of_log
from llmd_rehearsal.engine_project import DEPLOYED, OCI_FOLDER, PREVIEWED, checkpoint_file, copy_project, latest
from llmd_rehearsal.inventory import CHARTS, Inventory, fetch_charts, fetch_definitions, take_inventory
from llmd_rehearsal.local_cluster import LocalCluster
from llmd_rehearsal.oci_plugin.faults import FaultRule
from llmd_rehearsal.oci_plugin.faults import write_rules as write_faults
from llmd_rehearsal.plugins import KubernetesPlugin, PluginChoice, choose_plugin
from llmd_rehearsal.real_vllm.choice import RealRehearsal, VllmChoice, choose_stack
from llmd_rehearsal.real_vllm.choice import prepare as prepare_real
from llmd_rehearsal.real_vllm.tiny_models import TinyModel
from llmd_rehearsal.real_vllm.topologies import CutStack, available_gib
from llmd_rehearsal.time_scale import TimeScale
from llmd_rehearsal.vllm.command import NIXL_CONNECTORS

if TYPE_CHECKING:
    from llmd_rehearsal.real_vllm.checks import ServerCheck

ENGINE_END_TIMEOUT_S = 30.0
COMMAND_END_TIMEOUT_S = 60.0
ENGINE_FREE_TIMEOUT_S = 3600.0
"""Seconds to wait for another program's operation on the same stack."""

PASSED_ON = ("PULUMI_EXPERIMENTAL", "PULUMI_SKIP_CHECKPOINTS")
"""The user's variables that the engine of a rehearsal obeys. With both `true` it saves its state at the end only, which
large stacks need (docs/how-to/large-stacks.md), and an engine that is killed leaves what it has created unknown.
"""

_ENDED_BY_SIGNAL = 128
"""Number that shells add to the signal that ended a command."""

FOLDER = ".rehearsal"

_CLUSTER_FOLDERS = ("etcd", "backend", "pods", "nodes", "volumes", OCI_FOLDER)
"""Folders of a local cluster's state: control plane, engine, agent and OCI. The next cluster starts without them."""


@dataclass(frozen=True)
class RehearsalSettings:
    """Options of a rehearsal. `time_scale` is wall seconds for a second of model time, `probe_time_scale` of probes.

    `startup_s` is the wall time that each simulated server takes to start; None is about a second. Where `vllm` is the
    real one, servers and probes go by the wall clock; `memory_gib` is what was available as it began.

    Where `time_scale` is None, a rehearsal that runs keeps its own, and another gets one that suits stack and machine.
    `scaling_speed` are seconds of scaling by load in one of wall time; None is that of the rehearsal that runs, or else
    the usual one.
    """

    time_scale: float | None = None
    probe_time_scale: float = 0.1
    plugin: PluginChoice = PluginChoice.AUTO
    startup_s: float | None = None
    scaling_speed: float | None = None
    vllm: VllmChoice = VllmChoice.SIMULATED
    memory_gib: int | None = None


@dataclass(frozen=True)
class Prepared:
    """A rehearsal whose cluster runs: its plan, with the release that it is rehearsed with, and what is real in it."""

    project: Path
    stack: str
    cluster: LocalCluster
    plan: Plan
    inventory: Inventory
    plugin: KubernetesPlugin
    time_scale: TimeScale
    probe_time_scale: float
    startup_s: float | None
    scaling_time: ScalingTime | None
    real: RealRehearsal | None = None

    @property
    def vllm(self) -> VllmChoice:
        """Choice of its servers: simulated, or vLLM itself."""
        return VllmChoice.REAL if self.real else VllmChoice.SIMULATED

    @property
    def router(self) -> str:
        """The release whose endpoint picker and routing sidecar run."""
        return self.inventory.release.used.name

    @property
    def state(self) -> Path:
        """The local cluster's folder."""
        return self.cluster.folder.path

    def simulated(self, placeholders: Mapping[str, int]) -> tuple[str, ...]:
        """Parts of the rehearsal that aren't real; its pods have these images without a program, with their number."""
        parts = cluster_plan.simulated(self.plan, self.plugin, placeholders, self.vllm)
        return (*parts, *unenforced_policies(self.state))


def unenforced_policies(state: Path) -> tuple[str, ...]:
    """Notice that NetworkPolicies are not enforced in that folder's local cluster, and why; empty where they are."""
    file = state / POLICIES_FILE
    why = file.read_text() if file.exists() else ""
    return (f"NetworkPolicies (declared; not enforced, as this machine can't filter packets: {why})",) if why else ()


_STACK_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")
"""Pulumi's rule for the names of stacks, less the two that are folders."""


def rehearsal_folder(project: Path, stack: str) -> Path:
    """Folder of a stack's rehearsal.

    Raises:
        KitError: that is no name of a stack. A path would lead out of the project, and `down` removes files.
    """
    if not _STACK_NAME.fullmatch(stack):
        accepted = "A name has letters, digits, dots, hyphens and underscores, as in stacks/Pulumi.<name>.yaml."
        raise KitError(f"{stack!r} is no name of a stack.", accepted)
    return project / FOLDER / stack


def rehearsed_stacks(project: Path) -> list[str]:
    """The stacks whose cluster is up, or has failed and not been taken down."""
    return sorted(path.parent.name for path in (project / FOLDER).glob("*/cluster.json"))


def stacks_with_files(project: Path) -> list[str]:
    """The stacks that have been rehearsed here, whether or not their cluster is up."""
    return sorted(path.name for path in (project / FOLDER).glob("*") if path.is_dir())


def phase(project: Path, stack: str) -> str:
    """Phase of a stack's cluster: `ready`, `starting`, `stopping`, `failed`, or `gone` when it ended without a word."""
    record = LocalCluster(rehearsal_folder(project, stack)).status()
    return record.phase if record else "gone"


def has_prometheus(project: Path, stack: str) -> bool:
    """Tell whether a Prometheus runs in a stack's cluster."""
    record = LocalCluster(rehearsal_folder(project, stack)).status()
    return record is not None and "prometheus" in record.processes


def restarts(project: Path, stack: str) -> dict[str, int]:
    """The processes of a stack's cluster that ended on their own and were started again, with how often."""
    record = LocalCluster(rehearsal_folder(project, stack)).status()
    if record is None:
        return {}
    return {name: process.restarts for name, process in record.processes.items() if process.restarts}


def prepare(project: Path, stack: str, settings: RehearsalSettings, progress: Progress) -> Prepared:
    """Plan the stack, provide its programs, and start its cluster. A local cluster that fits is left as it is.

    Raises:
        InvalidStack: the stack file can't be deployed.
        KitError: a program can't be had, or the local cluster doesn't get ready; says why.
    """
    plan = planning.plan_stack_file(project, stack)
    _require_nixl(plan)
    fitting = _fitting(project, stack, settings)
    plugins.check_choice(settings.plugin, plan)
    inventory = take_inventory(plan.release, progress, further_programs(plan))
    pulumi = inventory.programs["pulumi"]
    plugin = choose_plugin(settings.plugin, plan, lambda version: plugins.fetch(version, pulumi, progress))
    if isinstance(plan.cluster, config.CreateCluster):
        fetch_charts(progress)
    fetch_definitions(preinstalled_definitions(plan), progress)
    real = prepare_real(*fitting, progress) if fitting else None
    stack_config = real.stack.config if real else config.load(project, stack)
    rehearsed = planning.plan(with_router(stack_config, inventory.release.used.name))
    scale = _time_scale(project, stack, rehearsed, settings)
    prepared = Prepared(
        project=project,
        stack=stack,
        cluster=LocalCluster(rehearsal_folder(project, stack)),
        plan=rehearsed,
        inventory=inventory,
        plugin=plugin,
        time_scale=scale,
        probe_time_scale=1.0 if real else settings.probe_time_scale,
        startup_s=settings.startup_s,
        real=real,
        scaling_time=_scaling_time(project, stack, rehearsed, settings, scale.scale),
    )
    progress.step(str(prepared.time_scale))
    if prepared.scaling_time is not None:
        progress.step(str(prepared.scaling_time))
    _start(prepared, progress)
    return prepared


def _require_nixl(plan: planning.Plan) -> None:
    for model in plan.models:
        if (way := model.settings.hand_over) and way.connector != NIXL_CONNECTORS[0]:
            named = model.engine.kv_cache.connector
            raise KitError(
                f"{model.name} hands KV cache over by {named}, which rehearsals don't simulate.",
                "Rehearse a stack file without engine.kvCache.connector, which has nixl then.",
            )


def _fitting(project: Path, stack: str, settings: RehearsalSettings) -> tuple[CutStack, Mapping[str, TinyModel]] | None:
    """Return the stack as vLLM itself can serve it here, with tiny models; None where vLLM is simulated.

    A rehearsal that runs keeps the topology that it was begun with, whose memory is no longer available.
    """
    if settings.vllm is VllmChoice.SIMULATED:
        return None
    running = running_settings(project, stack).memory_gib if phase(project, stack) == "ready" else None
    return choose_stack(config.load(project, stack), time_scale.processors(), running or available_gib())


def ask_for_faults(prepared: Prepared, faults: Sequence[FaultRule]) -> None:
    """Make the stand-in for OCI fail by these rules, and no longer by earlier ones."""
    write_faults(prepared.state / OCI_FAULTS_FILE, faults)


def _time_scale(project: Path, stack: str, plan: Plan, settings: RehearsalSettings) -> TimeScale:
    """Time scale of the settings, else of the local cluster that runs, else the one that suits stack and machine."""
    if settings.time_scale is not None:
        return TimeScale(settings.time_scale, "as asked for")
    if settings.vllm is VllmChoice.REAL:
        return TimeScale(1.0, "vLLM itself goes by the wall clock")
    suits = time_scale.choose_time_scale(time_scale.demand_of(plan), time_scale.processors())
    running = running_settings(project, stack).time_scale if phase(project, stack) == "ready" else None
    if running is None or running == suits.scale:
        return suits
    other = f"--time-scale {suits.scale:g} would begin anew with what suits the stack as it is now"
    return TimeScale(running, f"the running rehearsal keeps its own; {other}")


def _scaling_time(
    project: Path, stack: str, plan: Plan, settings: RehearsalSettings, time_scale: float
) -> ScalingTime | None:
    """Scaling speed of the settings, else of the local cluster that runs, else the usual one; None without scaling."""
    if not is_scaled(plan):
        return None
    running = running_settings(project, stack).scaling_speed if phase(project, stack) == "ready" else None
    return ScalingTime(settings.scaling_speed or running or keda_parts().speed, time_scale)


def running_settings(project: Path, stack: str) -> RehearsalSettings:
    """The settings that a stack's cluster runs with; the defaults where there is none."""
    record = LocalCluster(rehearsal_folder(project, stack)).status()
    if record is None:
        return RehearsalSettings()
    names = ("time_scale", "probe_time_scale", SCALING_SPEED)
    scales = {name: float(record.facts[name]) for name in names if name in record.facts}
    plugin, _, _version = record.facts.get("kubernetes_plugin", PluginChoice.AUTO).partition(" ")
    start = record.facts.get(SECONDS_TO_START, USUAL)
    return RehearsalSettings(
        **scales,
        plugin=PluginChoice(plugin),
        startup_s=None if start == USUAL else float(start),
        vllm=VllmChoice.REAL if MEMORY_GIB in record.facts else VllmChoice.SIMULATED,
        memory_gib=int(record.facts[MEMORY_GIB]) if MEMORY_GIB in record.facts else None,
    )


def running_programs(project: Path, stack: str) -> tuple[str, ...]:
    """The programs that run in pods of a stack's cluster, as `NAME=VERSION`."""
    record = LocalCluster(rehearsal_folder(project, stack)).status()
    return () if record is None else tuple(record.facts.get(PROGRAMS, "").split())


def _start(prepared: Prepared, progress: Progress) -> None:
    """Start the local cluster unless it runs from the same spec already."""
    state, scale = prepared.state, prepared.time_scale.scale
    state.mkdir(parents=True, exist_ok=True)
    paths = prepared.inventory.paths()
    variables = pod_environment(prepared.plan, prepared.inventory.programs, prepared.plugin, scale, prepared.vllm)
    scales = (scale, prepared.probe_time_scale)
    spec = local_cluster_spec(
        state,
        prepared.project,
        prepared.plan,
        paths,
        *scales,
        variables,
        plugin=prepared.plugin,
        startup_s=prepared.startup_s,
        scaling_time=prepared.scaling_time,
        versions={name: prepared.inventory.programs[name].version for name in programs_in_pods(prepared.plan)},
        real=prepared.real,
    )
    prepared.cluster.start(spec, progress, discard=[state / name for name in _CLUSTER_FOLDERS])


def run_engine(
    prepared: Prepared,
    operation: str,
    progress: Progress,
    *,
    targets: Sequence[str] = (),
    unprotect: bool = False,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """Run an operation of the real engine inside: `up`, `preview`, `refresh`, `destroy`, `drift` or `replace`.

    `targets` are the URNs of what `destroy` is about, with all that depends on them, or the names of nodes for
    `replace`, whose options are in `more`; everything if left out. With `unprotect` it takes protected resources too.

    When it is interrupted, the engine still saves what it has done, so that the next operation goes on from there.

    Raises:
        KitError: the operation failed; says why in the engine's words.
    """
    lock_file = prepared.state / "engine.lock"
    with file_lock(lock_file, "finish with the engine", progress, ENGINE_FREE_TIMEOUT_S):
        options = [word for target in targets for word in ("--target", target)]
        options += ["--unprotect"] if unprotect else []
        if time := prepared.scaling_time:
            options += ["--scaling-speed", str(time.speed), "--time-scale", str(time.time_scale)]
        options += [*more, *(["--one-at-a-time"] if operation == "up" and _is_upgrade(prepared) else [])]
        return _run_engine(prepared, operation, options, progress)


def _is_upgrade(prepared: Prepared) -> bool:
    """Tell whether clusters or pools get another version of Kubernetes, one after the other as by `llmd-oke up`."""
    created = prepared.plan.created
    if created is None:
        return False
    after = {created.kubernetes_version, *(pool.kubernetes_version for pool in created.gpu_pools)}
    resources = latest(checkpoint_file(prepared.state, prepared.stack)).get("resources") or ()
    before = {resource.get("inputs", {}).get("kubernetesVersion") for resource in resources}
    return bool(before - after - {None})


def _run_engine(prepared: Prepared, operation: str, options: Sequence[str], progress: Progress) -> dict[str, Any]:
    folder = PREVIEWED if operation in {"drift", "preview"} else DEPLOYED
    cut = prepared.real.stack if prepared.real else None
    copy = copy_project(prepared.project, prepared.stack, prepared.state, prepared.router, folder, cut)
    prepared.plugin.install(copy.pulumi_home)
    result_file = prepared.state / "engine.json"
    result_file.unlink(missing_ok=True)
    project = ["--project", str(copy.folder), "--stack", prepared.stack, "--result", str(result_file)]
    modules = [word for module in program_modules(prepared.plan) for word in ("--load", module)]
    argv = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "llmd_rehearsal.engine",
        *project,
        operation,
        *options,
        *modules,
    ]
    environment = {**copy.variables(), **_engine_environment(prepared)}
    log = prepared.cluster.folder.log_file("engine")
    with (
        log.open("w") as errors,
        prepared.cluster.process_inside(
            argv, env=environment, folder=copy.folder, output=subprocess.PIPE, errors=errors
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                progress.detail(line.rstrip())
            process.wait(ENGINE_END_TIMEOUT_S)
        except KeyboardInterrupt:
            progress.step("interrupted: the engine ends what it has begun")
            end_group(process, ENGINE_END_TIMEOUT_S)
            progress.step("the rehearsal stays up as it is; the next run goes on from there")
            raise
    if not result_file.exists():
        ended = f"The engine ended with exit code {process.returncode} and without a result"
        raise KitError(f"{ended}: {end_of_log(log, lines=1).strip()}", f"Its log is {log}.")
    result: dict[str, Any] = json.loads(result_file.read_text())
    if "error" in result:
        over = "Change what it complains of and rehearse again, or start over: scripts/rehearse down --stack "
        remedy = result["remedy"] or remedy_for(result["error"]) or over + prepared.stack
        raise KitError(result["error"], remedy)
    return result


CREATED_CLUSTER_MODULES = (
    "llmd_oke.program.cluster",
    "pulumi_oci.containerengine.addon",
    "pulumi_oci.containerengine.cluster",
    "pulumi_oci.containerengine.node_pool",
    "pulumi_oci.core.compute_cluster",
    "pulumi_oci.core.default_security_list",
    "pulumi_oci.core.nat_gateway",
    "pulumi_oci.core.network_security_group_security_rule",
    "pulumi_oci.core.route_table",
    "pulumi_oci.core.security_list",
    "pulumi_oci.core.service_gateway",
    "pulumi_oci.core.subnet",
    "pulumi_oci.core.vcn",
    "pulumi_oci.identity.policy",
)
"""Modules of every program that creates a cluster; the modules of OCI's package bring the types of all of it."""


def program_modules(plan: Plan) -> list[str]:
    """The modules that a stack's program loads: OCI's packages only where it creates a cluster."""
    created = isinstance(plan.cluster, config.CreateCluster)
    return ["llmd_oke.program", *(CREATED_CLUSTER_MODULES if created else ())]


def _engine_environment(prepared: Prepared) -> Mapping[str, str]:
    """The engine's and its program's variables for the local cluster: kubeconfig, where their programs are, and the
    stand-ins that the engine attaches to instead of starting a plug-in. What the user has set of `PASSED_ON` counts.
    """
    programs = prepared.inventory.link_engine(prepared.state / "bin")
    stand_ins = PLUGIN_PORTS.items() if not prepared.plugin.is_real else [("oci", PLUGIN_PORTS["oci"])]
    attached = [f"{name}:{port}" for name, port in stand_ins]
    return {
        **_inside_environment(prepared.state),
        "PATH": f"{programs}:{prepared.cluster.environment()['PATH']}",
        "PULUMI_DEBUG_PROVIDERS": ",".join(attached),
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
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
    """Run a command inside a stack's cluster, its output where the caller's goes, and return its exit code.

    The programs beside this Python are on its PATH, `llmd-oke` among them.

    Ctrl-C ends the command at once; an `interruptible` one hears of it, has a minute to end by itself, and counts as
    ended by SIGINT.

    Raises:
        KitError: the stack's cluster isn't up.
    """
    cluster = LocalCluster(rehearsal_folder(project, stack))
    path = f"{sysconfig.get_path('scripts')}:{cluster.environment()['PATH']}"
    environment = {**_inside_environment(cluster.folder.path), "PATH": path, **(env or {})}
    with cluster.process_inside(argv, env=environment, folder=project, output=output) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            if not interruptible:
                raise
            end_group(process, COMMAND_END_TIMEOUT_S, signal.SIGINT)
            return _ENDED_BY_SIGNAL + signal.SIGINT


def down(project: Path, stack: str) -> bool:
    """End a stack's cluster and remove its files, logs excepted. Returns whether there was anything but logs."""
    cluster = LocalCluster(rehearsal_folder(project, stack))
    if not cluster.folder.path.is_dir():
        return False
    cluster.stop()
    files = [
        path for path in cluster.folder.path.iterdir() if path not in {cluster.folder.logs, cluster.folder.lock_file}
    ]
    for path in files:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return bool(files)


def have_programs(progress: Progress) -> Inventory:
    """Everything that rehearsals need, whichever release they ask for: programs, and all releases' charts and CRDs.

    Raises:
        KitError: something can't be had; names all of it, each with the command that installs it.
    """
    releases = [release for name in catalogue.release_names() if (release := catalogue.release(name))]
    for release in releases:
        fetch_definitions((release.crds,), progress)
    return take_inventory(catalogue.default_release(), progress, CHARTS)


def pre_scale_down(prepared: Prepared, progress: Progress) -> Displacement | None:
    """Delete servers that have to go before others can come, and return them; None where there are none.

    Without servers that leave the stack this costs nothing: only then is there a preview.

    Raises:
        KitError: the preview or the deletion failed; says why.
    """
    if not removed_servers(checkpoint_file(prepared.state, prepared.stack), prepared.plan):
        return None
    progress.step("previewing, because servers leave the stack")
    preview = of_document(run_engine(prepared, "preview", progress))
    servers = displacement(preview, prepared.plan.gpus)
    if servers is not None:
        progress.step(str(servers))
        run_engine(prepared, "destroy", progress, targets=[change.urn for change in servers.first])
    return servers


def removed_servers(file: Path, plan: Plan) -> list[str]:
    """The names of the model servers in an engine's state that a plan no longer has.

    Another version of a unit that comes beside the old one has room by its plan.
    """
    resources: list[dict[str, Any]] = latest(file).get("resources") or []
    deployed = [
        resource["inputs"]["metadata"]["name"]
        for resource in resources
        if resource["type"] in SERVERS and gpus_of(resource.get("inputs") or {})
    ]
    planned = [
        f"{unit.name}{'-[0-9a-f]+' if model.update_way == 'beside' else ''}-{role.role}"
        for model in plan.models
        for unit in model.units
        for role in unit.roles
    ]
    return [name for name in deployed if not any(re.fullmatch(pattern, name) for pattern in planned)]


def check_servers(prepared: Prepared, real: RealRehearsal) -> "Sequence[ServerCheck]":
    """Check the servers of vLLM itself from inside, and keep the results beside the stack's reports.

    Raises:
        KitError: the checks came to no result.
    """
    from llmd_rehearsal.real_vllm import report  # noqa: PLC0415 - it loads Pulumi

    reports = prepared.project / "reports" / prepared.stack
    reports.mkdir(parents=True, exist_ok=True)
    facts, results = prepared.state / "real-vllm-facts.json", reports / report.RESULTS_FILE
    enforced = not unenforced_policies(prepared.state)
    models = report.model_facts(prepared.plan, real, policies_enforced=enforced)
    facts.write_text(json.dumps([asdict(model) for model in models]))
    results.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "llmd_rehearsal.real_vllm.checks", str(facts), str(results)]
    status = run_command(prepared.project, prepared.stack, argv)
    if not (found := report.read_results(results)):
        raise KitError(f"The checks of vLLM's servers ended with {status} and without a result.")
    return found
