"""Machines of node pools, cluster networks and instances, and the local cluster's nodes that they become."""

import base64
import binascii
import email
import gzip
import ipaddress
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from llmd_oke import catalogue
from llmd_oke.catalogue.cluster import node_comparison
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL

from llmd_rehearsal.agent_config import NodeConfig, NodeTaint
from llmd_rehearsal.oci_plugin.facts import region_facts, resource_of
from llmd_rehearsal.oci_plugin.faults import Fault, FaultRule
from llmd_rehearsal.oci_plugin.local_cluster import LocalNodeControl
from llmd_rehearsal.oci_plugin.region import (
    NodesNotJoined,
    Records,
    ResourceRecord,
    WorkRequestFailed,
    new_id,
    request_id,
)
from llmd_rehearsal.plugin_values import JsonObject, dig

GIB_PER_OCPU: Final = 16
"""Default memory of a flexible shape in GiB per OCPU (OCI documentation, Flexible Shapes)."""
DISK: Final = "1Ti"
"""Ephemeral storage that every simulated machine has for pods, as a Kubernetes quantity."""
MAX_PODS: Final = 110
"""Default limit of pods on a node, as in kubelet."""
_CYCLED_FOR = (
    "initialNodeLabels",
    "nodeShape",
    "nodeShapeConfig",
    "nodeConfigDetails.nsgIds",
    "nodeConfigDetails.isPvEncryptionInTransitEnabled",
)
"""Properties whose change makes OKE replace nodes, besides those that new boot volumes can apply (terraform-oci-oke,
guide, Workers: Node Cycle).
"""
_JOINING: Final = re.compile(r"\boke bootstrap\b|\boke[-_]init\b|\boke-install\.sh\b")
_SELF_MANAGED_JOINING: Final = (
    re.compile(r"\boke bootstrap\b.* --apiserver-host "),
    re.compile(r"\boke bootstrap\b.* --ca "),
    re.compile(r"(>|path:)\s*/etc/oke/oke-apiserver\b"),
    re.compile(r"(>|path:)\s*/etc/kubernetes/ca\.crt\b"),
)
"""Patterns that the boot script of a self-managed node must match (OCI documentation, Running Ubuntu on Worker Nodes
Using Custom Images).
"""
_ARGUMENT: Final = r"--{}[= ]+[\"']?([^\s\"']+)"
_TAINT: Final = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^:]*))?:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=]{64,}")


class Machines:
    """Simulated machines of all OCI resources that have some (node pools, cluster networks, instances), launched and
    ended to match the resources' sizes.

    `control` adds the machines' nodes to the local cluster; if None, the machines exist only at OCI.
    """

    def __init__(self, records: Records, control: LocalNodeControl | None) -> None:
        self._records = records
        self._control = control
        self._lock = threading.Lock()

    def converge(self, record: ResourceRecord, region: str, fault: FaultRule | None) -> ResourceRecord:
        """Launch and end machines until a resource has as many as its size requires; store the resource's record with
        its machines and return it.

        Raises:
            WorkRequestFailed: machines are missing afterwards, because of a fault or because the boot script doesn't
                join nodes.
        """
        spec = machine_spec(record, self._records)
        if spec is None:
            return record
        running = [machine for machine in record.machines if machine["joined"]][: spec.count]
        self._remove([machine for machine in record.machines if machine not in running])
        missing = spec.count - len(running)
        launched, joining = _shares(spec, missing, fault)
        with self._lock:
            new = self._launch(record, spec, running, launched)
            for machine in new[joining:]:
                machine["joined"] = False
            stored = _with_pool_nodes(replace(record, machines=(*running, *new)))
            self._records.put(stored)
        if self._control:
            self._control.add(
                [spec.node(machine["name"], machine["index"], region, machine["id"]) for machine in new[:joining]]
            )
        if launched < missing:
            raise WorkRequestFailed(
                f"{missing - launched} node(s) launch failure. Reason for failure on one of the nodes : Error returned "
                "by LaunchInstance operation in Compute service.(500, InternalError, false) Out of host capacity. "
                f"(opc-request-id: {request_id()})"
            )
        if joining < launched:
            raise NodesNotJoined(f"{launched - joining} node(s) register timeout")
        return stored

    def cycle(self, before: ResourceRecord, after: ResourceRecord, region: str) -> ResourceRecord:
        """Replace the machines of a node pool, or their boot volumes, if the pool's node cycling requires that for the
        change.

        Machines with new boot volumes keep their names and OCIDs; replaced machines are removed from the returned
        record.

        Raises:
            WorkRequestFailed: the change can't be made with new boot volumes.
        """
        cycling: Any = after.state.get("nodePoolCyclingDetails") or {}
        spec = machine_spec(after, self._records)
        if not cycling.get("isNodeCyclingEnabled") or spec is None:
            return after

        def changed(paths: Sequence[str]) -> list[str]:
            return [path for path in paths if dig(before.state, *path.split(".")) != dig(after.state, *path.split("."))]

        by_boot_volume, others = changed(node_comparison().boot_volume), changed(_CYCLED_FOR)
        if (cycling.get("cycleModes") or ["INSTANCE_REPLACE"])[0] != "BOOT_VOLUME_REPLACE":
            if not by_boot_volume and not others:
                return after
            self.end(after)
            return replace(after, machines=())
        if others:
            raise WorkRequestFailed(f"The boot volume replacement cannot update {', '.join(others)} of the nodes.")
        if by_boot_volume:
            joined = [machine for machine in after.machines if machine["joined"]]
            self._remove(joined)
            if self._control:
                self._control.add([spec.node(one["name"], one["index"], region, one["id"]) for one in joined])
            now = _launched_from(after)
            return _with_pool_nodes(replace(after, machines=tuple({**one, **now} for one in after.machines)))
        return after

    def detach(self, record: ResourceRecord, machine_id: str) -> None:
        """End one machine of a pool, which then has one machine less until `converge` is called."""
        self._remove([machine for machine in record.machines if machine["id"] == machine_id])
        with self._lock:
            now = self._records.get(record.id) or record
            others = tuple(machine for machine in now.machines if machine["id"] != machine_id)
            self._records.put(replace(now, machines=others))

    def end(self, record: ResourceRecord) -> None:
        """End all machines of a resource and remove their nodes."""
        self._remove(record.machines)

    def _remove(self, machines: Sequence[JsonObject]) -> None:
        for machine in machines:
            if machine["joined"] and self._control:
                self._control.remove(machine["name"])

    def _launch(
        self, record: ResourceRecord, spec: "MachineSpec", running: list[JsonObject], count: int
    ) -> list[JsonObject]:
        """Return new machines with the lowest free indexes; a suffix avoids the names of other resources' machines."""
        taken = {machine["name"] for other in self._records.with_machines(record.id) for machine in other.machines}
        first = spec.name if spec.alone else f"{spec.name}-0"
        base = spec.name if first not in taken else f"{spec.name}-{record.id[-5:]}"
        used = {machine["index"] for machine in running}
        free = [index for index in range(len(used) + count) if index not in used][:count]
        launched_from = _launched_from(record)
        return [
            {
                "name": base if spec.alone else f"{base}-{index}",
                "index": index,
                "id": record.id if spec.alone else new_id(resource_of("oci:Core/instance:Instance"), "iad"),
                "joined": True,
                **launched_from,
            }
            for index in free
        ]


def _launched_from(record: ResourceRecord) -> JsonObject:
    """Return the pool's properties that a machine keeps from its launch: the instance configuration, or the Kubernetes
    version and image.
    """
    pools: list[JsonObject] = record.state.get("instancePools") or []
    if pools:
        return {"configuration": str(pools[0]["instanceConfigurationId"])}
    source: JsonObject = record.state.get("nodeSourceDetails") or {}
    of_pool = {"kubernetesVersion": record.state.get("kubernetesVersion"), "imageId": source.get("imageId")}
    return {name: value for name, value in of_pool.items() if value} if record.resource.name == "NodePool" else {}


def _shares(spec: "MachineSpec", missing: int, fault: FaultRule | None) -> tuple[int, int]:
    """Return how many of the missing machines are launched, and how many of the launched machines join the cluster."""
    hit = missing if fault is None or fault.nodes is None else min(fault.nodes, missing)
    kind = fault.fault if fault else None
    launched = missing - hit if kind is Fault.OUT_OF_HOST_CAPACITY else missing
    if not spec.boot.joins:
        return launched, 0
    return launched, launched - hit if kind is Fault.NODE_NEVER_JOINS else launched


def _with_pool_nodes(record: ResourceRecord) -> ResourceRecord:
    """Return the record with its machines in the output `nodes`, if it is a node pool's."""
    if record.resource.name != "NodePool":
        return record
    placements: list[JsonObject] = record.state["nodeConfigDetails"]["placementConfigs"]
    nodes: list[JsonObject] = []
    for machine in record.machines:
        placement = placements[int(machine["index"]) % len(placements)]
        node = {
            "availabilityDomain": placement["availabilityDomain"],
            "faultDomain": _fault_domain(machine["index"]),
            "id": machine["id"],
            "kubernetesVersion": machine.get("kubernetesVersion") or record.state.get("kubernetesVersion") or "",
            "name": machine["name"],
            "nodePoolId": record.id,
            "state": "ACTIVE" if machine["joined"] else "FAILING",
            "subnetId": placement["subnetId"],
        }
        nodes.append(node)
    return replace(record, state={**record.state, "nodes": nodes})


def _fault_domain(index: int) -> str:
    """Return the fault domain of the machine with this index; machines are spread round-robin over all fault
    domains.
    """
    domains = region_facts().fault_domains
    return domains[index % len(domains)]


@dataclass(frozen=True)
class BootConfig:
    """Labels and taints with which a machine registers as a node; `joins` is False if the boot script doesn't make the
    machine join.
    """

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[NodeTaint, ...] = ()
    joins: bool = True


@dataclass(frozen=True)
class MachineSpec:
    """Number and properties of the machines that an OCI resource has. `size` is the flexible shape's configuration
    (OCPUs and memory), `pods` the limit of pods on a node.

    `alone`: the resource is itself a machine, so that the node's name is the resource's name without a number.
    """

    name: str
    shape: str
    count: int
    placements: Sequence[JsonObject]
    boot: BootConfig
    size: JsonObject
    pods: int = MAX_PODS
    labels: tuple[tuple[str, str], ...] = ()
    rdma: bool = False
    alone: bool = False

    def node(self, name: str, index: int, region: str, instance_id: str) -> NodeConfig:
        """Return the configuration of the node that a resource's machine becomes; `index` (from 0) is the machine's
        number in the resource.
        """
        shape, facts = catalogue.shape(self.shape), region_facts().shapes.get(self.shape)
        domain = str(self.placements[index % len(self.placements)]["availabilityDomain"])
        labels = {
            INSTANCE_TYPE_LABEL: self.shape,
            **(shape.node.labels if shape else {}),
            "topology.kubernetes.io/region": region_facts().key(region).lower(),
            "topology.kubernetes.io/zone": domain.rpartition(":")[2],
            "oci.oraclecloud.com/fault-domain": _fault_domain(index),
            **dict(self.labels),
            **self.boot.labels,
        }
        taints = [NodeTaint(**taint.model_dump()) for taint in shape.node.taints] if shape else []
        devices: dict[str, str] = {}  # the shape's devices, which the node advertises once their plug-in runs
        if shape is None:
            ocpus = self.size.get("ocpus") or (facts.ocpus if facts else 1)
            memory_gib = self.size.get("memoryInGbs") or (facts.memory_gib if facts else ocpus * GIB_PER_OCPU)
            cpus = int(ocpus * 2)
        else:
            cpus, memory_gib = shape.cpus, shape.memory_gib
            devices[shape.gpu.resource] = str(shape.gpus)
            if self.rdma:
                devices[shape.rdma.resource] = str(shape.rdma.virtual_functions)
        capacity = {"cpu": str(cpus), "memory": f"{int(memory_gib)}Gi"}
        return NodeConfig(
            name=name,
            provider_id=instance_id,
            capacity={**capacity, "pods": str(self.pods), "ephemeral-storage": DISK},
            devices=devices,
            labels=labels,
            taints=tuple(dict.fromkeys([*taints, *self.boot.taints])),
        )


def machine_spec(record: ResourceRecord, records: Records) -> MachineSpec | None:
    """Return the number and properties of the machines that an OCI resource has; None for a type without machines."""
    state = record.state
    match record.resource.name:
        case "NodePool":
            return _of_pool(state)
        case "ClusterNetwork":
            pool: Any = state["instancePools"][0]
            configuration = records.get(pool["instanceConfigurationId"])
            launch: Any = dig(configuration.state, "instanceDetails", "launchDetails") if configuration else None
            name = pool.get("displayName") or state["displayName"]
            spec = _self_managed(name, launch, state["placementConfiguration"], rdma=True) if launch else None
            return replace(spec, count=int(pool["size"])) if spec else None
        case "Instance":
            spec = _self_managed(state["displayName"], state, state, rdma=bool(state.get("computeClusterId")))
            return replace(spec, alone=True) if spec else None
        case _:
            return None


def _of_pool(state: JsonObject) -> MachineSpec:
    details: Any = state.get("nodeConfigDetails") or {}
    return MachineSpec(
        name=_dns_label(state["name"]),
        shape=state["nodeShape"],
        count=details.get("size") or 0,
        placements=details.get("placementConfigs") or (),
        boot=read_boot(state.get("nodeMetadata") or {}),
        size=state.get("nodeShapeConfig") or {},
        pods=dig(details, "nodePoolPodNetworkOptionDetails", "maxPodsPerNode") or MAX_PODS,
        labels=tuple((label["key"], label["value"]) for label in state.get("initialNodeLabels") or ()),
        rdma=bool(details.get("computeClusterId")),
    )


def _self_managed(name: str, launch: JsonObject, placement: JsonObject, *, rdma: bool) -> MachineSpec | None:
    """Return the spec of a self-managed machine, which joins by its own boot script; None without user data, as such an
    instance doesn't become a node.
    """
    metadata: JsonObject = launch.get("metadata") or {}
    if not metadata.get("user_data"):
        return None
    return MachineSpec(
        name=_dns_label(name),
        shape=launch["shape"],
        count=1,
        placements=[placement],
        boot=read_boot(metadata, self_managed=True),
        size=launch.get("shapeConfig") or {},
        pods=int(metadata.get("oke-max-pods") or MAX_PODS),
        rdma=rdma,
    )


def _dns_label(name: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:50] or "node"


def read_boot(metadata: Mapping[str, Any], *, self_managed: bool = False) -> BootConfig:
    """Return the labels and taints with which an instance registers as a node, from its metadata: user data and kubelet
    arguments.

    A node of a pool gets the cluster's address from OKE, and runs OKE's own script without user data. A self-managed
    node must have both in its metadata and script.
    """
    user_data = metadata.get("user_data") or ""
    text = "\n".join((*_texts(user_data), str(metadata.get("kubelet-extra-args") or "")))
    labels = _pairs(metadata.get("oke-initial-node-labels") or "")
    for argument in re.findall(_ARGUMENT.format("node-labels"), text):
        labels |= _pairs(argument)
    taints = [
        NodeTaint.model_validate({**match.groupdict(), "value": match["value"] or None})
        for argument in re.findall(_ARGUMENT.format("register-with-taints"), text)
        for match in map(_TAINT.fullmatch, argument.split(","))
        if match
    ]
    if self_managed:
        joins = _knows_cluster(metadata) and all(part.search(text) for part in _SELF_MANAGED_JOINING)
    else:
        joins = not user_data or _JOINING.search(text) is not None
    return BootConfig(labels, tuple(dict.fromkeys(taints)), joins=joins)


def _knows_cluster(metadata: Mapping[str, Any]) -> bool:
    """Tell whether the metadata has the API server's IP address without a port (OKE's programs append the ports) and
    its certificate authority.
    """
    try:
        ipaddress.ip_address(str(metadata.get("apiserver_host")))
    except ValueError:
        return False
    return (_decoded(str(metadata.get("cluster_ca_cert"))) or "").startswith("-----BEGIN CERTIFICATE-----")


def _pairs(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (pair.partition("=") for pair in text.split(",")) if key}


def _texts(user_data: str) -> Iterator[str]:
    """Yield all texts in user data: the parts of a MIME archive, and base64-encoded files inside each part."""
    plain = _decoded(user_data)
    if plain is None:
        return
    message = email.message_from_string(plain)
    payloads = [part.get_payload(decode=True) for part in message.walk()] if message.is_multipart() else []
    texts = [_unzipped(payload) for payload in payloads if isinstance(payload, bytes)]
    for text in texts if message.is_multipart() else [plain]:
        yield text
        yield from filter(None, map(_decoded, _BASE64.findall(text)))


def _decoded(text: str) -> str | None:
    try:
        return _unzipped(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None


def _unzipped(data: bytes) -> str:
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return plain.decode(errors="replace")
