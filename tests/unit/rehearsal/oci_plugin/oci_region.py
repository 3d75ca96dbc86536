"""A simulated region in this process, and nodes that only a dictionary knows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmd_oke.rehearsal.nodes.config import NodeConfig
from llmd_oke.rehearsal.oci_plugin.clocks import Clock
from llmd_oke.rehearsal.oci_plugin.faults import Faults
from llmd_oke.rehearsal.oci_plugin.fleets import Fleets
from llmd_oke.rehearsal.oci_plugin.inputs import Naming, check
from llmd_oke.rehearsal.oci_plugin.operations import Operations, Order
from llmd_oke.rehearsal.oci_plugin.records import Records
from llmd_oke.rehearsal.oci_plugin.schemas import resources

PLACE = "ocid1.compartment.oc1..aaaa"
DOMAIN = "Uocm:US-ASHBURN-AD-1"
RDMA_SHAPE = "BM.GPU.MI300X.8"


@dataclass
class Nodes:
    """Takes the place of the node agent."""

    there: dict[str, NodeConfig] = field(default_factory=dict[str, NodeConfig])

    def add(self, nodes: Sequence[NodeConfig]) -> None:
        self.there |= {node.name: node for node in nodes}

    def remove(self, name: str) -> None:
        self.there.pop(name, None)


@dataclass
class Store:
    """Takes the place of the cluster's etcd; says what was asked of it."""

    asked: list[str] = field(default_factory=list[str])

    def begin(self) -> None:
        self.asked.append("begin")

    def empty(self) -> None:
        self.asked.append("empty")


class Region:
    """Makes, changes and deletes resources as the engine would, in no time."""

    def __init__(self, journal: Path | None = None, faults: Path | None = None) -> None:
        self.nodes = Nodes()
        self.records = Records(journal)
        fleets = Fleets(self.records, self.nodes)
        self.store = Store()
        self.operations = Operations(
            self.records, fleets, Faults(faults), Clock(0), lambda: "10.244.0.1:6443", store=self.store
        )

    def order(self, type_: str, inputs: dict[str, Any], name: str, timeout_s: float = 0) -> Order:
        resource = next(each for each in resources().values() if each.name == type_)
        checked = check(resource, {}, inputs, Naming(name))
        assert not checked.failures
        return Order(resource, name, "us-ashburn-1", checked.inputs, timeout_s=timeout_s)

    def create(self, type_: str, **inputs: Any) -> dict[str, Any]:
        return self.operations.create(self.order(type_, inputs, "it"))

    def update(self, type_: str, state: dict[str, Any], **inputs: Any) -> dict[str, Any]:
        return self.operations.update(state["id"], state, self.order(type_, inputs, "it"))

    def delete(self, state: dict[str, Any]) -> None:
        record = self.records.get(state["id"])
        assert record is not None
        self.operations.delete(record.id, Order(record.resource, "it", "us-ashburn-1", record.state))

    def vcn(self, *cidrs: str, **inputs: Any) -> dict[str, Any]:
        return self.create("Vcn", compartmentId=PLACE, cidrBlocks=list(cidrs or ("10.0.0.0/16",)), **inputs)

    def subnet(self, vcn: dict[str, Any], cidr: str, **inputs: Any) -> dict[str, Any]:
        return self.create("Subnet", compartmentId=PLACE, vcnId=vcn["id"], cidrBlock=cidr, **inputs)

    def group(self, vcn: dict[str, Any]) -> dict[str, Any]:
        return self.create("NetworkSecurityGroup", compartmentId=PLACE, vcnId=vcn["id"])

    def cluster(self, vcn: dict[str, Any], **inputs: Any) -> dict[str, Any]:
        usual = {
            "compartmentId": PLACE,
            "vcnId": vcn["id"],
            "name": "prod",
            "kubernetesVersion": "v1.34.2",
            "type": "ENHANCED_CLUSTER",
            "clusterPodNetworkOptions": [{"cniType": "OCI_VCN_IP_NATIVE"}],
        }
        return self.create("Cluster", **usual | inputs)


def pool(cluster: dict[str, Any], subnet: dict[str, Any], size: int = 9, **inputs: Any) -> dict[str, Any]:
    """Inputs of a node pool; `details` are added to its node config details."""
    details = {"size": size, "placementConfigs": [{"availabilityDomain": DOMAIN, "subnetId": subnet["id"]}]}
    usual = {
        "clusterId": cluster["id"],
        "compartmentId": PLACE,
        "name": "gpu",
        "nodeShape": RDMA_SHAPE,
        "nodeConfigDetails": details | inputs.pop("details", {}),
    }
    return usual | inputs
