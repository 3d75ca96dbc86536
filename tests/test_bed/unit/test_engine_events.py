"""The engine's events: lines for people, steps as a preview lists them, errors in short."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest
from lightkube import Client
from lightkube.models.core_v1 import ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod
from listening import Listener
from llmd_oke.operations.previews import of_document
from llmd_rehearsal import engine_events
from llmd_rehearsal.engine_events import EventReporter, StepRecorder, concise_error, differences, failed_container, step
from pulumi.automation import events

URN = "urn:pulumi:s::p::llmd-oke:index:Unit$kubernetes:apps/v1:Deployment::gpt-prefill"


def state(spec: dict[str, Any]) -> events.StepEventStateMetadata:
    return events.StepEventStateMetadata("t", URN, "id", "", "", protect=True, inputs={"spec": spec})


def metadata(operation: events.OpType, old: dict[str, Any], new: dict[str, Any]) -> events.StepEventMetadata:
    kind = events.DiffKind.UPDATE_REPLACE if operation is events.OpType.REPLACE else events.DiffKind.UPDATE
    changed = {f"spec.{name}": events.PropertyDiff(kind, input_diff=False) for name in old if old[name] != new[name]}
    return events.StepEventMetadata(
        operation, URN, "kubernetes:apps/v1:Deployment", "", old=state(old), new=state(new), detailed_diff=changed
    )


def heard(narrator: EventReporter, *steps: events.StepEventMetadata) -> None:
    for number, item in enumerate(steps):
        narrator.hear(events.EngineEvent(number, 0, resource_pre_event=events.ResourcePreEvent(item)))
        narrator.hear(events.EngineEvent(number, 0, res_outputs_event=events.ResOutputsEvent(item)))


@pytest.fixture
def listener() -> Listener:
    return Listener()


REPLACING = (events.OpType.CREATE_REPLACEMENT, events.OpType.REPLACE, events.OpType.DELETE_REPLACED)
REPLACED = ["created anew Deployment gpt-prefill", "deleted the old Deployment gpt-prefill"]


@pytest.mark.parametrize(
    ("is_preview", "kinds", "lines"),
    [
        (True, [events.OpType.UPDATE], ["would update Deployment gpt-prefill: spec.selector changes from 'a' to 'b'"]),
        (False, [events.OpType.UPDATE], ["updated Deployment gpt-prefill"]),
        (True, REPLACING, ["would replace Deployment gpt-prefill: spec.selector changes from 'a' to 'b'"]),
        (False, REPLACING, REPLACED),
    ],
)
def test_changes_are_a_line_with_values_in_previews_and_without_in_updates(
    listener: Listener, is_preview: bool, kinds: Sequence[events.OpType], lines: list[str]
):
    steps = [metadata(kind, {"selector": "a"}, {"selector": "b"}) for kind in kinds]
    heard(EventReporter(listener, is_preview=is_preview), *steps)
    assert listener.news == lines


def test_long_property_values_are_omitted_from_lines_about_pulumi_events():
    change = metadata(events.OpType.UPDATE, {"program": "a" * 200}, {"program": "b" * 200})
    assert differences(change) == ": spec.program changes"


def test_a_line_about_a_pulumi_event_shows_only_the_first_of_many_changed_properties():
    old, new = ({str(number): value for number in range(9)} for value in (1, 2))
    assert differences(metadata(events.OpType.UPDATE, old, new)).endswith("; 5 more")


REPLACEMENT = metadata(events.OpType.REPLACE, {"selector": "a"}, {"selector": "b"})


def test_a_replacement_in_a_preview_has_the_properties_that_force_it():
    (change,) = of_document({"steps": [step(REPLACEMENT)]}).changes
    assert (change.operation, change.name, change.replaced_by) == ("replace", "gpt-prefill", ("spec.selector",))
    old, new = {"spec": {"selector": "a"}}, {"spec": {"selector": "b"}}
    assert (change.old, change.new, change.protected) == (old, new, True)


def test_pulumis_engine_events_are_recorded_and_forwarded():
    heard: list[events.EngineEvent] = []
    steps = StepRecorder(heard.append)
    steps.hear(events.EngineEvent(0, 0, resource_pre_event=events.ResourcePreEvent(REPLACEMENT)))
    assert len(heard) == len(steps.recorded) == 1


def test_the_summary_event_of_a_pulumi_operation_gives_the_numbers_of_changes():
    steps = StepRecorder(lambda _: None)
    counts = {events.OpType.CREATE: 2, "discard": 1}
    steps.hear(events.EngineEvent(0, 0, summary_event=events.SummaryEvent(False, 1, counts, {})))
    assert steps.changes == {"create": 2, "discard": 1}


JOB = """2 errors occurred:
\t* resource "urn:pulumi:s::p::kubernetes:batch/v1:Job::gate" was successfully created, but the Kubernetes API server \
reported that it failed to fully initialize or become live: Resource 'gate-1' was created but failed to initialize
\t* [Pod kube-system/gate-1-x]: [Error] after 10 s: 0 of 1 nodes have joined
"""


def test_a_pulumi_plug_ins_error_becomes_a_line_without_repeated_text() -> None:
    assert concise_error(JOB).splitlines() == [
        "Resource 'gate-1' was created but failed to initialize",
        "[Pod kube-system/gate-1-x]: [Error] after 10 s: 0 of 1 nodes have joined",
    ]


def test_calls_of_pulumi_functions_are_omitted_from_event_lines() -> None:
    text = "python inline source runtime error: no such shape\nTraceback (most recent call last):\n  File x\nKitError"
    assert concise_error(text) == concise_error(f"an unhandled error occurred: {text}") == "no such shape"


def test_a_failed_pods_traceback_is_shortened_to_the_exception_in_pulumis_error() -> None:
    pod = "[Pod a/b]: [Error] measuring\nTraceback (most recent call last):\n  File x\n    call()\nKeyError: 'x'\n"
    output = concise_error(f"2 errors occurred:\n\t* {pod}\n\t* [BackoffLimitExceeded] Job has failed")
    exception = ["[Pod a/b]: [Error] measuring", "KeyError: 'x'"]
    assert output.splitlines() == [*exception, "[BackoffLimitExceeded] Job has failed"]


def test_a_failed_pods_termination_message_in_json_is_reduced_to_its_message_field() -> None:
    words = '{"message": "gpt failed: TTFT p95 9 (\\"late\\")", "passed": false, "failed": ["TTFT p95"]}'
    assert concise_error(f"[Pod a/b]: [Error] {words}\n[BackoffLimitExceeded] Job has failed").splitlines() == [
        '[Pod a/b]: [Error] gpt failed: TTFT p95 9 ("late")',
        "[BackoffLimitExceeded] Job has failed",
    ]


@pytest.mark.parametrize(
    "text", ["update failed", "Service error: 500-InternalError\nProvider version: 4.20", '[Error] {"message": "cut']
)
def test_error_texts_without_a_whole_termination_message_are_shown_unchanged(text: str) -> None:
    assert concise_error(text) == text


class PodList:
    """Client of a cluster with these pods, whose containers wrote these lines before they ended."""

    def __init__(self, *pods: Pod, log: tuple[str, ...] = ()) -> None:
        self.pods, self.lines = pods, log

    def list(self, *_: object, **__: object) -> tuple[Pod, ...]:
        return self.pods

    def log(self, *_: object, **__: object) -> tuple[str, ...]:
        return self.lines


def pod(exit_code: int | None, *, ready: bool = False) -> Pod:
    last = ContainerState(terminated=ContainerStateTerminated(exitCode=exit_code)) if exit_code is not None else None
    status = ContainerStatus("image", "", "vllm", ready=ready, restartCount=3, lastState=last)
    return Pod(metadata=ObjectMeta(name="decode-0", namespace="llm-d"), status=PodStatus(containerStatuses=[status]))


@pytest.mark.parametrize(
    ("pods", "log", "expected"),
    [
        ([pod(1)], ("Traceback", "ValueError: no KV cache", ""), "1, 3 restarts: ValueError: no KV cache"),
        ([pod(None), pod(1)], (), "1, 3 restarts"),
        ([pod(0)], (), "0, 3 restarts"),
        ([pod(1, ready=True), pod(None)], ("done",), None),
    ],
)
def test_an_ended_container_is_reported_with_its_last_log_line(
    pods: list[Pod], log: tuple[str, ...], expected: str | None
):
    told = failed_container(cast("Client", PodList(*pods, log=log)))
    assert told == (None if expected is None else f"vllm of Pod decode-0 ended with {expected}")


def test_pods_with_problems_are_shown_beside_what_is_waited_for(listener: Listener, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_events, "HEARTBEAT_S", 0.0)
    told = threading.Event()
    listener.detail = lambda text: (listener.details.append(text), told.set())
    EventReporter(listener, trouble=lambda: "vllm of Pod decode-0 ended with 1")
    assert told.wait(10)
    assert listener.details[0].endswith("; vllm of Pod decode-0 ended with 1")


FOUR_THREADS = """
import sys, threading
from lightkube.core.decoders import decode_list, decode_status
from lightkube.resources.core_v1 import Pod
from llmd_rehearsal.engine_events import prepare_decoding

def decode():
    started.wait()
    decode_list(b'{"items": [{"spec": {"containers": [{"name": "vllm"}]}}]}', Pod)
    decode_status(b'{"code": 404}')

prepare_decoding()
sys.setswitchinterval(1e-6)
started = threading.Barrier(4)
threads = [threading.Thread(target=decode) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_four_threads_can_list_pods_at_the_same_time_without_errors() -> None:
    done = subprocess.run([sys.executable, "-c", FOUR_THREADS], capture_output=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, b"")
