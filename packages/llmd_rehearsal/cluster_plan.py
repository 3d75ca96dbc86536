"""Processes of a planned stack's local cluster, and the lists of its real and simulated parts."""

import hashlib
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from types import MappingProxyType
from typing import Any

from llmd_base.row import Basis
from llmd_bench.run_context import VARIABLE, RunContext
from llmd_oke.catalogue.monitoring import monitoring
from llmd_oke.catalogue.releases import CrdFiles, crd_manifests
from llmd_oke.catalogue.serving import leader_worker_sets, scaling
from llmd_oke.catalogue.shapes import GPUS, INSTANCE_TYPE_LABEL, SHAPES
from llmd_oke.config import CreateCluster
from llmd_oke.planning import PlacedNode, Plan
from llmd_oke.planning.conditions import bound_models
from llmd_oke.planning.container_images import operators_of
from llmd_oke.values import Entry, cache_folder, read_yaml, required_entry, values_folder
from llmd_pods.prewarm.places import REHEARSED_VOCABULARY

from llmd_rehearsal import control_plane
from llmd_rehearsal.agent_config import AgentConfig, NodeConfig, NodeTaint
from llmd_rehearsal.autoscaling import ScalingTime, is_scaled, keda_parts, preinstalled_scaling
from llmd_rehearsal.cluster_spec import ClusterSpec, HttpReady, ProcessSpec, TcpReady
from llmd_rehearsal.control_plane import Pki
from llmd_rehearsal.engine_project import copy_values, journal_file
from llmd_rehearsal.front_door import (
    front_door_secrets,
    gateway_aliases,
    gateway_parts,
    gateway_secrets,
    preinstalled_objects,
    simulated_gateway,
)
from llmd_rehearsal.inventory import BEHIND_GATEWAY, CHARTS, DISCOVERING, FOLLOWING, GROUPING, IN_PODS, WATCHING
from llmd_rehearsal.model_sources import PORT, source_hosts, vocabulary
from llmd_rehearsal.plugins import KubernetesPlugin
from llmd_rehearsal.private_registry import PrivateRegistry, private_registry
from llmd_rehearsal.programs import LocalProgram
from llmd_rehearsal.real_vllm.choice import RealRehearsal
from llmd_rehearsal.real_vllm.differences import real_vllm_data
from llmd_rehearsal.rehearsal_settings import MEMORY_GIB, PROGRAMS, SCALING_SPEED, SECONDS_TO_START, USUAL, VllmChoice
from llmd_rehearsal.source_credentials import valid_credentials_file
from llmd_rehearsal.time_scale import RULE_TIME_SCALE

KUBERNETES_PLUGIN_PORT = 9301
SIMULATOR_PORT = 9302
SIMULATOR_URL = f"http://127.0.0.1:{SIMULATOR_PORT}"
OCI_PLUGIN_PORT = 9303
NODE_CONTROL_PORT = 9304
OCI_REST_PORT = 9305

PLUGIN_PORTS = {"kubernetes": KUBERNETES_PLUGIN_PORT, "oci": OCI_PLUGIN_PORT}
"""Ports of the stand-in plug-ins by Pulumi package name. The stand-in for `kubernetes` isn't started if the real
plug-in is used.
"""

OCI_FAULTS_FILE = "oci-faults.yaml"
"""Name of the optional file, in the local cluster's folder, with rules for requests to OCI that fail."""

POD_NETWORK = f"{control_plane.NODE_ADDRESS}/16"

_PROMETHEUS_RESTARTS = 5
"""Limit of restarts; a real StatefulSet restarts Prometheus without a limit."""

SYSTEM_NODE = NodeConfig(
    name="system-0",
    capacity={"cpu": "128", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"},
    labels={INSTANCE_TYPE_LABEL: "VM.Standard.E5.Flex"},
)
"""Simulated node without GPUs, for the pods that aren't model servers; present in every local cluster that stands for
an existing cluster.
"""

SIMULATED_NODES = "nodes and their GPUs"
"""Description of the nodes in a rehearsal's list of simulated parts; every rehearsal simulates its nodes."""

SIMULATED_VLLM = "vLLM"
SIMULATED_KERNELS = "GPU kernels and RDMA (vLLM itself runs on this machine's processor)"

SIMULATED_PLUGIN = "Kubernetes plug-in of Pulumi"
SIMULATED_OCI = "OCI and its plug-in of Pulumi"
SIMULATED_NODE_SCALING = "the cluster autoscaler (a stand-in, which changes the sizes of OCI's pools)"
SIMULATED_MONITORING = (
    "the Prometheus operator and exporters of nodes and GPUs (Prometheus itself is real; times of its rules are "
    f"{RULE_TIME_SCALE:.3g} of their own)"
)
SIMULATED_REGISTRY = "the private registry (a stand-in, which signs kubelets in and has no content)"
SIMULATED_WEIGHTS = "weights (tiny files, from a stand-in for where models are kept)"


@dataclass(frozen=True)
class RehearsedCluster:
    """Local cluster of a plan's rehearsal.

    Attributes:
        state: folder of the local cluster.
        project: folder of the project, whose own entries of `values/` the simulated programs read too.
        plan: the stack's plan; determines the nodes.
        programs: path of each program of the control plane and of each program that runs in pods.
        plugin: the Kubernetes plug-in; the engine starts a real plug-in itself.
        time_scale: wall seconds that the simulated vLLM takes for one second of work on real hardware.
        probe_time_scale: wall seconds for one second of a probe's delays and periods, and of the time for which pods
            stay on a node that doesn't answer.
        pod_environment: environment variables that Python programs in pods get beside their own.
        startup_s: wall seconds that each simulated vLLM takes to start; None for the simulator's default.
        scaling_time: conversion of scaling durations to wall time; None if nothing is scaled by load.
        versions: versions of the programs that run in pods, recorded in the local cluster's facts.
        real: settings of vLLM itself; None if vLLM is simulated.
    """

    state: Path
    project: Path
    plan: Plan
    programs: Mapping[str, Path]
    plugin: KubernetesPlugin
    time_scale: float = 1.0
    probe_time_scale: float = 1.0
    pod_environment: Mapping[str, str] = field(default_factory=dict[str, str])
    startup_s: float | None = None
    scaling_time: ScalingTime | None = None
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    real: RealRehearsal | None = None

    def spec(self) -> ClusterSpec:
        """Write keys and the node agent's configuration into `state`, and return the specification of the cluster's
        processes.

        The spec carries digests of that configuration and of the project's own shapes and GPUs, so that changed nodes
        lead to another local cluster. What programs read of the project and of the kit's `values/` is copied into
        `state`, so that other revisions, whose files lie elsewhere, are rehearsed in the same local cluster.
        """
        flags = self.scaling_time.controller_flags if self.scaling_time else ()
        nodes = len(self.plan.nodes)
        control = control_plane.prepare(self.state, self.programs, self.probe_time_scale, nodes, flags)
        registry = private_registry(self.plan, self.state)
        agent = self._agent_config(control.pki, registry)
        agent_text, agent_file = agent.model_dump_json(indent=2), self.state / "agent.json"
        agent_file.write_text(agent_text)
        copy_values(self.project, self._catalogue)
        agent_process = ProcessSpec(
            "agent",
            (sys.executable, "-m", "llmd_rehearsal.agent", "--config", str(agent_file)),
            after=("kube-apiserver", "vllm"),
            readiness=TcpReady(53, control_plane.DNS_SERVICE),
            stop_timeout_s=10,
        )
        return ClusterSpec(
            processes=(
                *control.processes,
                *self._simulators(control.pki),
                *self._plugins(),
                *(self._prometheus() if _has_prometheus(self.plan) else []),
                *([registry.process] if registry else []),
                agent_process,
            ),
            address=control_plane.NODE_ADDRESS,
            nameserver=control_plane.DNS_SERVICE,
            facts={
                "agent_digest": hashlib.sha256(agent_text.encode() + agent.images.read_bytes()).hexdigest(),
                "nodes": str(len(agent.nodes)),
                **self._facts(),
            },
        )

    @property
    def _catalogue(self) -> Path:
        """Folder of the copies of `values/` that the programs of the local cluster read."""
        return self.state / "catalogue"

    def _facts(self) -> dict[str, str]:
        """Return the facts of the local cluster that follow from the rehearsal's settings, from which a later command
        learns them.
        """
        kinds = {SHAPES.folder, GPUS.folder}
        shapes = "".join(entry.sha256 for entry in self.plan.project_entries if entry.kind in kinds)
        return {
            "shapes_digest": hashlib.sha256(shapes.encode()).hexdigest(),
            "kubernetes_plugin": str(self.plugin),
            PROGRAMS: " ".join(f"{name}={version}" for name, version in self.versions.items()),
            "time_scale": str(self.time_scale),
            "probe_time_scale": str(self.probe_time_scale),
            SECONDS_TO_START: USUAL if self.startup_s is None else str(self.startup_s),
            **({MEMORY_GIB: str(self.real.stack.memory_gib)} if self.real else {}),
            **({SCALING_SPEED: str(self.scaling_time.speed)} if self.scaling_time else {}),
        }

    def _agent_config(self, keys: Pki, registry: PrivateRegistry | None) -> AgentConfig:
        """Return the node agent's configuration."""
        plan, state = self.plan, self.state
        controller = required_entry("rehearsal", "leader-worker-set", LeaderWorkerSetParts)
        groups = controller.objects if _has_groups(plan) else ()
        images = state / "images.yaml"
        shutil.copyfile(values_folder() / "rehearsal" / "images.yaml", images)
        return AgentConfig(
            kubeconfig=state / "kubeconfig.yaml",
            state_folder=state,
            images=images,
            programs={name: self.programs[name] for name in programs_in_pods(plan)},
            nodes=tuple(_nodes(plan)),
            definitions=(
                *(item for crds in preinstalled_definitions(plan) for item in crd_manifests(crds)),
                *([okes_definition()] if plan.created else []),
            ),
            objects=(*preinstalled_objects(plan), *preinstalled_scaling(plan), *groups),
            user_secrets=(
                *gateway_secrets(plan, state),
                *front_door_secrets(plan, state),
                *(registry.secrets if registry else ()),
            ),
            registry=registry.config if registry else None,
            simulator_url=SIMULATOR_URL,
            real_vllm=self.real.servers(keys.authority.certificate) if self.real else None,
            control_port=NODE_CONTROL_PORT,
            pod_network=IPv4Interface(POD_NETWORK),
            service_cidr=IPv4Network(control_plane.SERVICE_NETWORK),
            dns_address=control_plane.DNS_SERVICE,
            cluster_domain=control_plane.CLUSTER_DOMAIN,
            api_server=f"{control_plane.NODE_ADDRESS}:{control_plane.API_SERVER_PORT}",
            outside_names=dict.fromkeys(source_hosts().hosts, control_plane.NODE_ADDRESS),
            outside_aliases=gateway_aliases(plan),
            outside_authority=keys.authority.certificate,
            certificate=(keys.in_pods.certificate, keys.in_pods.key),
            pod_environment=dict(self.pod_environment),
            faults=state / OCI_FAULTS_FILE,
            time_scale=real_vllm_data().picker_time_scale.value if self.real else self.time_scale,
            probe_time_scale=self.probe_time_scale,
        )

    def _simulators(self, keys: Pki) -> tuple[ProcessSpec, ProcessSpec]:
        """Return the process that simulates all vLLM servers, and the process that stands in for Hugging Face and
        Object Storage.
        """
        catalogue = ("--project", str(self._catalogue))
        startup = () if self.startup_s is None else ("--startup-seconds", str(self.startup_s))
        argv = (
            *(sys.executable, "-m", "llmd_rehearsal.vllm"),
            *("--listen", f"127.0.0.1:{SIMULATOR_PORT}", "--time-scale", str(self.time_scale)),
            *(*catalogue, *startup, "--shape", self.plan.pools[0].shape.name),
        )
        files: Mapping[str, Path] = self.real.files if self.real else {}
        outside = (
            *(sys.executable, "-m", "llmd_rehearsal.model_server", "--address", control_plane.NODE_ADDRESS),
            *catalogue,
            *("--valid", str(valid_credentials_file(self.state))),
            *("--certificate", str(keys.outside.certificate), "--key", str(keys.outside.key)),
            *(word for repository, folder in files.items() for word in ("--files", repository, str(folder))),
        )
        return (
            # As vLLM's, names of files with KV cache don't depend on the process.
            ProcessSpec("vllm", argv, {"PYTHONHASHSEED": "0"}, readiness=HttpReady(f"{SIMULATOR_URL}/healthz")),
            ProcessSpec("outside", outside, readiness=TcpReady(PORT, control_plane.NODE_ADDRESS)),
        )

    def _plugins(self) -> list[ProcessSpec]:
        """Return the processes of the stand-in plug-ins. Each installs Helm charts with Helm, if the stack has any, and
        looks up charts from Go modules in the user's cache.
        """
        helm, state = self.programs.get("helm"), self.state
        charts, tool = {"LLMD_OKE_CACHE": str(cache_folder())}, ("--helm", str(helm)) if helm else ()
        autoscaler_time_scale = 1 / self.scaling_time.speed if self.scaling_time else 1.0
        oci = (
            *(sys.executable, "-m", "llmd_rehearsal.oci_plugin", "--port", str(OCI_PLUGIN_PORT)),
            *("--project", str(self._catalogue)),
            *("--kubeconfig", str(state / "kubeconfig.yaml"), "--journal", str(journal_file(state))),
            *("--faults", str(state / OCI_FAULTS_FILE), "--nodes-url", f"http://127.0.0.1:{NODE_CONTROL_PORT}"),
            *("--etcd", control_plane.ETCD, "--rest-port", str(OCI_REST_PORT), *tool),
            *("--autoscaler-time-scale", str(autoscaler_time_scale)),
        )
        stand_ins = [ProcessSpec("oci-plugin", oci, env=charts, readiness=TcpReady(OCI_PLUGIN_PORT))]
        if not self.plugin.is_real:
            command = (sys.executable, "-m", "llmd_rehearsal.kubernetes_plugin", "--port", str(KUBERNETES_PLUGIN_PORT))
            ready = TcpReady(KUBERNETES_PLUGIN_PORT)
            environment = {**charts, "KUBECONFIG": str(state / "kubeconfig.yaml")}  # as an engine passes its own on
            stand_ins.append(ProcessSpec("kubernetes-plugin", (*command, *tool), env=environment, readiness=ready))
        return stand_ins

    def _prometheus(self) -> list[ProcessSpec]:
        """Return the processes of the real Prometheus and of the program that writes Prometheus' configuration in the
        operator's place. Prometheus is reachable only inside the local cluster.
        """
        from llmd_rehearsal import prometheus_operator  # noqa: PLC0415 - rarely needed, and it loads lightkube

        folder = self.state / "prometheus"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / prometheus_operator.CONFIG_FILE
        config.write_text("{}")
        argv = (
            *(str(self.programs["prometheus"]), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
            f"--web.listen-address=0.0.0.0:{prometheus_operator.PROMETHEUS_PORT}",
            *("--web.enable-lifecycle", "--storage.tsdb.retention.size=256MB", "--log.level=warn"),
        )
        time = self.scaling_time
        operator = (
            *(sys.executable, "-m", "llmd_rehearsal.prometheus_operator"),
            *("--kubeconfig", str(self.state / "kubeconfig.yaml"), "--folder", str(folder)),
            *("--faults", str(self.state / OCI_FAULTS_FILE)),
            *(("--interval", f"{time.scrape_interval_s:g}") if time else ()),
        )
        ready = HttpReady(f"{prometheus_operator.PROMETHEUS_URL}/-/ready")
        environment = {"GOMAXPROCS": "1", "GOMEMLIMIT": "200MiB"}
        return [
            ProcessSpec("prometheus", argv, env=environment, readiness=ready, restarts=_PROMETHEUS_RESTARTS),
            ProcessSpec("prometheus-operator", operator, after=("kube-apiserver", "prometheus")),
        ]


def _nodes(plan: Plan) -> list[NodeConfig]:
    """Return the nodes that exist before the engine runs. Nodes of pools that the stack creates are added with their
    pools.
    """
    if not isinstance(plan.cluster, CreateCluster) or plan.layer == "serving":
        return [*(_node(plan, node) for node in plan.nodes_at_first), SYSTEM_NODE]
    existing = {pool.name for pool in plan.pools if pool.exists}
    return [_node(plan, node) for node in plan.nodes_at_first if node.pool in existing]


def _node(plan: Plan, node: PlacedNode) -> NodeConfig:
    """Return the configuration of a simulated node with the resources, labels and taints of its pool's shape."""
    pool = next(pool for pool in plan.pools if pool.name == node.pool)
    shape = pool.shape
    return NodeConfig(
        name=f"{node.pool}-{node.index}",
        capacity={
            "cpu": str(shape.cpus),
            "memory": f"{shape.memory_gib}Gi",
            "ephemeral-storage": f"{pool.pod_disk_gib:.0f}Gi",
            "pods": "64",
            **{resource: str(count) for resource, count in shape.devices(rdma=plan.rdma).items()},
        },
        labels={**shape.node.labels, "oke.oraclecloud.com/pool.name": node.pool},
        taints=tuple(NodeTaint.model_validate(taint.model_dump()) for taint in shape.node.taints),
    )


def further_programs(plan: Plan) -> tuple[str, ...]:
    """Return the names of the programs that the plan's rehearsal needs beyond those of every rehearsal: for charts, a
    Gateway, Prometheus, KEDA and LeaderWorkerSets.
    """
    charts = CHARTS if _has_charts(plan) else ()
    return (*charts, *programs_in_pods(plan)[len(IN_PODS) :], *(WATCHING if _has_prometheus(plan) else ()))


def programs_in_pods(plan: Plan) -> tuple[str, ...]:
    """Return the names of the real programs that run in pods of a stack's cluster."""
    gateway = BEHIND_GATEWAY if plan.gateway else ()
    return (
        *(*IN_PODS, *gateway),
        *(FOLLOWING if is_scaled(plan) else ()),
        *(GROUPING if plan.needs_group_controller or plan.installs_group_controller else ()),
        *(DISCOVERING if _has_charts(plan) else ()),
    )


def _has_charts(plan: Plan) -> bool:
    return plan.created is not None or bool(operators_of(plan))


def _has_prometheus(plan: Plan) -> bool:
    """Tell whether the rehearsal runs Prometheus, which monitoring and scaling by load need."""
    return plan.monitoring is not None or is_scaled(plan)


class LeaderWorkerSetParts(Entry):
    """Content of `values/rehearsal/leader-worker-set.yaml`: objects that the local cluster gets for stacks that
    need the controller of LeaderWorkerSets.
    """

    objects: tuple[dict[str, Any], ...]


def okes_definition() -> dict[str, Any]:
    """Return OKE's CustomResourceDefinition of node operations, which every OKE cluster has from its creation."""
    return read_yaml(values_folder() / "rehearsal" / "node-operations.yaml")


def _has_groups(plan: Plan) -> bool:
    """Tell whether a stack needs LeaderWorkerSets whose controller it doesn't install."""
    return plan.needs_group_controller and not plan.installs_group_controller


def preinstalled_definitions(plan: Plan) -> tuple[CrdFiles, ...]:
    """Return the CustomResourceDefinitions that a stack requires and doesn't create: KEDA's for scaling, the
    LeaderWorkerSets' for servers that their controller makes, the Gateway API's for models behind a Gateway, and the
    Prometheus operator's.
    """
    return (
        *([scaling().definitions, keda_parts().definitions] if is_scaled(plan) else []),
        *([leader_worker_sets().definitions] if _has_groups(plan) else []),
        *(gateway_parts().definitions if plan.gateway else ()),
        *([monitoring().definitions] if _has_prometheus(plan) else []),
    )


def simulated(
    plan: Plan,
    plugin: KubernetesPlugin,
    placeholders: Mapping[str, int] = MappingProxyType({}),
    vllm: VllmChoice = VllmChoice.SIMULATED,
) -> tuple[str, ...]:
    """Return the names of the parts of a plan's rehearsal that aren't real, given the Kubernetes plug-in.

    `placeholders` maps each image for which no program runs on this machine to the number of pods with that image.
    """
    has_weights = plan.model_cache is not None and plan.model_cache.prewarm is not None
    is_real = vllm is VllmChoice.REAL
    bounds = () if is_real else bound_models(plan)
    return (
        SIMULATED_NODES,
        simulated_servers(vllm),
        *([] if plugin.is_real else [SIMULATED_PLUGIN]),
        *([SIMULATED_OCI] if isinstance(plan.cluster, CreateCluster) else []),
        *simulated_gateway(plan),
        *([SIMULATED_MONITORING] if _has_prometheus(plan) else []),
        *([SIMULATED_REGISTRY] if plan.registry_mirror and plan.registry_mirror.pull_secret else []),
        *([SIMULATED_NODE_SCALING] if plan.created and plan.created.autoscaler else []),
        *([SIMULATED_WEIGHTS] if has_weights or is_real else []),
        *(f"times of {repository} (bounds: a role of it has no figures for this GPU)" for repository in bounds),
        *(f"{image} (no program, pods: {count})" for image, count in placeholders.items()),
    )


def simulated_servers(vllm: VllmChoice) -> str:
    """Return the description of the simulated parts of model servers: all of vLLM, or only GPU kernels and RDMA."""
    return SIMULATED_KERNELS if vllm is VllmChoice.REAL else SIMULATED_VLLM


def pod_environment(
    plan: Plan,
    programs: Mapping[str, LocalProgram],
    plugin: KubernetesPlugin,
    time_scale: float,
    vllm: VllmChoice = VllmChoice.SIMULATED,
) -> dict[str, str]:
    """Return environment variables that tell programs in pods the rehearsal's time scale, simulated parts, program
    versions and basis of figures (measured or calibrated), so that benchmarks report durations in seconds on real
    hardware.
    """
    versions = {name: programs[name].version for name in programs_in_pods(plan)}
    is_real = vllm is VllmChoice.REAL
    basis, bounds = (Basis.MEASURED, ()) if is_real else (Basis.CALIBRATED, bound_models(plan))
    context = RunContext(time_scale, basis, simulated(plan, plugin, vllm=vllm), versions, bounds)
    variables = {VARIABLE: context.to_text()}
    for model in plan.models:
        if (file := model.model.vocabulary) is not None and not is_real:
            variables[REHEARSED_VOCABULARY] = hashlib.sha256(vocabulary(file.file, file.bytes)).hexdigest()
    return variables
