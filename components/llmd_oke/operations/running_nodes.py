"""What a stack has in OCI already: its nodes by pool and reservation, its cluster and its network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmd_oke.access.oci_client import OciClient
from llmd_oke.catalogue.operations import oci_resources
from llmd_oke.planning.tags import STACK_TAG

Item = Mapping[str, Any]


@dataclass(frozen=True)
class RunningNode:
    """An instance of the stack: the pool that it is of, and the reservation that it is taken from, if any."""

    pool: str
    reservation_id: str | None = None


@dataclass(frozen=True)
class RunningNodes:
    """What a stack has in OCI already, whose limits and capacity it doesn't need once more."""

    nodes: tuple[RunningNode, ...] = ()
    clusters: int = 0
    networks: int = 0

    def of_pool(self, name: str, reservation_id: str | None = None) -> int:
        """The nodes of a pool, by its name: those that are taken from that reservation, or from none."""
        return sum(node.pool == name and node.reservation_id == reservation_id for node in self.nodes)


def running_of(client: OciClient, compartment_id: str, network_compartment_id: str, stack_tag: str) -> RunningNodes:
    """What carries the stack's tag in its compartments, and the instances of its pools, which carry none where they
    were launched before the kit tagged them.

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
