"""A pod's status, computed from its containers' records: phase, conditions and container statuses."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lightkube.models.core_v1 import PodCondition
from lightkube.resources.core_v1 import Pod

from llmd_oke.rehearsal.nodes.objects import timestamp
from llmd_oke.rehearsal.pods.facts import PodFacts, spec_of
from llmd_oke.rehearsal.pods.records import ContainerRecord, Role, Running, Terminated, Waiting
from llmd_oke.rehearsal.watches import metadata

_OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


@dataclass(frozen=True)
class Condition:
    """One of the pod's conditions before it has a transition time."""

    name: str
    true: bool
    reason: str | None = None
    message: str | None = None


def pod_status(
    pod: Pod, facts: PodFacts | None, records: Sequence[ContainerRecord], start: datetime, now: datetime
) -> dict[str, Any]:
    """Give the whole status; `facts` is None until the pod has its network.

    Conditions of other owners are kept, and transition times where a condition's status hasn't changed.
    """
    inits = [record for record in records if record.role is not Role.MAIN]
    mains = [record for record in records if record.role is Role.MAIN]
    status: dict[str, Any] = {
        "phase": phase(records),
        "startTime": timestamp(start),
        "conditions": _merged(pod, _conditions(pod, facts, records), now),
        "containerStatuses": [container_status(record) for record in mains],
        "initContainerStatuses": [container_status(record) for record in inits] or None,
        "observedGeneration": metadata(pod).generation,
    }
    if facts is not None:
        status |= {"hostIP": facts.host_ip, "hostIPs": [{"ip": facts.host_ip}]}
        status |= {"podIP": facts.pod_ip, "podIPs": [{"ip": facts.pod_ip}]}
    return status


def phase(records: Iterable[ContainerRecord]) -> str:
    """Give the pod's phase: it has ended only when all of its containers, sidecars too, have."""
    known = list(records)
    mains = [record for record in known if record.role is Role.MAIN]
    if any(record.role is Role.INIT and record.failed for record in known):
        return "Failed"
    if any(isinstance(record.state, Running) for record in known if record.role is Role.SIDECAR) or not all(
        record.over for record in mains
    ):
        begun = all(_begun(record) for record in mains)
        return "Running" if begun else "Pending"
    return "Succeeded" if all(record.succeeded for record in mains) else "Failed"


def container_status(record: ContainerRecord) -> dict[str, Any]:
    """Give one entry of `containerStatuses`."""
    status: dict[str, Any] = {
        "name": record.name,
        "image": record.image,
        "imageID": f"rehearsal://{record.image}" if record.container_id else "",
        "ready": record.ready,
        "started": record.started,
        "restartCount": record.restarts,
        "state": _state(record.state),
        "lastState": _state(record.last) if record.last else {},
    }
    if record.container_id:
        status["containerID"] = record.container_id
    return status


def _begun(record: ContainerRecord) -> bool:
    return not isinstance(record.state, Waiting) or record.last is not None


def _conditions(pod: Pod, facts: PodFacts | None, records: Sequence[ContainerRecord]) -> list[Condition]:
    initialised = _initialised(records)
    containers = _containers_ready(records)
    gated = containers.true and not _gates_open(pod)
    ready = Condition("", true=False, reason="ReadinessGatesNotReady") if gated else containers
    return [
        Condition("PodReadyToStartContainers", facts is not None),
        initialised,
        Condition("Ready", ready.true, ready.reason, ready.message),
        Condition("ContainersReady", containers.true, containers.reason, containers.message),
    ]


def _initialised(records: Sequence[ContainerRecord]) -> Condition:
    pending = [
        record.name
        for record in records
        if (record.role is Role.INIT and not record.succeeded) or (record.role is Role.SIDECAR and not record.started)
    ]
    ended = phase(records) == "Succeeded"
    if not pending or ended:
        return Condition("Initialized", true=True, reason="PodCompleted" if ended else None)
    message = f"containers with incomplete status: [{' '.join(pending)}]"
    return Condition("Initialized", true=False, reason="ContainersNotInitialized", message=message)


def _containers_ready(records: Sequence[ContainerRecord]) -> Condition:
    ended = phase(records)
    if ended in {"Succeeded", "Failed"}:
        return Condition("", true=False, reason="PodCompleted" if ended == "Succeeded" else "PodFailed")
    unready = [record.name for record in records if record.role is not Role.INIT and not record.ready]
    if not unready:
        return Condition("", true=True)
    message = f"containers with unready status: [{' '.join(unready)}]"
    return Condition("", true=False, reason="ContainersNotReady", message=message)


def _gates_open(pod: Pod) -> bool:
    known = {condition.type: condition.status for condition in _known_conditions(pod)}
    return all(known.get(gate.conditionType) == "True" for gate in spec_of(pod).readinessGates or [])


def _merged(pod: Pod, conditions: Iterable[Condition], now: datetime) -> list[dict[str, Any]]:
    known = {condition.type: condition for condition in _known_conditions(pod)}
    foreign: list[dict[str, Any]] = [
        condition.to_dict() for name, condition in known.items() if name not in _OWN_CONDITIONS
    ]
    return [*(_written(each, known.get(each.name), now) for each in conditions), *foreign]


def _written(condition: Condition, known: PodCondition | None, now: datetime) -> dict[str, Any]:
    value = "True" if condition.true else "False"
    since = known.lastTransitionTime if known and known.status == value else None
    entry: dict[str, Any] = {
        "type": condition.name,
        "status": value,
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(since or now),
    }
    optional = {"reason": condition.reason, "message": condition.message}
    return entry | {key: text for key, text in optional.items() if text is not None}


def _known_conditions(pod: Pod) -> list[PodCondition]:
    return (pod.status.conditions if pod.status else None) or []


def _state(state: Waiting | Running | Terminated) -> dict[str, Any]:
    match state:
        case Waiting(reason, message):
            detail = {"reason": reason} if message is None else {"reason": reason, "message": message}
            return {"waiting": detail}
        case Running(since):
            return {"running": {"startedAt": timestamp(since)}}
        case Terminated():
            return {"terminated": _terminated(state)}


def _terminated(state: Terminated) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "exitCode": state.exit_code,
        "reason": state.reason,
        "startedAt": timestamp(state.started),
        "finishedAt": timestamp(state.finished),
        "containerID": state.container_id,
    }
    return entry if state.message is None else {**entry, "message": state.message}
