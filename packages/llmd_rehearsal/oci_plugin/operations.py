"""Create, Update, Delete and Read of OCI resources, with the real plug-in's behaviour on a simulated region."""

import re
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Any, Final

from llmd_oke.catalogue.operations import oci_resources

from llmd_rehearsal.oci_plugin.bridge import (
    META,
    FailedRequest,
    meta,
    preview_state,
    with_computed,
    without_defaults,
)
from llmd_rehearsal.oci_plugin.facts import ResourceType, lifecycles, region_facts
from llmd_rehearsal.oci_plugin.faults import Fault, FaultRule, Faults
from llmd_rehearsal.oci_plugin.local_cluster import (
    ClusterAddOns,
    EtcdStore,
    configurations_of,
    require_add_on_dependencies,
)
from llmd_rehearsal.oci_plugin.nodes import Machines
from llmd_rehearsal.oci_plugin.region import (
    NoAnswerError,
    NodesNotJoined,
    Records,
    RegionClock,
    ResourceRecord,
    ServiceError,
    WaitEnded,
    WorkRequestFailed,
    invalid,
    new_id,
    not_found,
)
from llmd_rehearsal.oci_plugin.rules import ServiceRequest, check_request, require_unused
from llmd_rehearsal.plugin_values import InitFailed, JsonObject

RETRY_S: Final = 600.0
"""Time limit in seconds for which terraform-provider-oci retries after `TooManyRequests` (`retry_duration_seconds`)."""
RETRY_PAUSE_S: Final = 10.0
NETWORK_RETRY_S: Final = 120.0
"""Time limit in seconds for which terraform-provider-oci retries requests without an answer
(internal/tfresource/retry.go).
"""
SLOW_FACTOR: Final = 5.0
"""Factor on the duration of OCI's work under the fault `slow`."""
OCI_TAGS: Final = "urn:ietf:params:scim:schemas:oracle:idcs:extension:OCITags"
"""Schema that an identity domain adds to each group (terraform-provider-oci,
identity_domains_dynamic_resource_group_test.go ignores `schemas`).
"""
ENHANCED_UPGRADES: Final = 2
"""Number of newer Kubernetes versions that a simulated cluster offers in `availableKubernetesUpgrades`."""
_DELETED_AFTER_FAILURE: Final = frozenset({"Cluster", "NodePool", "Addon"})
"""Types of resources that the OCI plug-in deletes if their creation fails (terraform-provider-oci, `Create` of these
resources). The engine has recorded the id by then, so that updates fail until a refresh finds the resource gone.
"""
_WITH_NODES: Final = frozenset({"NodePool", "ClusterNetwork", "Instance"})
_DURATION: Final = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?")


@dataclass(frozen=True)
class ResourceRequest:
    """Request of the engine to create, change or delete a resource. `timeout_s` 0 means the resource type's own time
    limit; `cancelled` ends the request's waits.
    """

    resource: ResourceType
    name: str
    region: str
    inputs: JsonObject
    preview: bool = False
    timeout_s: float = 0.0
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def limit_s(self) -> float:
        """Time limit of the request's operation in seconds of OCI's time, which the simulated region shortens."""
        return self.timeout_s or self.resource.timeout_s

    @property
    def plain_inputs(self) -> JsonObject:
        """Inputs of the requested resource without the Terraform bridge's own records."""
        inputs: JsonObject = without_defaults(self.inputs)
        return inputs


@dataclass(frozen=True)
class Operations:
    """Operations of the stand-in OCI plug-in on resources, for concurrent use by many threads.

    `api_server` returns the address of the local cluster's API server as host:port. `add_ons` and `store` act on the
    local cluster and are None if there is no local cluster.
    """

    records: Records
    machines: Machines
    faults: Faults
    clock: RegionClock
    api_server: Callable[[], str] = str
    add_ons: ClusterAddOns | None = None
    store: EtcdStore | None = None
    _admission: threading.Lock = field(default_factory=threading.Lock)

    def create(self, request: ResourceRequest) -> JsonObject:
        """Create an OCI resource, wait until it is active, and return its state for the engine; `id` in the state is
        the OCID.

        Raises:
            OperationRefusal: OCI refused the request; nothing was created.
            InitFailed: OCI accepted the request and the work failed.
        """
        resource = request.resource
        if request.preview:
            return preview_state(resource, request.inputs)
        failed = FailedRequest(resource, "create", request.region)
        if resource.name == "Cluster" and self.store:
            self.store.snapshot()
        try:
            fault = self._fault_of(request, "create")
            with self._admission:
                record = self._admit(request)
            if fault is not None and fault.fault is Fault.ANSWER_LOST and not self._is_answered_later(request):
                self.records.put(_in_state(self._with_nodes(record, request, None), active_state(resource)))
                raise NoAnswerError
        except ServiceError as error:
            raise failed.refusal(error) from None
        except NoAnswerError:
            raise failed.unanswered() from None
        return self._settle(record, request, failed, fault)

    def _is_answered_later(self, request: ResourceRequest) -> bool:
        """Tell whether one of the plug-in's retries gets an answer."""
        for _ in range(round(NETWORK_RETRY_S / RETRY_PAUSE_S)):
            self.clock.wait(RETRY_PAUSE_S, request.cancelled)
            fault = self._fault_of(request, "create")
            if fault is None or fault.fault is not Fault.ANSWER_LOST:
                return True
        return False

    def _admit(self, request: ResourceRequest) -> ResourceRecord:
        resource, inputs = request.resource, request.plain_inputs
        check_request(ServiceRequest(resource, inputs, None, self.records, request.region))
        match resource.name:  # all types with other ids than OCIDs of their own
            case "Addon":
                id_ = f"clusters/{inputs['clusterId']}/addons/{inputs['addonName']}"
            case "DefaultSecurityList":
                id_ = inputs["manageDefaultResourceId"]
            case "NetworkSecurityGroupSecurityRule":
                id_ = secrets.token_hex(3).upper()
            case _:
                id_ = new_id(resource, region_facts().key(request.region))
        new = NewResource(resource, id_, {}, self.records, request.region, self.api_server())
        record = ResourceRecord(id_, resource.token, first_state(new, inputs), inputs)
        self.records.put(_in_state(record, "CREATING"))
        return record

    def update(self, id_: str, state: JsonObject, request: ResourceRequest) -> JsonObject:
        """Change an OCI resource, wait until it is active, and return its state for the engine. After an update that
        failed, the engine may ask for the same update again, with inputs that equal the recorded ones.

        Raises:
            OperationRefusal: OCI refused the request; nothing was changed.
            InitFailed: OCI accepted the request and the work failed.
        """
        if request.preview:
            return preview_state(request.resource, request.inputs, state)
        failed = FailedRequest(request.resource, "update", request.region)
        try:
            before = self.records.get(id_)
            if before is None:
                raise not_found(id_)
            fault = self._fault_of(request, "update")
            with self._admission:
                inputs = request.plain_inputs
                check_request(ServiceRequest(request.resource, inputs, before, self.records, request.region))
                after = replace(before, state=next_state(request.resource, before.state, inputs), inputs=inputs)
                self.records.put(_in_state(after, "UPDATING"))
        except ServiceError as error:
            raise failed.refusal(error) from None
        except NoAnswerError:
            raise failed.unanswered() from None
        return self._settle(after, request, failed, fault, (before, state))

    def _settle(
        self,
        record: ResourceRecord,
        request: ResourceRequest,
        failed: FailedRequest,
        fault: FaultRule | None,
        before: tuple[ResourceRecord, JsonObject] | None = None,
    ) -> JsonObject:
        """Do the work that follows an accepted request, record the result, and return the state for the engine.

        For an update, `before` has the resource's earlier record and the state that the engine had recorded.
        """
        known = before[1] if before else None
        kind = fault.fault if fault else None
        try:
            require_add_on_dependencies(record, self.records)
            factor = SLOW_FACTOR if kind is Fault.SLOW else 1.0
            self.clock.work(request.resource, failed.operation, request.limit_s, request.cancelled, factor)
            if fault is not None and kind is Fault.LATE_FAILURE:
                raise WorkRequestFailed(fault.message)
            if before is not None:
                record = self.machines.cycle(before[0], record, request.region)
            done = _in_state(self._with_nodes(record, request, fault), active_state(request.resource))
            if kind is Fault.TIMEOUT:
                self.records.put(done)
                reason = failed.failed_work(self.clock.give_up(request.limit_s, request.cancelled))
                raise InitFailed(record.id, known or _recorded(_in_state(record, "CREATING")), [reason])
        except WorkRequestFailed as error:
            remnant = self._after_failure(record, failed, error, fault.state if fault else None)
            raise InitFailed(record.id, known or _recorded(remnant), [failed.failed_work(str(error))]) from None
        self.records.put(done)
        if record.resource.name == "Addon" and self.add_ons:
            self.add_ons.install(done.state["addonName"], configurations_of(done.state))
        return _recorded(done)

    def _after_failure(
        self, record: ResourceRecord, failed: FailedRequest, error: WorkRequestFailed, seen: str | None
    ) -> ResourceRecord:
        """Return the record of a resource whose work failed, as the plug-in last saw it; `seen` is the state that a
        fault sets.
        """
        now = self.records.get(record.id) or record
        by_plug_in, by_oci = record.resource.name in _DELETED_AFTER_FAILURE, seen in oci_resources().gone
        if failed.operation == "create" and (by_plug_in or by_oci) and not isinstance(error, WaitEnded):
            with suppress(WorkRequestFailed):
                self.remove(now)
                return _in_state(record, seen or "CREATING")
        remnant = _in_state(now, seen or "FAILED")
        self.records.put(remnant)
        return remnant

    def _with_nodes(self, record: ResourceRecord, request: ResourceRequest, fault: FaultRule | None) -> ResourceRecord:
        if record.resource.name not in _WITH_NODES:
            return record
        try:
            return self.machines.converge(record, request.region, fault)
        except NodesNotJoined:
            if record.resource.name != "NodePool":  # OCI doesn't wait for self-managed nodes to join
                return self.records.get(record.id) or record
            self.clock.wait(lifecycles()["register_timeout_s"], request.cancelled)
            raise

    def delete(self, id_: str, request: ResourceRequest) -> None:
        """Delete an OCI resource and wait until it is gone; do nothing if it doesn't exist.

        Raises:
            OperationRefusal: OCI refused the request, because another resource depends on this one.
            InitFailed: OCI accepted the request and the work failed.
        """
        record = self.records.get(id_)
        if record is None:
            return
        failed = FailedRequest(request.resource, "delete", request.region)
        try:
            fault = self._fault_of(request, "delete")
            with self._admission:
                require_unused(record, self.records)
                self.records.put(_in_state(record, "DELETING"))
            self.clock.work(request.resource, "delete", request.limit_s, request.cancelled)
            if fault is not None and fault.fault is Fault.LATE_FAILURE:
                raise WorkRequestFailed(fault.message)
            self.remove(record)
        except ServiceError as error:
            raise failed.refusal(error) from None
        except NoAnswerError:
            raise failed.unanswered() from None
        except WorkRequestFailed as error:
            remnant = _in_state(record, "FAILED")
            self.records.put(remnant)
            raise InitFailed(id_, _recorded(remnant), [failed.failed_work(str(error))]) from None

    def remove(self, record: ResourceRecord) -> None:
        """Remove a resource of the simulated region with all resources that can't exist without it.

        Raises:
            WorkRequestFailed: the local cluster doesn't answer.
        """
        name = record.resource.name
        if name in {"Cluster", "NetworkSecurityGroup"}:
            for other in self.records.referring_to(record.id):
                if other.resource.name in {"NodePool", "Addon", "NetworkSecurityGroupSecurityRule"}:
                    self.machines.end(other)
                    if record.id in {other.state.get("clusterId"), other.state.get("networkSecurityGroupId")}:
                        self.records.remove(other.id)
        if name == "Vcn" and (default := self.records.get(record.state["defaultSecurityListId"])):
            self.records.remove(default.id)
        self.machines.end(record)
        if name == "Addon" and self.add_ons and record.state.get("removeAddonResourcesOnDelete"):
            self.add_ons.remove(record.state["addonName"])
        if name == "Cluster" and self.add_ons:
            self.add_ons.cancel_all()
        if name == "Cluster" and self.store:
            self.store.restore()
        self.records.remove(record.id)

    def read(self, id_: str, inputs: JsonObject) -> tuple[JsonObject, JsonObject] | None:
        """Return the present state and inputs of an OCI resource; None if it doesn't exist.

        An identity domain returns a group's tags only on request, and the OCI plug-in doesn't request them
        (terraform-provider-oci, issue 2418).
        """
        record = self.records.get(id_)
        if record is None:
            return None
        if record.resource.name == "DomainsDynamicResourceGroup":
            record = replace(record, state={**record.state, "tags": []})
        return _recorded(record), inputs or record.inputs

    def _fault_of(self, request: ResourceRequest, operation: str) -> FaultRule | None:
        """Return the fault rule for a request's work, None without a fault; faults of the request itself are raised.

        Raises:
            ServiceError: a fault refuses the request.
            NoAnswerError: a fault loses the request before it reaches OCI.
        """
        type_, inputs = request.resource.name, request.plain_inputs
        names = [request.name, str(inputs.get("displayName") or inputs.get("name") or "")]
        waited_s = 0.0
        while True:
            fault = self.faults.take(type_, [name for name in names if name], operation)
            if fault is None:
                return None
            match fault.fault:
                case Fault.TOO_MANY_REQUESTS:
                    if waited_s >= RETRY_S:
                        raise ServiceError(429, "TooManyRequests", "Too many requests for the user")
                    self.clock.wait(RETRY_PAUSE_S, request.cancelled)
                    waited_s += RETRY_PAUSE_S
                case Fault.INTERNAL_ERROR:
                    raise ServiceError(500, "InternalError", "Internal server error")
                case Fault.ANSWER_LOST if operation != "create":
                    raise NoAnswerError
                case Fault.OUT_OF_HOST_CAPACITY if type_ == "Instance":
                    raise ServiceError(500, "InternalError", "Out of host capacity.")
                case _:
                    return fault


def _in_state(record: ResourceRecord, state: str) -> ResourceRecord:
    """Return the record with another `state`, or unchanged if the type doesn't have that property."""
    if "state" not in {**record.resource.outputs, **record.resource.inputs}:
        return record
    return replace(record, state={**record.state, "state": state})


def _recorded(record: ResourceRecord) -> JsonObject:
    """Return a resource's state in the form that the engine records."""
    return {**record.state, META: meta(record.resource)}


def active_state(resource: ResourceType) -> str:
    """Return the lifecycle state that a healthy resource of this type has at OCI, for example `ACTIVE` or
    `AVAILABLE`.
    """
    type_ = resource.token.split("/")[1].partition(":")[0]
    words: Any = lifecycles()["states"]
    return next((word.upper() for word, types in words.items() if type_ in types), "ACTIVE")


@dataclass(frozen=True)
class NewResource:
    """OCI resource that is being created. `state` is built from its inputs; `api_server` is the address of the local
    cluster's API server as host:port.
    """

    resource: ResourceType
    id: str
    state: JsonObject
    records: Records
    region: str
    api_server: str = ""

    def child_id(self, kind: str) -> str:
        """Return the OCID of a resource of the type `kind` that OCI creates together with this one."""
        return f"ocid1.{kind}.oc1.{region_facts().key(self.region).lower()}.aaaaaaaa{self.id[-52:]}"

    def state_of(self, key: str) -> JsonObject:
        """Return the state of the resource whose OCID the input `key` contains; empty if that resource existed before
        the rehearsal.
        """
        record = self.records.get(self.state[key])
        return record.state if record else {}


def first_state(new: NewResource, inputs: JsonObject) -> JsonObject:
    """Return all outputs of a new resource that is created with these inputs."""
    resource = new.resource
    properties = {**resource.outputs, **resource.inputs}
    filled = {name: with_computed(schema, inputs.get(name)) for name, schema in properties.items()}
    state = {name: value for name, value in filled.items() if value is not None}
    now = datetime.now(UTC)
    moment = now.strftime("%Y-%m-%d %H:%M:%S +0000 UTC")
    common = {
        "timeCreated": moment,
        "timeUpdated": moment,
        "state": active_state(resource),
        "displayName": f"{resource.name.lower()}{now:%Y%m%d%H%M%S}",
    }
    state |= {"id": new.id, **{name: value for name, value in common.items() if name in state and not state[name]}}
    state |= _reworded(resource, state)
    outputs = _OUTPUTS.get(resource.name)
    own: JsonObject = outputs(replace(new, state=state)) if outputs else {}
    return {**state, **{name: value for name, value in own.items() if not inputs.get(name)}}


def next_state(resource: ResourceType, before: JsonObject, inputs: JsonObject) -> JsonObject:
    """Return all outputs of a resource after a change to these inputs; `before` are its outputs before the change."""
    properties = {**resource.outputs, **resource.inputs}
    filled = {name: with_computed(schema, inputs.get(name), before.get(name)) for name, schema in properties.items()}
    dropped = {name for name, schema in resource.inputs.items() if not schema.computed and name not in inputs}
    state = {name: value for name, value in filled.items() if value is not None and name not in dropped}
    state |= _reworded(resource, state)
    if resource.name == "Subnet":
        state["ipv4cidrBlocks"] = [state["cidrBlock"]]
    if resource.name == "Vcn" and inputs.get("cidrBlocks"):
        state["cidrBlock"] = inputs["cidrBlocks"][0]
    return {**state, "id": before["id"]}


def _reworded(resource: ResourceType, state: JsonObject) -> JsonObject:
    """Return the properties that OCI returns in another form than the request's."""
    if resource.name == "DomainsDynamicResourceGroup":
        return {"schemas": sorted({*state["schemas"], OCI_TAGS})}
    settings: JsonObject | None = state.get("nodeEvictionNodePoolSettings")
    if resource.name == "NodePool" and settings and settings.get("evictionGraceDuration"):
        duration = _duration(settings["evictionGraceDuration"])
        return {"nodeEvictionNodePoolSettings": {**settings, "evictionGraceDuration": duration}}
    return {}


def _duration(text: str) -> str:
    """Return an ISO 8601 duration in its largest units, as OCI returns it (Java, Duration.toString)."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise invalid(f"Invalid evictionGraceDuration: {text}")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    minutes, seconds = divmod(hours * 3600 + minutes * 60 + seconds, 60)
    hours, minutes = divmod(minutes, 60)
    units = "".join(f"{number}{unit}" for number, unit in ((hours, "H"), (minutes, "M"), (seconds, "S")) if number)
    return f"PT{units or '0S'}"


def _vcn(new: NewResource) -> JsonObject:
    ranges = new.state.get("cidrBlocks") or [new.state.get("cidrBlock")]
    label = new.state.get("dnsLabel")
    return {
        "cidrBlock": ranges[0],
        "cidrBlocks": ranges,
        "defaultDhcpOptionsId": new.child_id("dhcpoptions"),
        "defaultRouteTableId": new.child_id("routetable"),
        "defaultSecurityListId": new.child_id("securitylist"),
        "vcnDomainName": f"{label}.oraclevcn.com" if label else "",
    }


def _subnet(new: NewResource) -> JsonObject:
    cidr, vcn = IPv4Network(new.state["cidrBlock"]), new.state_of("vcnId")
    label, domain = new.state.get("dnsLabel"), vcn.get("vcnDomainName")
    return {
        "dhcpOptionsId": vcn.get("defaultDhcpOptionsId", ""),
        "ipv4cidrBlocks": [str(cidr)],
        "routeTableId": vcn.get("defaultRouteTableId", ""),
        "securityListIds": [vcn["defaultSecurityListId"]] if vcn else [],
        "subnetDomainName": f"{label}.{domain}" if label and domain else "",
        "virtualRouterIp": str(cidr[1]),
        "virtualRouterMac": "00:00:17:00:00:01",
    }


def _service_gateway(new: NewResource) -> JsonObject:
    for service in new.state["services"]:
        service["serviceName"] = service.get("serviceName") or "All Services In Oracle Services Network"
    return {}


def _cluster(new: NewResource) -> JsonObject:
    versions = region_facts().kubernetes_versions
    newer = versions[versions.index(new.state["kubernetesVersion"]) + 1 :][:ENHANCED_UPGRADES]
    endpoint = new.api_server or "192.0.2.10:6443"
    endpoints = {
        "ipv6endpoint": "",
        "kubernetes": endpoint,
        "privateEndpoint": endpoint,
        "publicEndpoint": endpoint if (new.state.get("endpointConfig") or {}).get("isPublicIpEnabled") else "",
        "vcnHostnameEndpoint": endpoint,
    }
    issuer = f"https://objectstorage.{new.region}.oraclecloud.com/oidc/{new.id[-11:]}"
    return {
        "availableKubernetesUpgrades": list(newer),
        "endpoints": [endpoints],
        "openIdConnectDiscoveryEndpoint": f"{issuer}/.well-known/openid-configuration",
        "type": "BASIC_CLUSTER",
    }


def _cluster_network(new: NewResource) -> JsonObject:
    for index, pool in enumerate(new.state["instancePools"]):
        pool["id"] = new.child_id(f"instancepool{index}")
        pool["state"] = "RUNNING"
        pool["currentSize"] = pool["size"]
        pool["compartmentId"] = pool.get("compartmentId") or new.state["compartmentId"]
    return {"hpcIslandId": new.child_id("hpcisland"), "networkBlockIds": [new.child_id("networkblock")]}


def _instance(new: NewResource) -> JsonObject:
    return {
        "bootVolumeId": new.child_id("bootvolume"),
        "privateIp": f"10.0.{secrets.randbelow(250)}.{secrets.randbelow(250) + 2}",
        "region": region_facts().key(new.region).lower(),
        "faultDomain": region_facts().fault_domains[0],
    }


def _mount_target(new: NewResource) -> JsonObject:
    subnet = new.state_of("subnetId")
    address = str(IPv4Network(subnet["cidrBlock"])[10]) if subnet else "192.0.2.20"
    return {
        "exportSetId": new.child_id("exportset"),
        "ipAddress": address,
        "privateIpIds": [new.child_id("privateip")],
    }


def _lustre(new: NewResource) -> JsonObject:
    subnet = new.state_of("subnetId")
    address = str(IPv4Network(subnet["cidrBlock"])[11]) if subnet else "192.0.2.21"
    return {"lnet": "tcp", "majorVersion": "2.15", "managementServiceAddress": address}


def _capacity_report(new: NewResource) -> JsonObject:
    for row in new.state["shapeAvailabilities"]:
        row["availabilityStatus"], row["availableCount"] = "AVAILABLE", "1000"
    return {}


_OUTPUTS: Final[Mapping[str, Callable[[NewResource], JsonObject]]] = {
    "Vcn": _vcn,
    "Subnet": _subnet,
    "NatGateway": lambda _: {"natIp": f"198.51.100.{secrets.randbelow(254) + 1}"},
    "ServiceGateway": _service_gateway,
    "Cluster": _cluster,
    "Addon": lambda new: {"currentInstalledVersion": new.state.get("version") or "v1.0.0", "version": None},
    "NodePool": lambda new: {"kubernetesVersion": new.state_of("clusterId").get("kubernetesVersion", "")},
    "ClusterNetwork": _cluster_network,
    "Instance": _instance,
    "MountTarget": _mount_target,
    "FileStorageLustreFileSystem": _lustre,
    "ComputeCapacityReport": _capacity_report,
    "DomainsDynamicResourceGroup": lambda new: {
        "ocid": new.id,
        "tenancyOcid": "",
        "domainOcid": new.child_id("domain"),
    },
}
"""Functions that return the outputs that OCI adds to a new resource, by type: ids of dependent resources, addresses,
endpoints.
"""
