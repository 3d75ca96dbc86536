"""Existing OCI resources of a stack in its tenancy: nodes by pool and reservation, cluster and network."""

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
    """Instance of the stack in OCI: name of its pool, and OCID of its capacity reservation, None without one."""

    pool: str
    reservation_id: str | None = None


@dataclass(frozen=True)
class RunningNodes:
    """Existing OCI resources of a stack, for which an update needs no further limits and capacity: its nodes, and the
    numbers of its clusters and VCNs.
    """

    nodes: tuple[RunningNode, ...] = ()
    clusters: int = 0
    networks: int = 0

    def of_pool(self, name: str, reservation_id: str | None = None) -> int:
        """Return the number of a pool's nodes from a capacity reservation (OCID), or from none if left out."""
        return sum(node.pool == name and node.reservation_id == reservation_id for node in self.nodes)


def running_of(client: OciClient, compartment_id: str, network_compartment_id: str, stack_tag: str) -> RunningNodes:
    """Look up the stack's resources by tag in its compartments, and the instances of its pools, which may lack the tag
    if an early version of the kit launched them.

    Raises:
        OciError: OCI refuses a request, or doesn't answer.
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
    """Yield the stack's nodes among `instances`. `pools` maps OCIDs of node pools and instance pools to names: OKE
    writes the node pool's OCID into an instance's metadata, OCI the instance pool's OCID into a tag. Other instances of
    the stack have the pool's name in their display name.
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
    """Tenancy that a stack is deployed to, with a client of OCI, the stack's configuration and its tag (None if
    unknown).
    """

    client: OciClient
    config: StackConfig
    cluster: CreateCluster
    stack_tag: str | None = None

    @cached_property
    def running(self) -> RunningNodes:
        """Existing nodes, clusters and VCNs of the stack, looked up by tag; none if the tag is unknown.

        Raises:
            OciError: OCI refuses a request, or doesn't answer.
        """
        if self.stack_tag is None:
            return RunningNodes()
        own = self.cluster.compartment_id
        return running_of(self.client, own, self.cluster.network.compartment_id or own, self.stack_tag)

    @cached_property
    def runs(self) -> RunningNodes:
        """Existing nodes, clusters and VCNs of the stack; none if OCI refuses a request or doesn't answer."""
        try:
            return self.running
        except OciError:
            return RunningNodes()

    @cached_property
    def availability_domains(self) -> tuple[str, ...]:
        """Full names of the region's availability domains, from the stack file or else from OCI.

        Raises:
            OciError: OCI refuses the request, or doesn't answer.
        """
        if self.cluster.lookup_results.availability_domains:
            return tuple(self.cluster.lookup_results.availability_domains)
        domains = self.client.get("identity", "/availabilityDomains", compartmentId=self.cluster.tenancy_id)
        return tuple(str(domain["name"]) for domain in domains)

    @property
    def created_pools(self) -> list[tuple[int, GpuPoolConfig]]:
        """GPU pools that the stack creates, each with its index in `gpuPools`."""
        return [(i, pool) for i, pool in enumerate(self.config.gpu_pools) if pool.pool_id is None]

    @property
    def created_images(self) -> list[tuple[str, str, Image, str, str]]:
        """Images of created pools, each as tuple of pool name, path in the stack file, image, shape and Kubernetes
        version.
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
