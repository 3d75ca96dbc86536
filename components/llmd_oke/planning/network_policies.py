"""Engine and checks of a stack's NetworkPolicies, and advice on traffic that they don't block."""

from collections.abc import Iterator

from llmd_base.errors import Problem

from llmd_oke.config import ExistingCluster, StackConfig
from llmd_oke.config.network_policies import LINK_LOCAL, NetworkPolicies
from llmd_oke.planning.network import network_of
from llmd_oke.planning.plan import Advice, AdviceKind, Plan

_PATH = "networkPolicies"


def network_policies(config: StackConfig) -> NetworkPolicies:
    """Return the stack file's `networkPolicies`; if it has none, the defaults, in which nothing enforces policies."""
    return config.network_policies or NetworkPolicies()


def takes_calico(config: StackConfig) -> bool:
    """Tell whether the kit can install Calico: into a cluster that it creates, besides the VCN-native network."""
    return config.created_cluster is not None and config.created_cluster.cni == "vcn-native"


def network_policy_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield the problems of settings that contradict the cluster, and of invalid IP ranges."""
    chosen, cluster = network_policies(config), config.created_cluster
    path = f"{_PATH}.engine"
    if chosen.engine == "calico" and cluster is None:
        why = "the kit installs Calico only into a cluster that the same stack creates"
        yield Problem(path, chosen.engine, "existing, where the cluster has an engine; else none", why)
    if chosen.engine == "calico" and cluster is not None and cluster.cni == "flannel":
        why = "Oracle documents Calico beside the VCN-native network, and in place of flannel, which the kit keeps"
        yield Problem(path, chosen.engine, "none, or cluster.cni: vcn-native", why)
    for i, destination in enumerate(chosen.destinations):
        path = f"{_PATH}.destinations[{i}].cidr"
        block = network_of(destination.cidr, path)
        if isinstance(block, Problem):
            yield block
        elif block.subnet_of(LINK_LOCAL):
            why = (
                f"{LINK_LOCAL} has OCI's metadata service, through which a pod could act as its node; the kit opens"
                " nothing in this range"
            )
            yield Problem(path, destination.cidr, f"a block outside of {LINK_LOCAL}", why)


def network_policy_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on traffic that policies don't block. OKE's pod networks, VCN-native and flannel, enforce none by
    themselves (Oracle, "Pod Networking" and "Installing Calico and Setting Up Network Policies"), and an engine doesn't
    control the interfaces of RDMA virtual functions.
    """
    if plan.config.layer == "cluster":
        return
    cluster, texts = plan.config.cluster, list[str]()
    if plan.network_policies.engine == "none":
        how = (
            "OKE's own pod networks do not; if an engine such as Calico is installed there, say networkPolicies.engine:"
            " existing"
        )
        if takes_calico(plan.config):
            how = "OKE's vcn-native network does not; networkPolicies.engine: calico installs an engine"
        elif plan.config.created_cluster is not None:
            how = "OKE's flannel network does not; with cluster.cni: vcn-native, networkPolicies.engine: calico does"
        texts.append(f"NetworkPolicies do nothing unless the cluster's network enforces them ({how})")
    if plan.control_plane_cidrs is None:
        remedy = ""
        if isinstance(cluster, ExistingCluster):
            remedy = ": set cluster.controlPlaneCidrs"
        elif cluster is not None and cluster.cni == "flannel":
            remedy = ": with cluster.cni: vcn-native they are known"
        texts.append(
            "the kit's NetworkPolicies, where enforced, block commands that reach servers through the API server (such"
            f" as smoke and bench), because its addresses are unknown{remedy}"
        )
    kind: AdviceKind = "decision" if texts else "note"
    if plan.rdma:
        texts.append("KV cache sent by RDMA bypasses all NetworkPolicies and is not encrypted")
    if texts:
        yield Advice(_PATH if plan.network_policies.engine != "none" else "cluster", "; ".join(texts), kind)
    for i, model in enumerate(plan.models):
        if not model.routed and plan.front_door is None:
            text = "no router refuses what is not for clients to say (ranks, priorities, cache salts)"
            yield Advice(f"models[{i}].router.mode", f"{text}: let trusted pods alone reach the servers")
