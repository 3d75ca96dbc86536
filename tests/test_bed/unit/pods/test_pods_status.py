"""A pod's status from its containers' records."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from lightkube.resources.core_v1 import Pod
from llmd_rehearsal.pods.environment import PodFacts
from llmd_rehearsal.pods.status import (
    ContainerRecord,
    ContainerRole,
    RunningContainer,
    Terminated,
    Waiting,
    initial_records,
    phase,
    pod_status,
)
from pods_for_tests import FACTS, make_pod

START = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
NOW = datetime(2026, 11, 21, 6, 1, tzinfo=UTC)


def running(name: str, role: ContainerRole = ContainerRole.MAIN, *, ready: bool = True) -> ContainerRecord:
    ran = {"started": True, "ready": ready, "container_id": "process://1"}
    return ContainerRecord(name, "x", role, RunningContainer(START), **ran)


def ended(name: str, code: int, role: ContainerRole = ContainerRole.MAIN, *, over: bool = True) -> ContainerRecord:
    state = Terminated(code, "Completed" if code == 0 else "Error", START, NOW, "process://1")
    return ContainerRecord(name, "x", role, state, over=over, container_id="process://1")


def waiting(name: str, role: ContainerRole = ContainerRole.MAIN, reason: str = "PodInitializing") -> ContainerRecord:
    return ContainerRecord(name, "x", role, Waiting(reason))


def status(*records: ContainerRecord, pod: Pod | None = None, facts: PodFacts | None = FACTS) -> dict[str, Any]:
    return pod_status(pod or make_pod(), facts, records, START, NOW)


def condition(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in status["conditions"] if item["type"] == name)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([waiting("m")], "Pending"),
        ([running("i", ContainerRole.INIT), waiting("m")], "Pending"),
        ([running("m")], "Running"),
        ([running("m"), waiting("n")], "Pending"),
        ([ended("m", 1, over=False)], "Running"),
        ([ended("m", 0)], "Succeeded"),
        ([ended("m", 0), ended("n", 3)], "Failed"),
        ([ended("i", 1, ContainerRole.INIT), waiting("m")], "Failed"),
        ([ended("i", 1, ContainerRole.INIT, over=False), waiting("m")], "Pending"),
        ([running("s", ContainerRole.SIDECAR), ended("m", 0)], "Running"),
        ([ended("s", 143, ContainerRole.SIDECAR), ended("m", 0)], "Succeeded"),
    ],
)
def test_a_pods_phase_follows_from_its_containers_states(records: list[ContainerRecord], expected: str) -> None:
    assert phase(records) == expected


def test_a_pod_is_ready_when_all_of_its_containers_and_sidecars_are() -> None:
    assert condition(status(running("s", ContainerRole.SIDECAR), running("m")), "Ready")["status"] == "True"
    result = status(running("s", ContainerRole.SIDECAR, ready=False), running("m"))
    assert condition(result, "Ready")["status"] == "False"
    assert condition(result, "Ready")["message"] == "containers with unready status: [s]"


def test_a_pod_is_initialized_when_init_containers_have_ended_and_sidecars_started() -> None:
    result = status(ended("i", 0, ContainerRole.INIT), waiting("s", ContainerRole.SIDECAR), waiting("m"))
    assert condition(result, "Initialized")["message"] == "containers with incomplete status: [s]"
    result = status(ended("i", 0, ContainerRole.INIT), running("s", ContainerRole.SIDECAR), waiting("m"))
    assert condition(result, "Initialized")["status"] == "True"


def test_an_ended_pod_is_not_ready() -> None:
    assert condition(status(ended("m", 0)), "Ready")["reason"] == "PodCompleted"


def test_a_pod_has_addresses_once_its_network_exists() -> None:
    assert "podIP" not in status(waiting("m"), facts=None)
    assert condition(status(waiting("m"), facts=None), "PodReadyToStartContainers")["status"] == "False"
    result = status(waiting("m"))
    assert (result["podIP"], result["hostIP"]) == ("10.244.3.7", "10.244.0.12")
    assert result["podIPs"] == [{"ip": "10.244.3.7"}]


def with_status(pod: Pod, **status: Any) -> Pod:
    return cast("Pod", Pod.from_dict(pod.to_dict() | {"status": status}))


def test_a_pods_status_keeps_conditions_of_other_writers_and_transition_times() -> None:
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T05:59:00Z"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T06:00:30Z"},
        {"type": "ContainersReady", "status": "False", "lastTransitionTime": "2026-11-21T06:00:10Z"},
    ]
    result = status(running("m"), pod=with_status(make_pod(), conditions=conditions))
    assert condition(result, "PodScheduled")["status"] == "True"
    assert condition(result, "Ready")["lastTransitionTime"] == "2026-11-21T06:00:30Z"
    assert condition(result, "ContainersReady")["lastTransitionTime"] == "2026-11-21T06:01:00Z"


def test_a_false_readiness_gate_prevents_ready_but_not_containersready() -> None:
    gated = make_pod(readinessGates=[{"conditionType": "example.com/gate"}])
    result = status(running("m"), pod=gated)
    assert (condition(result, "Ready")["status"], condition(result, "ContainersReady")["status"]) == ("False", "True")
    opened = with_status(gated, conditions=[{"type": "example.com/gate", "status": "True"}])
    assert condition(status(running("m"), pod=opened), "Ready")["status"] == "True"


def test_a_container_in_back_off_reports_its_last_termination() -> None:
    record = waiting("m", reason="CrashLoopBackOff")
    record.last = Terminated(137, "Error", START, NOW, "process://1")
    record.restarts = 2
    result = status(record)["containerStatuses"][0]
    assert result["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
    assert result["lastState"]["terminated"]["exitCode"] == 137
    assert (result["restartCount"], status(record)["phase"]) == (2, "Running")


def test_container_records_are_in_order_init_containers_sidecars_main_containers() -> None:
    inits = [{"name": "i", "image": "x"}, {"name": "s", "image": "x", "restartPolicy": "Always"}]
    records = initial_records(make_pod(initContainers=inits))
    roles = [(name, record.role) for name, record in records.items()]
    assert roles == [("i", ContainerRole.INIT), ("s", ContainerRole.SIDECAR), ("vllm", ContainerRole.MAIN)]
    assert records["vllm"].state == Waiting("PodInitializing")


def test_containers_that_ran_under_an_earlier_node_agent_count_as_restarted() -> None:
    ran = {"name": "vllm", "image": "x", "imageID": "", "ready": True, "restartCount": 1, "containerID": "process://0"}
    assert initial_records(with_status(make_pod(), containerStatuses=[ran]))["vllm"].restarts == 2
