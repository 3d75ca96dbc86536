"""Rehearsal of a stack as seen from the host: preparation, engine operations, commands inside, and end."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

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
from llmd_rehearsal.engine_project import (
    BEFORE,
    DEPLOYED,
    OCI_FOLDER,
    PREVIEWED,
    checkpoint_file,
    copy_project,
    install_package,
    latest,
    runtime,
)
from llmd_rehearsal.inventory import (
    CHARTS,
    Inventory,
    fetch_charts,
    fetch_definitions,
    language_programs,
    take_inventory,
)
from llmd_rehearsal.local_cluster import LocalCluster, start_reason
from llmd_rehearsal.oci_plugin.faults import FaultRule
from llmd_rehearsal.oci_plugin.faults import write_rules as write_faults
from llmd_rehearsal.plugins import KubernetesPlugin, PluginChoice, choose_plugin
from llmd_rehearsal.real_vllm.choice import RealRehearsal, VllmChoice, choose_stack
from llmd_rehearsal.real_vllm.choice import prepare as prepare_real
from llmd_rehearsal.real_vllm.tiny_models import TinyModel
from llmd_rehearsal.real_vllm.topologies import CutStack, available_gib
from llmd_rehearsal.time_scale import TimeScale
from llmd_rehearsal.vllm.command import NIXL_CONNECTORS

ENGINE_END_TIMEOUT_S = 30.0
COMMAND_END_TIMEOUT_S = 60.0
ENGINE_FREE_TIMEOUT_S = 3600.0
"""Seconds to wait for another process's operation on the same stack."""

PASSED_ON = ("PULUMI_EXPERIMENTAL", "PULUMI_SKIP_CHECKPOINTS")
"""Environment variables of the user that are passed to the rehearsal's engine. With both set to `true` the engine saves
its state only at the end, which large stacks need (docs/how-to/large-stacks.md); a killed engine then leaves resources
that the state doesn't have.
"""

_ENDED_BY_SIGNAL = 128
"""Number that shells add to the signal number for the exit code of a command that a signal ended."""

FOLDER = ".rehearsal"

_CLUSTER_FOLDERS = ("etcd", "backend", "pods", "nodes", "volumes", OCI_FOLDER)
"""Folders with the data of a local cluster (control plane, engine, node agent, OCI), deleted before another one starts.
"""


@dataclass(frozen=True)
class RehearsalSettings:
    """Options of a rehearsal.

    `time_scale` is wall seconds for one second of model time; None keeps the scale of a running rehearsal, or else
    chooses one for the stack and this machine. `probe_time_scale` is wall seconds for one second of probes' durations.
    `startup_s` is the wall time in seconds that each simulated server takes to start; None is about one second.
    `scaling_speed` is seconds of scaling by load in one second of wall time; None keeps the speed of a running
    rehearsal, or else is the default. With real `vllm`, servers and probes run in wall time, and `memory_gib` is the
    memory that was available at the start. `after` is another project, whose stack of the same name is deployed first.
    """

    time_scale: float | None = None
    probe_time_scale: float = 0.1
    plugin: PluginChoice = PluginChoice.AUTO
    startup_s: float | None = None
    scaling_speed: float | None = None
    vllm: VllmChoice = VllmChoice.SIMULATED
    memory_gib: int | None = None
    after: Path | None = None


@dataclass(frozen=True)
class Prepared:
    """Rehearsal whose local cluster is ready: the plan with the rehearsed release, and the real and simulated parts.

    `begun` says why the local cluster was started for it, without what was deployed in an earlier one; it is empty if
    a running one was kept, which an update goes on from.
    """

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
    begun: str = ""

    @property
    def vllm(self) -> VllmChoice:
        """Choice of the servers: simulated, or vLLM itself."""
        return VllmChoice.REAL if self.real else VllmChoice.SIMULATED

    @property
    def router(self) -> str:
        """Name of the release whose endpoint picker and routing sidecar run."""
        return self.inventory.release.used.name

    @property
    def state(self) -> Path:
        """Folder of the local cluster."""
        return self.cluster.folder.path

    def simulated(self, placeholders: Mapping[str, int]) -> tuple[str, ...]:
        """Return the names of the parts that aren't real; `placeholders` maps images without a program to the number of
        their pods.
        """
        parts = cluster_plan.simulated(self.plan, self.plugin, placeholders, self.vllm)
        return (*parts, *unenforced_policies(self.state))


def unenforced_policies(state: Path) -> tuple[str, ...]:
    """Return a notice with the reason why NetworkPolicies aren't enforced in this folder's local cluster; empty if
    NetworkPolicies are enforced.
    """
    file = state / POLICIES_FILE
    why = file.read_text() if file.exists() else ""
    return (f"NetworkPolicies (declared; not enforced, as this machine can't filter packets: {why})",) if why else ()


_STACK_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")
"""Pulumi's rule for stack names, without `.` and `..`."""


def rehearsal_folder(project: Path, stack: str) -> Path:
    """Return the folder of a stack's rehearsal.

    Raises:
        KitError: the name isn't a valid stack name. A path could lead out of the project, and `down` deletes files.
    """
    if not _STACK_NAME.fullmatch(stack):
        accepted = "A name has letters, digits, dots, hyphens and underscores, as in stacks/Pulumi.<name>.yaml."
        raise KitError(f"{stack!r} is no name of a stack.", accepted)
    return project / FOLDER / stack


def typed(project: Path, words: str) -> str:
    """Return a command of rehearsals as one types it in the shell that this process was started from: by the checkout's
    script if that folder has it, with `--project` if another project than this one would be taken.
    """
    command = "scripts/rehearse" if Path("scripts", "rehearse").is_file() else "llmd-oke rehearse"
    named = project.resolve() != Path(os.environ.get("LLMD_OKE_PROJECT", "")).resolve()
    return f"{command} {words}" + (f" --project {shlex.quote(str(project))}" if named else "")


def rehearsed_stacks(project: Path) -> list[str]:
    """Return the names of the stacks whose local cluster is up, or has failed and wasn't taken down."""
    return sorted(path.parent.name for path in (project / FOLDER).glob("*/cluster.json"))


def phase(project: Path, stack: str) -> str:
    """Return the phase of a stack's local cluster: `ready`, `starting`, `stopping`, `failed`, or `gone` if there is
    none.
    """
    record = LocalCluster(rehearsal_folder(project, stack)).status()
    return record.phase if record else "gone"


def has_prometheus(project: Path, stack: str) -> bool:
    """Tell whether Prometheus runs in a stack's local cluster."""
    record = LocalCluster(rehearsal_folder(project, stack)).status()
    return record is not None and "prometheus" in record.processes


def restarts(project: Path, stack: str) -> dict[str, int]:
    """Return the restarted processes of a stack's local cluster by name, with the number of restarts."""
    record = LocalCluster(rehearsal_folder(project, stack)).status()
    if record is None:
        return {}
    return {name: process.restarts for name, process in record.processes.items() if process.restarts}


def prepare(project: Path, stack: str, settings: RehearsalSettings, progress: Progress) -> Prepared:
    """Plan the stack, provide its programs, and start its local cluster unless it already runs from an equal spec.

    Raises:
        InvalidStack: the stack file can't be deployed.
        KitError: a program isn't available, or the local cluster doesn't become ready; the message has the reason.
    """
    plan = planning.plan_stack_file(project, stack)
    if settings.after is not None:
        _check_other_project(settings.after, project, stack, settings.vllm)
    _require_nixl(plan)
    fitting = _fitting(project, stack, settings)
    plugins.check_choice(settings.plugin, plan)
    programs = (project, *([settings.after] if settings.after else []))
    languages = [name for folder in programs for name in language_programs(folder, runtime(folder))]
    inventory = take_inventory(plan.release, progress, (*further_programs(plan), *languages))
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
    return replace(prepared, begun=_start(prepared, progress))


def _check_other_project(other: Path, project: Path, stack: str, vllm: VllmChoice) -> None:
    """Check that the stack of another project can be deployed before this project's.

    Raises:
        KitError: it has no such stack, it has this project's name, or servers are vLLM itself.
    """
    config.read(other, stack)
    if (name := config.project_name(other)) == config.project_name(project):
        raise KitError(f"Both projects are named {name}, so that their stacks {stack} are one.", "Rename one of them.")
    if vllm is VllmChoice.REAL:  # its cut topology is that of one stack file
        raise KitError("A stack after another one is rehearsed with simulated vLLM alone.", "Leave out --vllm real.")


def _require_nixl(plan: planning.Plan) -> None:
    for model in plan.models:
        if (way := model.settings.hand_over) and way.connector != NIXL_CONNECTORS[0]:
            named = model.engine.kv_cache.connector
            raise KitError(
                f"{model.name} hands KV cache over by {named}, which rehearsals don't simulate.",
                "Rehearse a stack file without engine.kvCache.connector, which has nixl then.",
            )


def _fitting(project: Path, stack: str, settings: RehearsalSettings) -> tuple[CutStack, Mapping[str, TinyModel]] | None:
    """Return the stack reduced to this machine's memory, and its tiny models; None if vLLM is simulated.

    A running rehearsal keeps its topology, because its servers' memory no longer counts as available.
    """
    if settings.vllm is VllmChoice.SIMULATED:
        return None
    running = running_settings(project, stack).memory_gib if phase(project, stack) == "ready" else None
    return choose_stack(config.load(project, stack), time_scale.processors(), running or available_gib())


def ask_for_faults(prepared: Prepared, faults: Sequence[FaultRule]) -> None:
    """Replace the fault rules of the rehearsal."""
    write_faults(prepared.state / OCI_FAULTS_FILE, faults)


def _time_scale(project: Path, stack: str, plan: Plan, settings: RehearsalSettings) -> TimeScale:
    """Return the time scale: from the settings, else of the running local cluster, else chosen for the stack and this
    machine.
    """
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
    """Return the conversion of scaling durations, with the speed from the settings, else of the running local cluster,
    else the default; None without scaling by load.
    """
    if not is_scaled(plan):
        return None
    running = running_settings(project, stack).scaling_speed if phase(project, stack) == "ready" else None
    return ScalingTime(settings.scaling_speed or running or keda_parts().speed, time_scale)


def running_settings(project: Path, stack: str) -> RehearsalSettings:
    """Return the settings of a stack's running local cluster; the defaults if there is none."""
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
        after=None,
    )


def running_programs(project: Path, stack: str) -> tuple[str, ...]:
    """Return the programs that run in pods of a stack's local cluster, as `NAME=VERSION`."""
    record = LocalCluster(rehearsal_folder(project, stack)).status()
    return () if record is None else tuple(record.facts.get(PROGRAMS, "").split())


def _start(prepared: Prepared, progress: Progress) -> str:
    """Start the local cluster unless it already runs from an equal spec; return why it was started, or an empty
    text.
    """
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
    reason = start_reason(prepared.cluster.status(), spec)
    prepared.cluster.start(spec, progress, discard=[state / name for name in _CLUSTER_FOLDERS])
    return reason


def run_engine(
    prepared: Prepared,
    operation: str,
    progress: Progress,
    *,
    targets: Sequence[str] = (),
    unprotect: bool = False,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """Run an operation of the real engine in the local cluster (`up`, `preview`, `refresh`, `destroy`, `drift`,
    `replace` or `forget`) and return its result as a mapping (`engine.EngineResult`).

    Args:
        prepared: the rehearsal.
        operation: name of the operation.
        progress: receives the engine's reports.
        targets: for `destroy`, the URNs to delete with all that depend on them (all resources if empty); for `replace`,
            names
            of nodes.
        unprotect: lets `destroy` delete protected resources.
        more: further options of `replace`.

    If interrupted, the engine saves its state before it ends, so that the next operation can continue.

    Raises:
        KitError: the operation failed; the message has the engine's reason.
    """
    with _free_engine(prepared, progress):
        options = [word for target in targets for word in ("--target", target)]
        options += ["--unprotect"] if unprotect else []
        if time := prepared.scaling_time:
            options += ["--scaling-speed", str(time.speed), "--time-scale", str(time.time_scale)]
        options += [*more, *(["--one-at-a-time"] if operation == "up" and _is_upgrade(prepared) else [])]
        return _run_engine(prepared, operation, options, progress)


def deploy_before(prepared: Prepared, project: Path, progress: Progress) -> dict[str, Any]:
    """Update the stack of the same name of another project in the local cluster of a rehearsal, for programs that read
    its outputs, and return the result.

    Raises:
        KitError: the update failed.
    """
    other = replace(prepared, project=project)
    progress.step(f"updating the stack {prepared.stack} of {config.project_name(project)} first")
    with _free_engine(prepared, progress):
        return _run_engine(other, "up", (), progress, BEFORE)


def _free_engine(prepared: Prepared, progress: Progress) -> AbstractContextManager[None]:
    """Wait until no other operation of this rehearsal runs the engine, and keep others waiting meanwhile."""
    lock_file = prepared.state / "engine.lock"
    return file_lock(lock_file, "finish with the engine", progress, ENGINE_FREE_TIMEOUT_S)


def _is_upgrade(prepared: Prepared) -> bool:
    """Tell whether clusters or node pools get another Kubernetes version; these are updated one at a time, as by
    `llmd-oke up`.
    """
    created = prepared.plan.created
    if created is None:
        return False
    after = {created.kubernetes_version, *(pool.kubernetes_version for pool in created.gpu_pools)}
    resources = latest(checkpoint_file(prepared.state, prepared.stack)).get("resources") or ()
    before = {resource.get("inputs", {}).get("kubernetesVersion") for resource in resources}
    return bool(before - after - {None})


def _run_engine(
    prepared: Prepared, operation: str, options: Sequence[str], progress: Progress, folder: str | None = None
) -> dict[str, Any]:
    folder = folder or (PREVIEWED if operation in {"drift", "preview"} else DEPLOYED)
    cut = prepared.real.stack if prepared.real else None
    copy = copy_project(prepared.project, prepared.stack, prepared.state, prepared.router, folder, cut)
    prepared.plugin.install(copy.pulumi_home)
    prepared.inventory.install_languages(copy.pulumi_home)
    install_package(copy.pulumi_home)
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
        over = typed(prepared.project, f"down --stack {prepared.stack}")
        again = f"Change what it complains of and rehearse again, or start over: {over}"
        remedy = result["remedy"] or remedy_for(result["error"]) or again
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
"""Modules that every program that creates a cluster imports; those of OCI's package load all of its types."""


def program_modules(plan: Plan) -> list[str]:
    """Return the modules that a stack's program imports; OCI's package is among them only if the stack creates a
    cluster.
    """
    created = isinstance(plan.cluster, config.CreateCluster)
    return ["llmd_oke.program", *(CREATED_CLUSTER_MODULES if created else ())]


def _engine_environment(prepared: Prepared) -> Mapping[str, str]:
    """Return the environment variables of the engine and its program: kubeconfig, PATH, the stand-in plug-ins to attach
    to, and the user's values of `PASSED_ON`.
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
    """Run a command inside a stack's local cluster, with the caller's standard output, and return its exit code.

    The executables beside this Python, among them `llmd-oke`, are on the command's PATH. Ctrl-C ends the command; with
    `interruptible`, the command gets SIGINT and up to a minute to end, and counts as ended by SIGINT.

    Raises:
        KitError: the stack's local cluster isn't up.
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
    """End a stack's local cluster and delete its files except logs; return whether there were such files."""
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
    """Find, download or build the programs of all rehearsals, and download the definitions of all releases.

    Raises:
        KitError: programs are missing; the message names all of them, each with the command that installs it.
    """
    releases = [release for name in catalogue.release_names() if (release := catalogue.release(name))]
    for release in releases:
        fetch_definitions((release.crds,), progress)
    return take_inventory(catalogue.default_release(), progress, CHARTS)


def pre_scale_down(prepared: Prepared, progress: Progress) -> Displacement | None:
    """Delete servers that must be removed before new servers fit the nodes, and return the deleted servers; None if no
    server must be removed.

    A preview is only run if servers leave the stack.

    Raises:
        KitError: the preview or the deletion failed; the message has the reason.
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
    """Return the names of the model servers in the engine's state that the plan no longer has. A version of a unit that
    is deployed beside the old one isn't counted, as the plan reserves nodes for both.
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
