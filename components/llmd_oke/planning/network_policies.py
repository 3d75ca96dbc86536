"""Engine and checks of a stack's NetworkPolicies, and advice on traffic that they don't block."""

from collections.abc import Iterator
from ipaddress import IPv4Network

from llmd_base.errors import Problem

from llmd_oke.config import CreateCluster, ExistingCluster, StackConfig
from llmd_oke.config.network_policies import LINK_LOCAL, NetworkPolicies
from llmd_oke.planning.plan import Advice, AdviceKind, Plan

_PATH = "networkPolicies"


def network_policies(config: StackConfig) -> NetworkPolicies:
    """Return the stack file's `networkPolicies`; if it has none, the defaults, in which nothing enforces policies."""
    return config.network_policies or NetworkPolicies()


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
        try:
            block = IPv4Network(destination.cidr)
        except ValueError as error:
            yield Problem(path, destination.cidr, "a block of addresses", str(error))
            continue
        if block.subnet_of(LINK_LOCAL):
            why = "OCI's instance metadata is there, by which a pod would be its node"
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
        networks = f"OKE's {cluster.cni} network does not" if isinstance(cluster, CreateCluster) else "OKE's own do not"
        texts.append(
            f"NetworkPolicies do nothing unless the cluster's network enforces them ({networks}; Calico beside it"
            " does: networkPolicies.engine)"
        )
    if plan.control_plane_cidrs is None:
        known = " (controlPlaneCidrs)" if isinstance(cluster, ExistingCluster) else ""
        texts.append(
            "policies keep commands away that ask servers and routers through the API server, because its addresses are"
            " unknown" + known
        )
    kind: AdviceKind = "decision" if texts else "note"
    if plan.rdma:
        texts.append("KV cache over virtual functions is seen by no policy and unprotected")
    if texts:
        yield Advice(_PATH if plan.network_policies.engine != "none" else "cluster", "; ".join(texts), kind)
    for i, model in enumerate(plan.models):
        if not model.routed and plan.front_door is None:
            text = "no router refuses what is not for clients to say (ranks, priorities, cache salts)"
            yield Advice(f"models[{i}].router.mode", f"{text}: let trusted pods alone reach the servers")
