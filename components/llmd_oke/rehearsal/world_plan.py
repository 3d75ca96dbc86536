"""What the world of a planned stack is made of: control plane, node agent, simulated vLLM, stand-in plug-ins."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmd_oke.catalogue.cache import cache_folder
from llmd_oke.catalogue.files import values_folder
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.config import CreateCluster
from llmd_oke.planning import Node, Plan
from llmd_oke.planning.storage import pod_disk_gib
from llmd_oke.rehearsal.control_plane import addresses, plane
from llmd_oke.rehearsal.control_plane.pki import Pki
from llmd_oke.rehearsal.foreign import foreign_definitions
from llmd_oke.rehearsal.inventory import IN_PODS
from llmd_oke.rehearsal.outside.facts import PORT, outside
from llmd_oke.rehearsal.plugins import KubernetesPlugin
from llmd_oke.rehearsal.processes import HttpReady, ProcessSpec, TcpReady, WorldSpec
from llmd_oke.rehearsal.state_files import journal_file

KUBERNETES_PLUGIN_PORT = 9301
SIMULATOR_PORT = 9302
SIMULATOR_URL = f"http://127.0.0.1:{SIMULATOR_PORT}"
OCI_PLUGIN_PORT = 9303
NODE_CONTROL_PORT = 9304
OCI_REST_PORT = 9305
PLUGIN_PORTS = {"kubernetes": KUBERNETES_PLUGIN_PORT, "oci": OCI_PLUGIN_PORT}
"""The stand-in plug-ins by the names of their packages; that for Kubernetes runs where the real one doesn't."""

OCI_FAULTS_FILE = "oci-faults.yaml"
"""Which requests to OCI fail, in the world's folder; nobody needs to write it."""

SECONDS_TO_START, USUAL = "seconds_to_start", "usual"
"""The fact that tells how long simulated servers take to start, and its value where nobody asked for a time."""

SYSTEM_NODE = {
    "name": "system-0",
    "capacity": {"cpu": "128", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"},
    "labels": {INSTANCE_TYPE_LABEL: "VM.Standard.E5.Flex"},
}
"""Stands for the pool of ordinary nodes that every cluster has for what needs no GPU."""


def world_spec(
    state: Path,
    plan: Plan,
    programs: Mapping[str, Path],
    time_scale: float,
    probe_time_scale: float,
    pod_environment: Mapping[str, str] | None = None,
    *,
    plugin: KubernetesPlugin,
    startup_s: float | None = None,
) -> WorldSpec:
    """The processes of the world of a plan. Writes keys and the agent's config into the state folder.

    The spec carries a digest of that config: other nodes make another world.

    Args:
        state: folder of the world.
        plan: which nodes there are.
        programs: path of each program of the control plane, and of those that run in pods.
        time_scale: wall seconds for a second of model time in the simulated vLLM.
        probe_time_scale: wall seconds for a second of a probe's delays and periods, and of the time that pods stay on a
            node which doesn't answer.
        pod_environment: what Python programs in pods are told beside their own variables.
        plugin: the engine's Kubernetes plug-in; the engine starts a real one by itself.
        startup_s: wall seconds that each simulated vLLM takes to start; None for the default of its process.
    """
    control = plane.prepare(state, programs, probe_time_scale)
    agent = _agent(state, plan, programs, control.pki.authority.certificate)
    agent |= {"time_scale": time_scale, "probe_time_scale": probe_time_scale}
    agent_config = json.dumps({**agent, "pod_environment": dict(pod_environment or {})}, indent=2)
    agent_file = state / "agent.json"
    agent_file.write_text(agent_config)
    return WorldSpec(
        processes=(
            *control.processes,
            _simulator(plan, time_scale, startup_s),
            _outside(control.pki),
            *_plugins(state, programs["helm"], plugin),
            _agent_process(agent_file),
        ),
        bridge_address=f"{addresses.NODE_ADDRESS}/16",
        nameserver=addresses.DNS_SERVICE,
        facts={
            "agent_digest": hashlib.sha256(agent_config.encode()).hexdigest(),
            "nodes": str(len(agent["nodes"])),
            "kubernetes_plugin": str(plugin),
            "time_scale": str(time_scale),
            "probe_time_scale": str(probe_time_scale),
            SECONDS_TO_START: USUAL if startup_s is None else str(startup_s),
        },
    )


def _agent(state: Path, plan: Plan, programs: Mapping[str, Path], authority: Path) -> dict[str, Any]:
    return {
        "kubeconfig": str(state / "kubeconfig.yaml"),
        "state_folder": str(state),
        "bridge": "pods0",
        "bridge_address": f"{addresses.NODE_ADDRESS}/16",
        "service_cidr": addresses.SERVICE_NETWORK,
        "dns_address": addresses.DNS_SERVICE,
        "cluster_domain": addresses.CLUSTER_DOMAIN,
        "api_server": f"{addresses.NODE_ADDRESS}:{addresses.API_SERVER_PORT}",
        "simulator_url": SIMULATOR_URL,
        "programs": {name: str(programs[name]) for name in IN_PODS},
        "images": str(values_folder() / "rehearsal" / "images.yaml"),
        "nodes": _nodes(plan),
        "definitions": foreign_definitions(plan),
        "control_port": NODE_CONTROL_PORT,
        "outside_names": dict.fromkeys(outside().hosts, addresses.NODE_ADDRESS),
        "outside_authority": str(authority),
    }


def _nodes(plan: Plan) -> list[dict[str, Any]]:
    """The nodes that are there before the engine runs. Those of pools that the stack creates come with the pools."""
    if not isinstance(plan.cluster, CreateCluster) or plan.layer == "serving":
        return [*(_node(plan, node) for node in plan.nodes_at_first), SYSTEM_NODE]
    given = {pool.name for pool in plan.config.gpu_pools if pool.pool_id is not None}
    return [_node(plan, node) for node in plan.nodes_at_first if node.pool in given]


def _node(plan: Plan, node: Node) -> dict[str, Any]:
    """A node as the shape describes it."""
    shape = next(pool.shape for pool in plan.pools if pool.name == node.pool)
    devices = {resource: str(count) for resource, count in shape.devices(rdma=plan.rdma).items()}
    pool = next(pool for pool in plan.config.gpu_pools if pool.name == node.pool)
    own = {
        "cpu": str(shape.cpus),
        "memory": f"{shape.memory_gib}Gi",
        "ephemeral-storage": f"{pod_disk_gib(pool):.0f}Gi",
    }
    return {
        "name": f"{node.pool}-{node.index}",
        "capacity": {**own, "pods": "64", **devices},
        "labels": {**shape.node.labels, "oke.oraclecloud.com/pool.name": node.pool},
        "taints": [taint.model_dump() for taint in shape.node.taints],
    }


def _simulator(plan: Plan, time_scale: float, startup_s: float | None) -> ProcessSpec:
    own = ("--listen", f"127.0.0.1:{SIMULATOR_PORT}", "--time-scale", str(time_scale))
    startup = () if startup_s is None else ("--startup-seconds", str(startup_s))
    argv = (sys.executable, "-m", "llmd_oke.rehearsal.vllm", *own, *startup, "--shape", plan.pools[0].shape.name)
    return ProcessSpec("vllm", argv, readiness=HttpReady(f"{SIMULATOR_URL}/healthz"))


def _outside(keys: Pki) -> ProcessSpec:
    own = (sys.executable, "-m", "llmd_oke.rehearsal.outside", "--address", addresses.NODE_ADDRESS)
    argv = (*own, "--certificate", str(keys.outside.certificate), "--key", str(keys.outside.key))
    return ProcessSpec("outside", argv, readiness=TcpReady(PORT, addresses.NODE_ADDRESS))


def _plugins(state: Path, helm: Path, plugin: KubernetesPlugin) -> list[ProcessSpec]:
    """Both install charts with Helm, and find the charts of modules in the user's cache, which isn't the world's."""
    cluster = (sys.executable, "-m", "llmd_oke.rehearsal.kubernetes_plugin", "--port", str(KUBERNETES_PLUGIN_PORT))
    charts, tool = {"LLMD_OKE_CACHE": str(cache_folder())}, ("--helm", str(helm))
    stand_ins = [
        ProcessSpec("oci-plugin", (*_oci_plugin(state), *tool), env=charts, readiness=TcpReady(OCI_PLUGIN_PORT))
    ]
    if not plugin.is_real:
        ready = TcpReady(KUBERNETES_PLUGIN_PORT)
        stand_ins.append(ProcessSpec("kubernetes-plugin", (*cluster, *tool), env=charts, readiness=ready))
    return stand_ins


def _oci_plugin(state: Path) -> tuple[str, ...]:
    own = (sys.executable, "-m", "llmd_oke.rehearsal.oci_plugin", "--port", str(OCI_PLUGIN_PORT))
    files = {
        "--kubeconfig": state / "kubeconfig.yaml",
        "--journal": journal_file(state),
        "--faults": state / OCI_FAULTS_FILE,
    }
    places = ("--nodes-url", f"http://127.0.0.1:{NODE_CONTROL_PORT}", "--etcd", plane.ETCD)
    places += ("--rest-port", str(OCI_REST_PORT))
    return (*own, *(word for option, path in files.items() for word in (option, str(path))), *places)


def _agent_process(config: Path) -> ProcessSpec:
    argv = (sys.executable, "-m", "llmd_oke.rehearsal.agent", "--config", str(config))
    ready = TcpReady(53, addresses.DNS_SERVICE)
    return ProcessSpec("agent", argv, after=("kube-apiserver", "vllm"), readiness=ready, stop_timeout_s=10)
