"""Tenancy of a stack, and what the stack has there: its nodes by pool and reservation, its cluster and its network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmd_oke.access.oci_client import OciClient, OciError
from llmd_oke.catalogue.operations import oci_resources
from llmd_oke.config import CreateCluster, GpuPoolConfig, Image, StackConfig
from llmd_oke.planning.pools import SYSTEM_POOL
from llmd_oke.planning.tags import STACK_TAG

Item = Mapping[str, Any]


@dataclass(frozen=True)
class RunningNode:
    """An instance of the stack: the pool that it is of, and the reservation that it is taken from, if any."""

    pool: str
    reservation_id: str | None = None


@dataclass(frozen=True)
class RunningNodes:
    """Resources that a stack has in OCI already, whose limits and capacity it doesn't need once more."""

    nodes: tuple[RunningNode, ...] = ()
    clusters: int = 0
    networks: int = 0

    def of_pool(self, name: str, reservation_id: str | None = None) -> int:
        """The nodes of a pool, by its name: those that are taken from that reservation, or from none."""
        return sum(node.pool == name and node.reservation_id == reservation_id for node in self.nodes)


def running_of(client: OciClient, compartment_id: str, network_compartment_id: str, stack_tag: str) -> RunningNodes:
    """Find what carries the stack's tag in its compartments, and the instances of its pools, which carry none where
    they were launched before the kit tagged them.

    Raises:
        OciError: OCI doesn't tell.
    """

    def own(service: str, path: str, compartment: str = compartment_id) -> list[Item]:
        return [item for item in _there(client, service, path, compartment) if _is_tagged(item, stack_tag)]

    pools = {str(pool["id"]): str(pool["name"]) for pool in own("containerengine", "/nodePools")}
    for network in own("compute", "/clusterNetworks"):
        members: Sequence[Item] = network.get("instancePools") or ()
        pools |= {str(pool["id"]): str(network["displayName"]) for pool in members}
    instances = _there(client, "compute", "/instances", compartment_id)
    return RunningNodes(
        tuple(_nodes(instances, pools, stack_tag)),
        len(own("containerengine", "/clusters")),
        len(own("compute", "/vcns", network_compartment_id)),
    )


def _nodes(instances: Sequence[Item], pools: Mapping[str, str], stack_tag: str) -> Iterator[RunningNode]:
    """The stack's nodes among instances: OKE writes a node's pool into its metadata, OCI an instance pool into a tag;
    instances that the kit launches itself are named after their pool.
    """
    for instance in instances:
        metadata: Mapping[str, str] = instance.get("metadata") or {}
        tags: Mapping[str, str] = instance.get("freeformTags") or {}
        name = pools.get(metadata.get("oke-pool-id") or tags.get("oci:compute:instancepool") or "")
        if name is None and _is_tagged(instance, stack_tag):
            name = str(instance["displayName"]).rpartition("-")[0]
        if name is not None:
            reservation: str | None = instance.get("capacityReservationId")
            yield RunningNode(name, reservation)


def _there(client: OciClient, service: str, path: str, compartment_id: str) -> list[Item]:
    items: list[Item] = client.get(service, path, compartmentId=compartment_id)
    return [item for item in items if item.get("lifecycleState") not in oci_resources().gone]


def _is_tagged(item: Item, stack_tag: str) -> bool:
    tags: Mapping[str, str] = item.get("freeformTags") or {}
    return tags.get(STACK_TAG) == stack_tag


@dataclass(frozen=True)
class StackTenancy:
    """Tenancy of a stack, and the place where its cluster is or will be."""

    client: OciClient
    config: StackConfig
    cluster: CreateCluster
    stack_tag: str | None = None

    @cached_property
    def running(self) -> RunningNodes:
        """Nodes, cluster and network that the stack has in OCI already, by its tag; none where no tag is known.

        Raises:
            OciError: OCI doesn't tell.
        """
        if self.stack_tag is None:
            return RunningNodes()
        own = self.cluster.compartment_id
        return running_of(self.client, own, self.cluster.network.compartment_id or own, self.stack_tag)

    @cached_property
    def runs(self) -> RunningNodes:
        """The same, and nothing where OCI doesn't tell."""
        try:
            return self.running
        except OciError:
            return RunningNodes()

    @cached_property
    def availability_domains(self) -> tuple[str, ...]:
        """The region's availability domains, by their whole names: as the stack file gives them, or as OCI does.

        Raises:
            OciError: OCI doesn't tell.
        """
        if self.cluster.lookup_results.availability_domains:
            return tuple(self.cluster.lookup_results.availability_domains)
        domains = self.client.get("identity", "/availabilityDomains", compartmentId=self.cluster.tenancy_id)
        return tuple(str(domain["name"]) for domain in domains)

    @property
    def created_pools(self) -> list[tuple[int, GpuPoolConfig]]:
        """GPU pools that the stack creates, with their positions."""
        return [(i, pool) for i, pool in enumerate(self.config.gpu_pools) if pool.pool_id is None]

    @property
    def created_images(self) -> list[tuple[str, str, Image, str, str]]:
        """The images that pools boot from: pool, path in the stack file, image, the shape of the nodes, and their
        version of Kubernetes.
        """
        pools = [
            *((pool.name, f"gpuPools[{i}].image", pool) for i, pool in self.created_pools),
            (SYSTEM_POOL, "systemPool.image", self.config.system_pool),
            *((pool.name, f"cpuPools[{i}].image", pool) for i, pool in enumerate(self.config.cpu_pools)),
        ]
        own = self.cluster.kubernetes_version
        return [
            (name, path, pool.image, pool.shape, pool.kubernetes_version or own)
            for name, path, pool in pools
            if pool.image is not None
        ]
