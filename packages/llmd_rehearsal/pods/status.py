"""Status of a pod: computed from its containers' records, and written to the API server; warning events about pods."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, cast

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import ContainerStatus, PodCondition
from lightkube.resources.core_v1 import Event, Pod, PodStatus
from lightkube.types import PatchType
from llmd_base.records import document
from llmd_oke.operations.objects import metadata

from llmd_rehearsal.pods.environment import PodFacts
from llmd_rehearsal.watches import ObjectIdentity, identity, is_sidecar, spec_of, timestamp

_log = logging.getLogger(__name__)
_OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
_GATHER_S, _LONGEST_GATHER_S = 0.01, 2.0
_FEW_PODS, _PODS_PER_S = 100, 400.0
_RETRY_S = 0.5
_MISSING = 404
_ENDED = {"Succeeded", "Failed"}
_SOURCE = "rehearsal-node-agent"


class ContainerRole(Enum):
    """Role of a container in its pod: init container, native sidecar, or main container."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


@dataclass(frozen=True)
class Waiting:
    """State of a container that isn't running, with the reason that `kubectl get pods` shows."""

    reason: str
    message: str | None = None


@dataclass(frozen=True)
class RunningContainer:
    """State of a container that has been running since the time `since`."""

    since: datetime


@dataclass(frozen=True)
class Terminated:
    """State of a container that has ended."""

    exit_code: int
    reason: str
    started: datetime
    finished: datetime
    container_id: str
    message: str | None = None


@dataclass
class ContainerRecord:
    """Record of one container's present state and history.

    `started` is true once the startup probe (if any) has succeeded, `ready` while the container may receive traffic,
    and `over` once the container won't run again in this pod.
    """

    name: str
    image: str
    role: ContainerRole
    state: Waiting | RunningContainer | Terminated = Waiting("ContainerCreating")
    last: Terminated | None = None
    restarts: int = 0
    started: bool = False
    ready: bool = False
    over: bool = False
    container_id: str = ""

    @property
    def succeeded(self) -> bool:
        """Tell whether the container won't run again in this pod and its last exit code is 0."""
        return self.over and isinstance(self.state, Terminated) and self.state.exit_code == 0

    @property
    def failed(self) -> bool:
        """Tell whether the container won't run again in this pod and its last exit code isn't 0."""
        return self.over and not self.succeeded


@dataclass(frozen=True)
class Condition:
    """Condition of a pod's status, without its transition time."""

    name: str
    true: bool
    reason: str | None = None
    message: str | None = None


def pod_status(
    pod: Pod, facts: PodFacts | None, records: Sequence[ContainerRecord], start: datetime, now: datetime
) -> dict[str, Any]:
    """Return the whole status of a pod from the records of its containers; `facts` is None until the pod's network is
    attached.

    Conditions set by others are kept, and so are transition times of conditions whose status hasn't changed.
    """
    inits = [record for record in records if record.role is not ContainerRole.MAIN]
    mains = [record for record in records if record.role is ContainerRole.MAIN]
    previous = list(_present_conditions(pod))
    of_name = {condition.type: condition for condition in previous}
    own = [_condition_entry(item, of_name.get(item.name), now) for item in _conditions(pod, facts, records)]
    status: dict[str, Any] = {
        "phase": phase(records),
        "startTime": timestamp(start),
        "conditions": [*own, *(condition.to_dict() for condition in previous if condition.type not in _OWN_CONDITIONS)],
        "containerStatuses": [container_status(record) for record in mains],
        "initContainerStatuses": [container_status(record) for record in inits] or None,
        "observedGeneration": metadata(pod).generation,
    }
    if facts is not None:
        status |= {"hostIP": facts.host_ip, "hostIPs": [{"ip": facts.host_ip}]}
        status |= {"podIP": facts.pod_ip, "podIPs": [{"ip": facts.pod_ip}]}
    return status


def phase(records: Sequence[ContainerRecord]) -> str:
    """Return a pod's phase from the records of its containers. A pod has succeeded or failed only once all its
    containers, sidecars included, have ended.
    """
    if any(record.role is ContainerRole.INIT and record.failed for record in records):
        return "Failed"
    mains = [record for record in records if record.role is ContainerRole.MAIN]
    sidecar_runs = any(
        record.role is ContainerRole.SIDECAR and isinstance(record.state, RunningContainer) for record in records
    )
    if sidecar_runs or not all(record.over for record in mains):
        have_begun = all(not isinstance(record.state, Waiting) or record.last is not None for record in mains)
        return "Running" if have_begun else "Pending"
    return "Succeeded" if all(record.succeeded for record in mains) else "Failed"


def container_status(record: ContainerRecord) -> dict[str, Any]:
    """Return a container's entry of `containerStatuses`."""
    status = document(
        "name image ready started",
        record,
        imageID=f"rehearsal://{record.image}" if record.container_id else "",
        restartCount=record.restarts,
        state=_state(record.state),
        lastState=_state(record.last) if record.last else {},
    )
    if record.container_id:
        status["containerID"] = record.container_id
    return status


def _conditions(pod: Pod, facts: PodFacts | None, records: Sequence[ContainerRecord]) -> list[Condition]:
    containers = _containers_ready(records)
    statuses = {condition.type: condition.status for condition in _present_conditions(pod)}
    gates = [gate.conditionType for gate in spec_of(pod).readinessGates or []]
    gated = containers.true and any(statuses.get(gate) != "True" for gate in gates)
    ready = Condition("", true=False, reason="ReadinessGatesNotReady") if gated else containers
    return [
        Condition("PodReadyToStartContainers", facts is not None),
        _initialised(records),
        Condition("Ready", ready.true, ready.reason, ready.message),
        Condition("ContainersReady", containers.true, containers.reason, containers.message),
    ]


def _initialised(records: Sequence[ContainerRecord]) -> Condition:
    pending = [
        record.name
        for record in records
        if (record.role is ContainerRole.INIT and not record.succeeded)
        or (record.role is ContainerRole.SIDECAR and not record.started)
    ]
    has_succeeded = phase(records) == "Succeeded"
    if not pending or has_succeeded:
        return Condition("Initialized", true=True, reason="PodCompleted" if has_succeeded else None)
    message = f"containers with incomplete status: [{' '.join(pending)}]"
    return Condition("Initialized", true=False, reason="ContainersNotInitialized", message=message)


def _containers_ready(records: Sequence[ContainerRecord]) -> Condition:
    pod_phase = phase(records)
    if pod_phase in {"Succeeded", "Failed"}:
        return Condition("", true=False, reason="PodCompleted" if pod_phase == "Succeeded" else "PodFailed")
    unready = [record.name for record in records if record.role is not ContainerRole.INIT and not record.ready]
    if not unready:
        return Condition("", true=True)
    message = f"containers with unready status: [{' '.join(unready)}]"
    return Condition("", true=False, reason="ContainersNotReady", message=message)


def _condition_entry(condition: Condition, previous: PodCondition | None, now: datetime) -> dict[str, Any]:
    value = "True" if condition.true else "False"
    since = previous.lastTransitionTime if previous and previous.status == value else None
    entry: dict[str, Any] = {
        "type": condition.name,
        "status": value,
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(since or now),
    }
    optional = document("reason message", condition)
    return entry | {key: text for key, text in optional.items() if text is not None}


def _present_conditions(pod: Pod) -> list[PodCondition]:
    return (pod.status.conditions if pod.status else None) or []


def _state(state: Waiting | RunningContainer | Terminated) -> dict[str, Any]:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason} if message is None else {"reason": reason, "message": message}}
        case RunningContainer(since):
            return {"running": {"startedAt": timestamp(since)}}
        case Terminated():
            detail: dict[str, Any] = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": timestamp(state.started),
                "finishedAt": timestamp(state.finished),
                "containerID": state.container_id,
            }
            return {"terminated": detail if state.message is None else {**detail, "message": state.message}}


def initial_records(pod: Pod) -> dict[str, ContainerRecord]:
    """Return a new record for each container, init containers first, with the restarts that the pod's status counts
    already.
    """
    spec = spec_of(pod)
    inits = spec.initContainers or []
    waiting = Waiting("PodInitializing" if inits else "ContainerCreating")
    roles = [(container, ContainerRole.SIDECAR if is_sidecar(container) else ContainerRole.INIT) for container in inits]
    roles += [(container, ContainerRole.MAIN) for container in spec.containers]
    restarts = _restarts_so_far(pod)
    return {
        container.name: ContainerRecord(
            container.name, container.image or "", role, waiting, restarts=restarts.get(container.name, 0)
        )
        for container, role in roles
    }


def _restarts_so_far(pod: Pod) -> dict[str, int]:
    """Return the restarts of a pod's containers by name; a container that ran under an earlier agent counts one restart
    more.
    """
    status = pod.status
    if status is None:
        return {}
    statuses: list[ContainerStatus] = [*(status.initContainerStatuses or []), *(status.containerStatuses or [])]
    return {container.name: container.restartCount + (1 if container.containerID else 0) for container in statuses}


def gather_s(pods: int) -> float:
    """Return the seconds for which changes of a pod's status are gathered before it is written, given the number of
    pods on this machine.

    Every client that watches a namespace's pods, such as each endpoint picker, must process each written status.
    """
    return min(max(_GATHER_S, (pods - _FEW_PODS) / _PODS_PER_S), _LONGEST_GATHER_S)


class StatusWriter:
    """Writer of one pod's status, together with `annotations` in the same request.

    Changes that affect the readiness of a pod that serves, and the pod's end, are written immediately; others are
    gathered.
    """

    def __init__(
        self,
        client: AsyncClient,
        pod: ObjectIdentity,
        compute: Callable[[], dict[str, Any]],
        *,
        annotations: Mapping[str, str] | None = None,
        gather_s: Callable[[], float] = lambda: _GATHER_S,
        serves: bool = True,
    ) -> None:
        self._client, self._gather_s = client, gather_s
        self._pod, self._serves = pod, serves
        self._metadata = {"uid": pod.uid, **({"annotations": dict(annotations)} if annotations else {})}
        self._compute = compute
        self._dirty = asyncio.Event()
        self._sent: dict[str, Any] | None = None

    def changed(self) -> None:
        """Request that the pod's status is written, because it may have changed."""
        self._dirty.set()

    def seen(self, ready: bool) -> None:  # the only condition that others change
        """Process the pod's condition Ready as the API server has it, which another controller sets to False if the
        node is unreachable; if it differs from the written one, the status is written anew.
        """
        if self._sent is not None and ready is not _says_ready(self._sent):
            self._sent = None
        self._dirty.set()

    async def run(self) -> None:
        """Write changes of the pod's status to the API server until cancelled."""
        while True:
            await self._dirty.wait()
            await self._gather()
            if not await self.send():
                self._dirty.set()
                await asyncio.sleep(_RETRY_S)

    async def _gather(self) -> None:
        clock = asyncio.get_running_loop().time
        end_s = clock() + self._gather_s()
        while True:
            await asyncio.sleep(_GATHER_S)
            self._dirty.clear()
            left_s = end_s - clock()
            status = self._compute()
            was_ready = self._sent is not None and _says_ready(self._sent)
            is_urgent = (self._serves and _says_ready(status) is not was_ready) or status["phase"] in _ENDED
            if left_s <= 0 or is_urgent:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._dirty.wait(), left_s)

    async def send(self) -> bool:
        """Write the pod's status unless the API server has it already; return False if the write failed and should be
        retried.
        """
        status = self._compute()
        if self._sent is not None and _without_times(status) == _without_times(self._sent):
            return True
        try:
            await self._client.patch(
                PodStatus, self._pod.name, {"metadata": self._metadata, "status": status},
                namespace=self._pod.namespace, patch_type=PatchType.MERGE,
            )  # fmt: skip
        except ApiError as error:
            if error.status.code == _MISSING:
                return True
            _log.warning("status of %s not written: %s", self._pod.name, error)
            return error.status.code == 409  # conflict: another pod has this name now, so that a retry is pointless
        except httpx2.HTTPError as error:
            _log.warning("status of %s not written: %s", self._pod.name, error)
            return False
        self._sent = status
        return True


async def delete_object(client: AsyncClient, pod: ObjectIdentity) -> None:
    """Delete the pod object immediately, the last step of a kubelet's pod termination; do nothing if it doesn't
    exist.
    """
    try:
        await client.delete(Pod, pod.name, namespace=pod.namespace, grace_period=0)
    except ApiError as error:
        if error.status.code != _MISSING:
            raise


def _says_ready(status: dict[str, Any]) -> bool:
    conditions: list[dict[str, Any]] = status["conditions"]
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _without_times(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status without transition times, which depend on when the status is computed."""
    conditions: list[dict[str, Any]] = status["conditions"]
    timeless = [
        {key: value for key, value in condition.items() if key != "lastTransitionTime"} for condition in conditions
    ]
    return {**status, "conditions": timeless}


class EventRecorder:
    """Recorder of warning events about pods, which are written in the background; failed writes are only logged."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._recorded: set[tuple[str, str, str]] = set()
        self._writing: set[asyncio.Task[None]] = set()

    def warn(self, pod: Pod, reason: str, message: str) -> None:
        """Create a warning event about a pod, unless the same event was created before."""
        key = (identity(pod).uid, reason, message)
        if key in self._recorded:
            return
        self._recorded.add(key)
        _log.info("pod %s/%s: %s: %s", identity(pod).namespace, identity(pod).name, reason, message)
        task = asyncio.create_task(self._write(pod, reason, message))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, pod: Pod, reason: str, message: str) -> None:
        try:
            await self._client.create(_event(pod, reason, message))
        except (ApiError, httpx2.HTTPError) as error:
            _log.debug("event not written: %s", error)

    def forget(self, uid: str) -> None:
        """Forget the events of a pod that was deleted."""
        self._recorded = {key for key in self._recorded if key[0] != uid}


def _event(pod: Pod, reason: str, message: str) -> Event:
    pod_id, now = identity(pod), timestamp(datetime.now(UTC))
    involved_object = {"apiVersion": "v1", "kind": "Pod", **document("namespace name uid", pod_id)}
    body = {
        "metadata": {"generateName": f"{pod_id.name}.", "namespace": pod_id.namespace},
        "involvedObject": involved_object,
        "reason": reason,
        "message": message[:1024],
        "type": "Warning",
        "source": {"component": _SOURCE, "host": spec_of(pod).nodeName or ""},
        "reportingComponent": _SOURCE,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    return cast("Event", Event.from_dict(body))
