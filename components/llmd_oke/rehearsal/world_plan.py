"""What the world of a planned stack is made of: control plane, node agent, simulated vLLM, stand-in plug-ins."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmd_oke.catalogue.files import values_folder
from llmd_oke.planning import Node, Plan
from llmd_oke.rehearsal.control_plane import addresses, plane
from llmd_oke.rehearsal.inventory import IN_PODS
from llmd_oke.rehearsal.processes import HttpReady, ProcessSpec, TcpReady, WorldSpec

KUBERNETES_PLUGIN_PORT = 9301
SIMULATOR_PORT = 9302
SIMULATOR_URL = f"http://127.0.0.1:{SIMULATOR_PORT}"

SYSTEM_NODE = {
    "name": "system-0",
    "capacity": {"cpu": "128", "memory": "512Gi", "pods": "110"},
    "labels": {"node.kubernetes.io/instance-type": "VM.Standard.E5.Flex"},
}
"""Stands for the pool of ordinary nodes that every cluster has for what needs no GPU."""


def world_spec(
    state: Path, plan: Plan, programs: Mapping[str, Path], time_scale: float, probe_time_scale: float
) -> WorldSpec:
    """The processes of the world of a plan. Writes keys and the agent's config into the state folder.

    The spec carries a digest of that config: other nodes make another world.

    Args:
        state: folder of the world.
        plan: which nodes there are.
        programs: path of each program of the control plane, and of those that run in pods.
        time_scale: wall seconds for a second of model time in the simulated vLLM.
        probe_time_scale: wall seconds for a second of a probe's delays and periods.
    """
    control = plane.prepare(state, programs)
    agent_config = json.dumps(_agent(state, plan, programs, probe_time_scale), indent=2)
    agent_file = state / "agent.json"
    agent_file.write_text(agent_config)
    return WorldSpec(
        processes=(*control.processes, _simulator(plan, time_scale), _plugin(), _agent_process(agent_file)),
        bridge_address=f"{addresses.NODE_ADDRESS}/16",
        nameserver=addresses.DNS_SERVICE,
        facts={
            "agent_config": hashlib.sha256(agent_config.encode()).hexdigest(),
            "time_scale": str(time_scale),
            "probe_time_scale": str(probe_time_scale),
        },
    )


def _agent(state: Path, plan: Plan, programs: Mapping[str, Path], probe_time_scale: float) -> dict[str, Any]:
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
        "nodes": [*(_node(plan, node) for node in plan.nodes), SYSTEM_NODE],
        "probe_time_scale": probe_time_scale,
    }


def _node(plan: Plan, node: Node) -> dict[str, Any]:
    """A node as the shape describes it."""
    shape = next(pool.shape for pool in plan.pools if pool.name == node.pool)
    devices = {shape.gpu.resource: str(shape.gpus)}
    if plan.rdma:
        devices[shape.rdma.resource] = str(shape.rdma.virtual_functions)
    return {
        "name": f"{node.pool}-{node.index}",
        "capacity": {"cpu": str(shape.cpus), "memory": f"{shape.memory_gib}Gi", "pods": "64", **devices},
        "labels": {**shape.node.labels, "oke.oraclecloud.com/pool.name": node.pool},
        "taints": [taint.model_dump() for taint in shape.node.taints],
    }


def _simulator(plan: Plan, time_scale: float) -> ProcessSpec:
    own = ("--listen", f"127.0.0.1:{SIMULATOR_PORT}", "--time-scale", str(time_scale))
    argv = (sys.executable, "-m", "llmd_oke.rehearsal.vllm", *own, "--shape", plan.pools[0].shape.name)
    return ProcessSpec("vllm", argv, readiness=HttpReady(f"{SIMULATOR_URL}/healthz"))


def _plugin() -> ProcessSpec:
    argv = (sys.executable, "-m", "llmd_oke.rehearsal.kubernetes_plugin", "--port", str(KUBERNETES_PLUGIN_PORT))
    return ProcessSpec("kubernetes-plugin", argv, readiness=TcpReady(KUBERNETES_PLUGIN_PORT))


def _agent_process(config: Path) -> ProcessSpec:
    argv = (sys.executable, "-m", "llmd_oke.rehearsal.agent", "--config", str(config))
    ready = TcpReady(53, addresses.DNS_SERVICE)
    return ProcessSpec("agent", argv, after=("kube-apiserver", "vllm"), readiness=ready, stop_timeout_s=10)
