"""Preparation of a stack's rehearsal: its plan, programs and local cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmd_base.errors import InvalidStack, KitError
from llmd_base.progress import Progress
from llmd_base.records import record
from llmd_oke import catalogue, config, planning
from llmd_oke.planning import Plan
from llmd_oke.planning.releases import with_router

from llmd_rehearsal import cluster_plan, plugins, time_scale
from llmd_rehearsal.autoscaling import ScalingTime, is_scaled, keda_parts
from llmd_rehearsal.cluster_plan import (
    OCI_FAULTS_FILE,
    RehearsedCluster,
    further_programs,
    pod_environment,
    preinstalled_definitions,
    programs_in_pods,
)
from llmd_rehearsal.cluster_spec import POLICIES_FILE
from llmd_rehearsal.engine_project import (
    OCI_FOLDER,
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
from llmd_rehearsal.plugins import KubernetesPlugin, choose_plugin
from llmd_rehearsal.real_vllm import environment
from llmd_rehearsal.real_vllm.choice import RealRehearsal, choose_stack, real_version
from llmd_rehearsal.real_vllm.choice import prepare as prepare_real
from llmd_rehearsal.real_vllm.tiny_models import TinyModel
from llmd_rehearsal.real_vllm.topologies import CutStack, available_gib
from llmd_rehearsal.rehearsal_settings import RehearsalSettings, VllmChoice, running_settings
from llmd_rehearsal.running_rehearsals import phase, rehearsal_folder
from llmd_rehearsal.time_scale import TimeScale
from llmd_rehearsal.vllm.command import NIXL_CONNECTORS

_CLUSTER_FOLDERS = ("etcd", "backend", "pods", "nodes", "volumes", OCI_FOLDER)
"""Folders with the data of a local cluster (control plane, engine, node agent, OCI), deleted before another one starts.
"""


@dataclass(frozen=True)
class Prepared:
    """Rehearsal whose local cluster is ready: the plan with the rehearsed release, and the real and simulated parts.

    `begun` is the reason why a new local cluster was started, which contains nothing that an earlier one had deployed;
    empty if the running one was kept, whose objects the next update changes.
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
        """Name of the llm-d release whose endpoint picker and routing sidecar run; it may differ from the stack's
        release.
        """
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
    if fitting:
        environment.announce(real_version(fitting[0].asked), progress)
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
    try:
        return choose_stack(config.load(project, stack), time_scale.processors(), running or available_gib())
    except InvalidStack as refused:
        raise InvalidStack(config.locate(refused.problems, project, stack), refused.verdict) from refused


def ask_for_faults(prepared: Prepared, faults: Sequence[FaultRule]) -> None:
    """Replace the rules of the rehearsal's fault file, which say which requests to the simulated OCI, and which nodes,
    fail.
    """
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


def _start(prepared: Prepared, progress: Progress) -> str:
    """Start the local cluster unless it already runs from an equal spec; return why it was started, or an empty
    text.
    """
    state, scale = prepared.state, prepared.time_scale.scale
    state.mkdir(parents=True, exist_ok=True)
    variables = pod_environment(prepared.plan, prepared.inventory.programs, prepared.plugin, scale, prepared.vllm)
    cluster = record(
        RehearsedCluster,
        prepared,
        programs=prepared.inventory.paths(),
        time_scale=scale,
        pod_environment=variables,
        versions={name: prepared.inventory.programs[name].version for name in programs_in_pods(prepared.plan)},
    )
    spec = cluster.spec()
    reason = start_reason(prepared.cluster.status(), spec)
    prepared.cluster.start(spec, progress, discard=[state / name for name in _CLUSTER_FOLDERS])
    return reason


def have_programs(progress: Progress) -> Inventory:
    """Find, download or build the programs of all rehearsals, and download the definitions of all releases.

    Raises:
        KitError: programs are missing; the message names all of them, each with the command that installs it.
    """
    releases = [release for name in catalogue.release_names() if (release := catalogue.release(name))]
    for release in releases:
        fetch_definitions((release.crds,), progress)
    return take_inventory(catalogue.default_release(), progress, CHARTS)
