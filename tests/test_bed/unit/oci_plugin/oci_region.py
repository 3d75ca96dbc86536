"""A simulated region in this process, and nodes that only a dictionary knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from llmd_rehearsal.agent_config import NodeConfig
from llmd_rehearsal.oci_plugin.bridge import check
from llmd_rehearsal.oci_plugin.facts import resources
from llmd_rehearsal.oci_plugin.faults import Faults
from llmd_rehearsal.oci_plugin.local_cluster import EtcdStore
from llmd_rehearsal.oci_plugin.nodes import Machines
from llmd_rehearsal.oci_plugin.operations import Operations, ResourceRequest
from llmd_rehearsal.oci_plugin.region import Records, RegionClock
from llmd_rehearsal.plugin_values import Naming

COMPARTMENT = "ocid1.compartment.oc1..aaaa"
DOMAIN = "Uocm:US-ASHBURN-AD-1"
RDMA_SHAPE = "BM.GPU.MI300X.8"
FLEXIBLE: dict[str, Any] = {"nodeShape": "VM.Standard.E5.Flex", "nodeShapeConfig": {"ocpus": 4.0, "memoryInGbs": 16.0}}
Parts: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""A cluster and a subnet of its network."""


@dataclass
class Nodes:
    """A stand-in for the node agent."""

    there: dict[str, NodeConfig] = field(default_factory=dict[str, NodeConfig])

    def add(self, nodes: Sequence[NodeConfig]) -> None:
        self.there |= {node.name: node for node in nodes}

    def remove(self, name: str) -> None:
        self.there.pop(name, None)


@dataclass
class Store:
    """A stand-in for the cluster's etcd, with the calls that it got."""

    calls: list[str] = field(default_factory=list[str])

    def snapshot(self) -> None:
        self.calls.append("snapshot")

    def restore(self) -> None:
        self.calls.append("restore")


class Region:
    """A region where resources are made, changed and deleted as the engine would, in no time."""

    def __init__(self, journal: Path | None = None, faults: Path | None = None) -> None:
        self.nodes = Nodes()
        self.records = Records(journal)
        machines = Machines(self.records, self.nodes)
        self.store = Store()
        self.operations = Operations(
            self.records,
            machines,
            Faults(faults),
            RegionClock(0),
            lambda: "10.244.0.1:6443",
            store=cast("EtcdStore", self.store),
        )

    def order(self, type_: str, inputs: dict[str, Any], name: str, timeout_s: float = 0) -> ResourceRequest:
        resource = next(item for item in resources().values() if item.name == type_)
        checked = check(resource, {}, inputs, Naming(name))
        assert not checked.failures
        return ResourceRequest(resource, name, "us-ashburn-1", checked.inputs, timeout_s=timeout_s)

    def create(self, type_: str, **inputs: object) -> dict[str, Any]:
        return self.operations.create(self.order(type_, inputs, "it"))

    def update(self, type_: str, state: dict[str, Any], **inputs: object) -> dict[str, Any]:
        return self.operations.update(state["id"], state, self.order(type_, inputs, "it"))

    def delete(self, state: dict[str, Any]) -> None:
        record = self.records.get(state["id"])
        assert record is not None
        self.operations.delete(record.id, ResourceRequest(record.resource, "it", "us-ashburn-1", record.state))

    def vcn(self, *cidrs: str, **inputs: object) -> dict[str, Any]:
        return self.create("Vcn", compartmentId=COMPARTMENT, cidrBlocks=list(cidrs or ("10.0.0.0/16",)), **inputs)

    def subnet(self, vcn: dict[str, Any], cidr: str, **inputs: object) -> dict[str, Any]:
        return self.create("Subnet", compartmentId=COMPARTMENT, vcnId=vcn["id"], cidrBlock=cidr, **inputs)

    def group(self, vcn: dict[str, Any]) -> dict[str, Any]:
        return self.create("NetworkSecurityGroup", compartmentId=COMPARTMENT, vcnId=vcn["id"])

    def cluster(self, vcn: dict[str, Any], **inputs: object) -> dict[str, Any]:
        usual = {
            "compartmentId": COMPARTMENT,
            "vcnId": vcn["id"],
            "name": "prod",
            "kubernetesVersion": "v1.34.2",
            "type": "ENHANCED_CLUSTER",
            "clusterPodNetworkOptions": [{"cniType": "OCI_VCN_IP_NATIVE"}],
        }
        return self.create("Cluster", **usual | inputs)

    def compute_cluster(self, domain: str = DOMAIN, **inputs: object) -> dict[str, Any]:
        return self.create("ComputeCluster", compartmentId=COMPARTMENT, availabilityDomain=domain, **inputs)

    def cluster_network(self, **launch: object) -> dict[str, Any]:
        """Create a cluster network of two instances, and what they are launched by."""
        details = {"instanceType": "compute", "launchDetails": launch}
        configuration = self.create("InstanceConfiguration", compartmentId=COMPARTMENT, instanceDetails=details)
        instances = {"instanceConfigurationId": configuration["id"], "size": 2, "displayName": "gpu"}
        where = {"compartmentId": COMPARTMENT, "placementConfiguration": {"availabilityDomain": DOMAIN}}
        return self.create("ClusterNetwork", **where, instancePools=[instances])

    def add_on(self, cluster: dict[str, Any], name: str, **inputs: object) -> dict[str, Any]:
        needed = {"clusterId": cluster["id"], "removeAddonResourcesOnDelete": True}
        return self.create("Addon", addonName=name, **needed, **inputs)


def pool(
    cluster: dict[str, Any],
    subnet: dict[str, Any],
    size: int = 9,
    details: Mapping[str, object] | None = None,
    **inputs: object,
) -> dict[str, Any]:
    """Inputs of a node pool; `details` are added to its node config details."""
    placements = [{"availabilityDomain": DOMAIN, "subnetId": subnet["id"]}]
    return {
        "clusterId": cluster["id"],
        "compartmentId": COMPARTMENT,
        "name": "gpu",
        "nodeShape": RDMA_SHAPE,
        "nodeConfigDetails": {"size": size, "placementConfigs": placements, **(details or {})},
        **inputs,
    }
