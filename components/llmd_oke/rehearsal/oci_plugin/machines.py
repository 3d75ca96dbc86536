"""The machines of pools, cluster networks and instances, and the nodes that they become."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from llmd_oke import catalogue
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.rehearsal.nodes.config import NodeConfig, Taint
from llmd_oke.rehearsal.oci_plugin.boot_scripts import Boot, read_boot
from llmd_oke.rehearsal.oci_plugin.records import Record, Records
from llmd_oke.rehearsal.oci_plugin.region import region_facts
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig

GIB_PER_OCPU: Final = 16
"""Memory of a flexible shape where none is asked for (OCI documentation, Flexible Shapes)."""
DISK: Final = "1Ti"
"""Room for pods on a machine's disks, whatever they are."""
MOST_PODS: Final = 110
"""Pods on a node unless told otherwise (kubelet's own default)."""


@dataclass(frozen=True)
class Plan:
    """What the machines of a resource are like, and how many of them there are to be.

    `alone` says that the resource is the machine itself, whose node has its name without a number.
    """

    name: str
    shape: str
    count: int
    placements: Sequence[JsonObject]
    boot: Boot
    size: JsonObject
    pods: int = MOST_PODS
    labels: tuple[tuple[str, str], ...] = ()
    rdma: bool = False
    alone: bool = False

    def node(self, name: str, index: int, region: str, instance_id: str) -> NodeConfig:
        """The node that the machine with that index becomes."""
        known = catalogue.shape(self.shape)
        domain = str(self.placements[index % len(self.placements)]["availabilityDomain"])
        own = {INSTANCE_TYPE_LABEL: self.shape, **(known.node.labels if known else {})}
        places = {
            "topology.kubernetes.io/region": region_facts().key(region).lower(),
            "topology.kubernetes.io/zone": domain.rpartition(":")[2],
            "oci.oraclecloud.com/fault-domain": fault_domain(index),
        }
        taints = [Taint(**taint.model_dump()) for taint in known.node.taints] if known else []
        every = dict.fromkeys([*taints, *self.boot.taints])
        return NodeConfig(
            name=name,
            provider_id=instance_id,
            capacity=self._capacity(),
            devices=self._devices(),
            labels={**own, **places, **dict(self.labels), **self.boot.labels},
            taints=tuple(every),
        )

    def _capacity(self) -> dict[str, str]:
        known, facts = catalogue.shape(self.shape), region_facts().shapes.get(self.shape)
        pods = {"pods": str(self.pods), "ephemeral-storage": DISK}
        if known is not None:
            return {"cpu": str(known.cpus), "memory": f"{known.memory_gib}Gi", **pods}
        ocpus = self.size.get("ocpus") or (facts.ocpus if facts else 1)
        memory_gib = self.size.get("memoryInGbs") or (facts.memory_gib if facts else ocpus * GIB_PER_OCPU)
        return {"cpu": str(int(ocpus * 2)), "memory": f"{int(memory_gib)}Gi", **pods}

    def _devices(self) -> dict[str, str]:
        """What is built into the machine; the node shows it once the cluster has what gives it."""
        known = catalogue.shape(self.shape)
        if known is None:
            return {}
        devices = {known.gpu.resource: str(known.gpus)}
        if self.rdma:
            devices[known.rdma.resource] = str(known.rdma.virtual_functions)
        return devices


def fault_domain(index: int) -> str:
    """Machines are spread over the fault domains."""
    domains = region_facts().fault_domains
    return domains[index % len(domains)]


def plan_of(record: Record, records: Records) -> Plan | None:
    """The machines of a resource; None where it has none."""
    match record.resource.name:
        case "NodePool":
            return _of_pool(record.state)
        case "ClusterNetwork":
            return _of_cluster_network(record.state, records)
        case "Instance":
            return _of_instance(record.state)
        case _:
            return None


def _of_pool(state: JsonObject) -> Plan:
    details: Any = state.get("nodeConfigDetails") or {}
    pods = dig(details, "nodePoolPodNetworkOptionDetails", "maxPodsPerNode")
    return Plan(
        name=_dns_label(state["name"]),
        shape=state["nodeShape"],
        count=details.get("size") or 0,
        placements=details.get("placementConfigs") or (),
        boot=read_boot(state.get("nodeMetadata") or {}),
        size=state.get("nodeShapeConfig") or {},
        pods=pods or MOST_PODS,
        labels=tuple((label["key"], label["value"]) for label in state.get("initialNodeLabels") or ()),
        rdma=bool(details.get("computeClusterId")),
    )


def _of_cluster_network(state: JsonObject, records: Records) -> Plan | None:
    pool: Any = state["instancePools"][0]
    configuration = records.get(pool["instanceConfigurationId"])
    launch: Any = dig(configuration.state, "instanceDetails", "launchDetails") if configuration else None
    if not launch:
        return None
    name = pool.get("displayName") or state["displayName"]
    metadata: JsonObject = launch.get("metadata") or {}
    return _self_managed(name, launch, metadata, int(pool["size"]), state["placementConfiguration"], rdma=True)


def _of_instance(state: JsonObject) -> Plan | None:
    metadata: JsonObject = state.get("metadata") or {}
    plan = _self_managed(state["displayName"], state, metadata, 1, state, rdma=bool(state.get("computeClusterId")))
    return replace(plan, alone=True) if plan else None


def _self_managed(
    name: str, launch: JsonObject, metadata: JsonObject, count: int, placement: JsonObject, *, rdma: bool
) -> Plan | None:
    """Machines that join on their own account; those without user data are none of a cluster."""
    if not metadata.get("user_data"):
        return None
    return Plan(
        name=_dns_label(name),
        shape=launch["shape"],
        count=count,
        placements=[placement],
        boot=read_boot(metadata, self_managed=True),
        size=launch.get("shapeConfig") or {},
        pods=int(metadata.get("oke-max-pods") or MOST_PODS),
        rdma=rdma,
    )


def _dns_label(name: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:50] or "node"
