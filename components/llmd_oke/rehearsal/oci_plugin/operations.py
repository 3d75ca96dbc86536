"""Create, Update, Delete and Read, as the real plug-in does them with OCI behind it."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from llmd_oke.rehearsal.oci_plugin.add_on_control import AddOnControl, NoAddOns, configurations_of, need_dependencies
from llmd_oke.rehearsal.oci_plugin.answers import Birth, answered_to_read, first_state, next_state, well
from llmd_oke.rehearsal.oci_plugin.clocks import Clock
from llmd_oke.rehearsal.oci_plugin.cluster_store import ClusterStore, NoStore
from llmd_oke.rehearsal.oci_plugin.differences import META
from llmd_oke.rehearsal.oci_plugin.errors import (
    Call,
    NeverJoined,
    ServiceError,
    UnansweredError,
    WaitEnded,
    WorkRequestFailed,
    not_found,
    out_of_host_capacity,
)
from llmd_oke.rehearsal.oci_plugin.faults import Fault, FaultRule, Faults
from llmd_oke.rehearsal.oci_plugin.fleets import Fleets
from llmd_oke.rehearsal.oci_plugin.forecasts import forecast, meta
from llmd_oke.rehearsal.oci_plugin.inputs import without_defaults
from llmd_oke.rehearsal.oci_plugin.records import Record, Records, new_id
from llmd_oke.rehearsal.oci_plugin.region import lifecycles, region_facts
from llmd_oke.rehearsal.oci_plugin.rules.deleting import need_unused
from llmd_oke.rehearsal.oci_plugin.rules.judging import judge
from llmd_oke.rehearsal.oci_plugin.rules.scenes import Scene
from llmd_oke.rehearsal.oci_plugin.schemas import Resource, resource_of
from llmd_oke.rehearsal.plugin_protocol.errors import InitFailed
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject

RETRY_S: Final = 600.0
"""terraform-provider-oci tries requests again for so long that were one too many (`retry_duration_seconds`)."""
RETRY_PAUSE_S: Final = 10.0
NETWORK_RETRY_S: Final = 120.0
"""As long it sends requests again that got no answer (terraform-provider-oci, internal/tfresource/retry.go)."""
SLOWER: Final = 5.0
"""So many times as long as usual takes what is slow."""
_LAUNCHED: Final = frozenset({"Instance"})
_TAKEN_BACK: Final = frozenset({"Cluster", "NodePool", "Addon"})
"""What the plug-in deletes again where OCI did not get it made (terraform-provider-oci, `Create` of these resources).
The engine knows its id by then, so that updates fail until a refresh finds it gone.
"""
_WITH_NODES: Final = frozenset({"NodePool", "ClusterNetwork", "Instance"})


@dataclass(frozen=True)
class Order:
    """What the engine asks for. `timeout_s` 0 stands for the resource's own limit; `cancelled` ends its waits."""

    resource: Resource
    name: str
    region: str
    inputs: JsonObject
    preview: bool = False
    timeout_s: float = 0.0
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def limit_s(self) -> float:
        """How long it may take, in OCI's time."""
        return self.timeout_s or self.resource.timeout_s

    @property
    def given(self) -> JsonObject:
        """The inputs alone."""
        given: JsonObject = without_defaults(self.inputs)
        return given


@dataclass(frozen=True)
class Operations:
    """What the plug-in does with resources. For use by many threads at once.

    `api_server` tells the rehearsal's API server as host:port, where there is one.
    """

    records: Records
    fleets: Fleets
    faults: Faults
    clock: Clock
    api_server: Callable[[], str] = str
    add_ons: AddOnControl = field(default_factory=NoAddOns)
    store: ClusterStore = field(default_factory=NoStore)
    _admission: threading.Lock = field(default_factory=threading.Lock)

    def create(self, order: Order) -> JsonObject:
        """Makes a resource and waits until it is well; the state, in which `id` is its id.

        Raises:
            Refusal: OCI refused; nothing was made.
            InitFailed: OCI accepted and didn't get it done.
        """
        if order.preview:
            return forecast(order.resource, order.inputs)
        call = Call(order.resource, "create", order.region)
        if order.resource.name == "Cluster":
            self.store.begin()
        try:
            fault = self._strike(order, "create")
            with self._admission:
                record = self._admit(order)
            if fault is not None and fault.fault is Fault.ANSWER_LOST and not self._is_answered_later(order):
                self.records.put(_in_state(self._with_nodes(record, order, None), well(order.resource)))
                raise UnansweredError
        except ServiceError as error:
            raise call.refusal(error) from None
        except UnansweredError:
            raise call.unanswered() from None
        return self._settle(record, order, call, fault)

    def _is_answered_later(self, order: Order) -> bool:
        """Whether one of the requests is answered that the plug-in sends once more, as many as it does."""
        for _ in range(round(NETWORK_RETRY_S / RETRY_PAUSE_S)):
            self.clock.wait(RETRY_PAUSE_S, order.cancelled)
            again = self._strike(order, "create")
            if again is None or again.fault is not Fault.ANSWER_LOST:
                return True
        return False

    def _admit(self, order: Order) -> Record:
        judge(Scene(order.resource, order.given, None, self.records, order.region))
        key = region_facts().key(order.region)
        id_ = _own_id(order.resource, order.given) or new_id(order.resource, key)
        birth = Birth(order.resource, id_, {}, self.records, order.region, self.api_server())
        record = Record(id_, order.resource.token, first_state(birth, order.given), order.given)
        self.records.put(_in_state(record, "CREATING"))
        return record

    def update(self, id_: str, state: JsonObject, order: Order) -> JsonObject:
        """Changes a resource and waits until it is well; also one that was left unwell and is unchanged.

        Raises:
            Refusal: OCI refused; nothing was changed.
            InitFailed: OCI accepted and didn't get it done.
        """
        if order.preview:
            return forecast(order.resource, order.inputs, state)
        call = Call(order.resource, "update", order.region)
        try:
            before = self.records.get(id_)
            if before is None:
                raise not_found(id_)
            fault = self._strike(order, "update")
            with self._admission:
                judge(Scene(order.resource, order.given, before, self.records, order.region))
                changed = next_state(order.resource, before.state, order.given)
                after = replace(before, state=changed, inputs=order.given)
                self.records.put(_in_state(after, "UPDATING"))
            after = self.fleets.cycle(before, after)
        except ServiceError as error:
            raise call.refusal(error) from None
        except UnansweredError:
            raise call.unanswered() from None
        return self._settle(after, order, call, fault, state)

    def _settle(
        self, record: Record, order: Order, call: Call, fault: FaultRule | None, before: JsonObject | None = None
    ) -> JsonObject:
        """Does the work that follows a request, and records how it ended. `before` is the state before an update."""
        try:
            need_dependencies(record, self.records)
            kind = fault.fault if fault else None
            longer = SLOWER if kind is Fault.SLOW else 1.0
            self.clock.work(order.resource, call.operation, order.limit_s, order.cancelled, longer)
            if fault is not None and kind is Fault.LATE_FAILURE:
                raise WorkRequestFailed(fault.message)
            done = _in_state(self._with_nodes(record, order, fault), well(order.resource))
            if kind is Fault.TIMEOUT:
                self.records.put(done)
                told = _recorded(_in_state(record, "CREATING")) if before is None else before
                raise InitFailed(
                    record.id, told, [call.failed_work(self.clock.give_up(order.limit_s, order.cancelled))]
                )
        except WorkRequestFailed as error:
            left = self._left(record, call, error)
            told = _recorded(left) if before is None else before
            raise InitFailed(record.id, told, [call.failed_work(str(error))]) from None
        self.records.put(done)
        if record.resource.name == "Addon":
            self.add_ons.install(done.state["addonName"], configurations_of(done.state))
        return _recorded(done)

    def _left(self, record: Record, call: Call, error: WorkRequestFailed) -> Record:
        """What became of a resource whose work failed, as the plug-in saw it last."""
        now = self.records.get(record.id) or record
        if call.operation == "create" and record.resource.name in _TAKEN_BACK and not isinstance(error, WaitEnded):
            with suppress(WorkRequestFailed):
                self._remove(now)
                return _in_state(record, "CREATING")
        failed = _in_state(now, "FAILED")
        self.records.put(failed)
        return failed

    def _with_nodes(self, record: Record, order: Order, fault: FaultRule | None) -> Record:
        if record.resource.name not in _WITH_NODES:
            return record
        try:
            return self.fleets.converge(record, order.region, fault)
        except NeverJoined:
            if record.resource.name != "NodePool":  # nobody waits for machines that join on their own account
                return self.records.get(record.id) or record
            self.clock.wait(lifecycles()["register_timeout_s"], order.cancelled)
            raise

    def delete(self, id_: str, order: Order) -> None:
        """Deletes a resource and waits until it is gone; one that is gone already is no error.

        Raises:
            Refusal: OCI refused, because something needs the resource still.
            InitFailed: OCI accepted and didn't get it done.
        """
        record = self.records.get(id_)
        if record is None:
            return
        call = Call(order.resource, "delete", order.region)
        try:
            fault = self._strike(order, "delete")
            with self._admission:
                need_unused(record, self.records)
                self.records.put(_in_state(record, "DELETING"))
            self.clock.work(order.resource, "delete", order.limit_s, order.cancelled)
            if fault is not None and fault.fault is Fault.LATE_FAILURE:
                raise WorkRequestFailed(fault.message)
            self._remove(record)
        except ServiceError as error:
            raise call.refusal(error) from None
        except UnansweredError:
            raise call.unanswered() from None
        except WorkRequestFailed as error:
            failed = _in_state(record, "FAILED")
            self.records.put(failed)
            raise InitFailed(id_, _recorded(failed), [call.failed_work(str(error))]) from None

    def _remove(self, record: Record) -> None:
        """Takes a resource away, and what can't be without it."""
        if record.resource.name in {"Cluster", "NetworkSecurityGroup"}:
            for other in self.records.naming(record.id):
                if other.resource.name in {"NodePool", "Addon", "NetworkSecurityGroupSecurityRule"}:
                    self.fleets.end(other)
                    if _owner(other) == record.id:
                        self.records.remove(other.id)
        if record.resource.name == "Vcn" and (default := self.records.get(record.state["defaultSecurityListId"])):
            self.records.remove(default.id)
        self.fleets.end(record)
        if record.resource.name == "Addon" and record.state.get("removeAddonResourcesOnDelete"):
            self.add_ons.remove(record.state["addonName"])
        if record.resource.name == "Cluster":
            self.add_ons.forget()
            self.store.empty()
        self.records.remove(record.id)

    def read(self, id_: str, inputs: JsonObject) -> tuple[JsonObject, JsonObject] | None:
        """State and inputs of a resource as it is now; None where it is gone."""
        record = self.records.get(id_)
        if record is None:
            return None
        told = replace(record, state=answered_to_read(record.resource, record.state))
        return _recorded(told), inputs or record.inputs

    def _strike(self, order: Order, operation: str) -> FaultRule | None:
        """The fault that the request meets on its way in; one too many requests are tried again."""
        names = [order.name, str(order.given.get("displayName") or order.given.get("name") or "")]
        waited_s = 0.0
        while True:
            fault = self.faults.strike(order.resource.name, [name for name in names if name], operation)
            if fault is None:
                return None
            match fault.fault:
                case Fault.TOO_MANY_REQUESTS:
                    if waited_s >= RETRY_S:
                        raise ServiceError(429, "TooManyRequests", "Too many requests for the user")
                    self.clock.wait(RETRY_PAUSE_S, order.cancelled)
                    waited_s += RETRY_PAUSE_S
                case Fault.INTERNAL_ERROR:
                    raise ServiceError(500, "InternalError", "Internal server error")
                case Fault.ANSWER_LOST if operation != "create":
                    raise UnansweredError
                case Fault.OUT_OF_HOST_CAPACITY if order.resource.name in _LAUNCHED:
                    raise out_of_host_capacity()
                case _:
                    return fault


def _own_id(resource: Resource, given: JsonObject) -> str:
    """The id of what has no OCID of its own."""
    match resource.name:
        case "Addon":
            return f"clusters/{given['clusterId']}/addons/{given['addonName']}"
        case "DefaultSecurityList":
            return given["manageDefaultResourceId"]
        case "NetworkSecurityGroupSecurityRule":
            return new_id(resource, "")[-6:].upper()
        case _:
            return ""


def _owner(record: Record) -> str:
    return record.state.get("clusterId") or record.state.get("networkSecurityGroupId") or ""


def _in_state(record: Record, state: str) -> Record:
    """The record in another state of its life, where its type has one."""
    if "state" not in {**record.resource.outputs, **record.resource.inputs}:
        return record
    return replace(record, state={**record.state, "state": state})


def _recorded(record: Record) -> JsonObject:
    """What the engine records."""
    return {**record.state, META: meta(resource_of(record.token))}
