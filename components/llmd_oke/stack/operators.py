"""From a plan to what makes a created cluster's GPUs and RDMA usable, and the gate behind it."""

from typing import Any

import pulumi

from llmd_oke.cluster.gate import NodeGate, NodeGateArgs
from llmd_oke.cluster.gpu_pool import GpuPool
from llmd_oke.operators.amd_gpu_operator import AmdGpuOperator
from llmd_oke.operators.args import TolerationArgs
from llmd_oke.operators.cert_manager import CertManager
from llmd_oke.operators.node_feature_discovery import NodeFeatureDiscovery
from llmd_oke.operators.rdma_network import RdmaNetwork, RdmaNetworkArgs
from llmd_oke.planning import Plan, Pool
from llmd_oke.planning.gpu_stack import GpuStackPlan, gpu_stack, tolerations
from llmd_oke.planning.node_scaling import awaited_nodes
from llmd_oke.planning.pools import SYSTEM_POOL
from llmd_oke.stack.cluster import CreatedCluster
from llmd_oke.stack.order import after


def declare_operators(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """Operators one after the other, and a gate for each pool; models wait for the gates."""
    wanted = gpu_stack(plan.config)
    declared: list[pulumi.Resource] = []
    for component in wanted.components:
        needed = [*cluster.nodes, *cluster.add_ons, *declared]
        if component == "rdma-network":
            needed += list(cluster.gpu_pools.values())
        declared.append(_component(component, plan, wanted, cluster, after(opts, *needed)))
    return _gates(plan, cluster, after(opts, *cluster.nodes, *cluster.add_ons, *declared))


def _component(
    name: str, plan: Plan, wanted: GpuStackPlan, cluster: CreatedCluster, opts: pulumi.ResourceOptions
) -> pulumi.Resource:
    tolerated: Any = tolerations(wanted.tolerations)
    tolerates: list[TolerationArgs] = tolerated
    match name:
        case "cert-manager":
            return CertManager(name, {}, opts)
        case "node-feature-discovery":
            return NodeFeatureDiscovery(name, {"tolerations": tolerates}, opts)
        case "amd-gpu-operator":
            return AmdGpuOperator(name, {"node_selector": dict(wanted.gpu_selector), "tolerations": tolerates}, opts)
        case _:
            args: RdmaNetworkArgs = {
                "shapes": sorted({pool.shape.name for pool in plan.pools}),
                "kubeconfig": cluster.oke.kubeconfig,
            }
            return RdmaNetwork("rdma-network", args, opts)


def _gates(plan: Plan, cluster: CreatedCluster, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    timeouts = {pool.name: pool.ready_timeout_minutes * 60 for pool in plan.config.gpu_pools}
    awaited = awaited_nodes(plan)
    gates: list[pulumi.Resource] = []
    for pool in plan.pools:
        made = cluster.gpu_pools[pool.name]
        args = _gate_args(pool, made, awaited[pool.name], timeouts[pool.name], plan.rdma)
        gates.append(NodeGate(f"{pool.name}-gate", args, after(opts, made)))
    return gates


def _gate_args(pool: Pool, made: GpuPool, awaited: int, timeout_s: int, rdma: bool) -> NodeGateArgs:
    """A scaled pool is never waited for beyond what it has: a new one can begin with less than the stack file says."""
    args: NodeGateArgs = {
        "pool_name": pool.name,
        "nodes": awaited,
        "devices": pool.shape.devices(rdma=rdma),
        "timeout_s": timeout_s,
        "system_pool_name": SYSTEM_POOL,
        "pool_id": made.pool_id,
    }
    if pool.autoscaled:
        args["nodes"] = made.size.apply(lambda size: min(awaited, int(size)))
        args["once"] = True
    return args
