"""Keeps as many nodes in the cluster as OCI's resources say."""

import threading
from dataclasses import replace

from llmd_oke.rehearsal.nodes.config import NodeConfig
from llmd_oke.rehearsal.oci_plugin.errors import NeverJoined, WorkRequestFailed, request_id
from llmd_oke.rehearsal.oci_plugin.faults import Fault, FaultRule
from llmd_oke.rehearsal.oci_plugin.machines import Plan, fault_domain, plan_of
from llmd_oke.rehearsal.oci_plugin.node_control import NodeControl
from llmd_oke.rehearsal.oci_plugin.records import Record, Records, new_id
from llmd_oke.rehearsal.oci_plugin.schemas import resource_of
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig

_CYCLED_FOR = ("nodeMetadata", "nodeShape", "nodeShapeConfig", "kubernetesVersion", "nodeSourceDetails", "sshPublicKey")


class Fleets:
    """The machines of all resources, and the nodes of the cluster that they are."""

    def __init__(self, records: Records, control: NodeControl) -> None:
        self._records = records
        self._control = control
        self._lock = threading.Lock()

    def converge(self, record: Record, region: str, fault: FaultRule | None) -> Record:
        """Launches and ends machines until they are what a resource asks for, and stores the record with them.

        Raises:
            WorkRequestFailed: machines are missing after it, because of a fault or a boot script that doesn't join.
        """
        plan = plan_of(record, self._records)
        if plan is None:
            return record
        kept = [machine for machine in record.machines if machine["joined"]][: plan.count]
        self._remove([machine for machine in record.machines if machine not in kept])
        missing = plan.count - len(kept)
        launched, joining = _shares(plan, missing, fault)
        with self._lock:
            new = self._launch(record, plan, kept, launched)
            for machine in new[joining:]:
                machine["joined"] = False
            stored = replace(record, machines=(*kept, *new))
            self._records.put(_told(stored))
        self._control.add([_node(plan, machine, region) for machine in new[:joining]])
        _need_all(missing, launched, joining)
        return _told(stored)

    def cycle(self, before: Record, after: Record) -> Record:
        """The record without machines where the change means that all are replaced."""
        cycled = dig(after.state, "nodePoolCyclingDetails", "isNodeCyclingEnabled")
        if not cycled or all(before.state.get(key) == after.state.get(key) for key in _CYCLED_FOR):
            return after
        self._remove(list(after.machines))
        return replace(after, machines=())

    def detach(self, record: Record, machine_id: str) -> None:
        """Ends one machine of a resource, which has one less until it converges again."""
        self._remove([machine for machine in record.machines if machine["id"] == machine_id])
        with self._lock:
            now = self._records.get(record.id) or record
            left = tuple(machine for machine in now.machines if machine["id"] != machine_id)
            self._records.put(replace(now, machines=left))

    def end(self, record: Record) -> None:
        """Ends all machines of a resource."""
        self._remove(list(record.machines))

    def _remove(self, machines: list[JsonObject]) -> None:
        for machine in machines:
            if machine["joined"]:
                self._control.remove(machine["name"])

    def _launch(self, record: Record, plan: Plan, kept: list[JsonObject], count: int) -> list[JsonObject]:
        """New machines, with the lowest indexes that are free; on a name of another resource's, an odd one."""
        taken = {machine["name"] for other in self._records.with_machines(record.id) for machine in other.machines}
        base = plan.name if _name(plan, plan.name, 0) not in taken else f"{plan.name}-{record.id[-5:]}"
        used = {machine["index"] for machine in kept}
        free = [index for index in range(len(used) + count) if index not in used][:count]
        configuration = _configuration(record)
        return [
            {
                "name": _name(plan, base, index),
                "index": index,
                "id": record.id if plan.alone else new_id(resource_of("oci:Core/instance:Instance"), "iad"),
                "joined": True,
                **({"configuration": configuration} if configuration else {}),
            }
            for index in free
        ]


def _name(plan: Plan, base: str, index: int) -> str:
    return base if plan.alone else f"{base}-{index}"


def _configuration(record: Record) -> str:
    """The instance configuration that a cluster network launches from."""
    pools: list[JsonObject] = record.state.get("instancePools") or []
    return str(pools[0]["instanceConfigurationId"]) if pools else ""


def _shares(plan: Plan, missing: int, fault: FaultRule | None) -> tuple[int, int]:
    """How many of the missing machines are launched, and how many of these join."""
    hit = missing if fault is None or fault.nodes is None else min(fault.nodes, missing)
    kind = fault.fault if fault else None
    launched = missing - hit if kind is Fault.OUT_OF_HOST_CAPACITY else missing
    if not plan.boot.joins:
        return launched, 0
    return launched, launched - hit if kind is Fault.NODE_NEVER_JOINS else launched


def _need_all(missing: int, launched: int, joining: int) -> None:
    if launched < missing:
        raise WorkRequestFailed(
            f"{missing - launched} node(s) launch failure. Reason for failure on one of the nodes : Error returned by "
            "LaunchInstance operation in Compute service.(500, InternalError, false) Out of host capacity. "
            f"(opc-request-id: {request_id()})"
        )
    if joining < launched:
        raise NeverJoined(f"{launched - joining} node(s) register timeout")


def _node(plan: Plan, machine: JsonObject, region: str) -> NodeConfig:
    return plan.node(machine["name"], machine["index"], region, machine["id"])


def _told(record: Record) -> Record:
    """The record with its machines among the outputs of a pool."""
    if record.resource.name != "NodePool":
        return record
    placements: list[JsonObject] = record.state["nodeConfigDetails"]["placementConfigs"]
    nodes = [_pool_node(record, machine, placements) for machine in record.machines]
    return replace(record, state={**record.state, "nodes": nodes})


def _pool_node(record: Record, machine: JsonObject, placements: list[JsonObject]) -> JsonObject:
    placement: JsonObject = placements[int(machine["index"]) % len(placements)]
    return {
        "availabilityDomain": placement["availabilityDomain"],
        "faultDomain": fault_domain(machine["index"]),
        "id": machine["id"],
        "kubernetesVersion": record.state.get("kubernetesVersion") or "",
        "name": machine["name"],
        "nodePoolId": record.id,
        "state": "ACTIVE" if machine["joined"] else "FAILING",
        "subnetId": placement["subnetId"],
    }
