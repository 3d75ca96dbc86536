"""The network of a created cluster: what it consists of, by the stack's choices."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import cast, get_args

from llmd_oke.catalogue import network as facts
from llmd_oke.catalogue.network import GroupRole, SubnetRole
from llmd_oke.config import CreateCluster, ExistingCluster, FileStorage, Lustre, StackConfig, SystemPool
from llmd_oke.config.base import Part
from llmd_oke.planning.network_layout import PoolSize, layout
from llmd_oke.planning.network_rules import RuleContext

MOST_PODS = 110
"""Kubernetes' own limit for the pods of a node."""


@dataclass(frozen=True)
class NetworkChoices:
    """What decides which subnets, gateways and groups a network has."""

    cni: str = "vcn-native"
    public_endpoint: bool = False
    public_load_balancers: bool = False
    bastion: bool = True
    bastion_host: bool = False
    operator: bool = False
    file_storage: bool = False
    lustre: bool = False
    worker_internet: bool = True
    pod_internet: bool = True

    @property
    def subnet_roles(self) -> tuple[SubnetRole, ...]:
        """The subnets that the network has."""
        wanted: dict[SubnetRole, bool] = {
            "api": True,
            "workers": True,
            "pods": self.cni == "vcn-native",
            "load_balancers": True,
            "public_load_balancers": self.public_load_balancers,
            "bastion": self.bastion,
            "bastion_host": self.bastion_host,
            "operator": self.operator,
            "storage": self.file_storage,
            "lustre": self.lustre,
        }
        return tuple(role for role, there in wanted.items() if there)

    @property
    def group_roles(self) -> tuple[GroupRole, ...]:
        """The network security groups that the network has."""
        return tuple(cast("GroupRole", role) for role in self.subnet_roles if role in get_args(GroupRole))

    @property
    def public_roles(self) -> tuple[SubnetRole, ...]:
        """The subnets whose machines may have public addresses."""
        public = {"public_load_balancers", "bastion_host", *(["api"] if self.public_endpoint else [])}
        return tuple(role for role in self.subnet_roles if role in public)

    def created(self, existing: Collection[str]) -> tuple[SubnetRole, ...]:
        """The subnets that are not there already."""
        return tuple(role for role in self.subnet_roles if not any(role == given for given in existing))

    @property
    def nat(self) -> bool:
        """Whether anything in a private subnet may open connections to the internet."""
        return self.worker_internet or self.operator or (self.cni == "vcn-native" and self.pod_internet)

    def rules(self, cidrs: Mapping[str, Sequence[str]]) -> RuleContext:
        """What the rules of the groups go by; `cidrs` are the ranges of peers outside of groups."""
        return RuleContext(self.group_roles, self.cni, self.worker_internet, self.pod_internet, cidrs)


def network_choices(config: StackConfig, cluster: CreateCluster) -> NetworkChoices:
    """The choices of a stack. What is there already, by its OCID, is part of the network whatever else is chosen."""
    network, cache = cluster.network, config.storage.model_cache
    named = _named(network.subnets) | _named(network.security_groups)
    return NetworkChoices(
        cni=cluster.cni,
        public_endpoint=cluster.api_endpoint.access == "public",
        public_load_balancers=network.public_load_balancers or "public_load_balancers" in named,
        bastion=network.bastion or "bastion" in named,
        bastion_host=bool(network.bastion_host_cidrs) or "bastion_host" in named,
        operator=network.operator or "operator" in named,
        file_storage=isinstance(cache, FileStorage) or "storage" in named,
        lustre=isinstance(cache, Lustre) or "lustre" in named,
        worker_internet=network.worker_internet,
        pod_internet=network.pod_internet,
    )


def control_plane_cidrs(config: StackConfig) -> list[str] | None:
    """Where the API server speaks to pods from: what the stack file says of a cluster that is there already; the
    endpoint's subnet of a created one, where pods have addresses of the VCN. None where that can't be known beforehand.
    """
    cluster = config.cluster
    if isinstance(cluster, ExistingCluster):
        return list(cluster.control_plane_cidrs) or None
    if not isinstance(cluster, CreateCluster) or cluster.cni != "vcn-native":
        return None
    network = cluster.network
    if network.subnets.api is not None or (network.cidr is None and network.vcn_id is not None):
        return None
    vcn = IPv4Network(network.cidr or facts.subnets().vcn_cidr)
    api = layout(vcn, ("api",), ()).subnets.get("api")
    return None if api is None else [str(api)]


def network_pools(config: StackConfig) -> list[PoolSize]:
    """The pools whose nodes need addresses of the network; not those that are there already."""
    gpu_pools = [PoolSize(pool.limits.most, pool.max_pods) for pool in config.gpu_pools if pool.pool_id is None]
    cpu_pools = (config.system_pool, *config.cpu_pools)
    return [*gpu_pools, *(PoolSize(pool.limits.most, _most_pods(pool)) for pool in cpu_pools)]


def _most_pods(pool: SystemPool) -> int:
    """The pods that a node's VNICs carry: a flexible shape has one for each OCPU, at least two, one of them its own."""
    return pool.max_pods or min(MOST_PODS, 31 * max(1, int(pool.ocpus) - 1))


def _named(part: Part) -> set[str]:
    """The roles that an OCID is given for."""
    return {role for role, ocid in part.model_dump().items() if ocid is not None}
