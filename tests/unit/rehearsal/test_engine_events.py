"""What the engine's events become for people."""

from typing import Any

import pytest
from listening import Listener
from llmd_oke.rehearsal.engine_events import Narrator, differences
from pulumi.automation import events

URN = "urn:pulumi:s::p::llmd-oke:index:Unit$kubernetes:apps/v1:Deployment::gpt-prefill"


def state(spec: dict[str, Any]) -> events.StepEventStateMetadata:
    return events.StepEventStateMetadata("t", URN, "id", "", "", inputs={"spec": spec})


def metadata(operation: events.OpType, old: dict[str, Any], new: dict[str, Any]) -> events.StepEventMetadata:
    kind = events.DiffKind.UPDATE_REPLACE if operation is events.OpType.REPLACE else events.DiffKind.UPDATE
    changed = {f"spec.{name}": events.PropertyDiff(kind, input_diff=False) for name in old if old[name] != new[name]}
    return events.StepEventMetadata(
        operation, URN, "kubernetes:apps/v1:Deployment", "", old=state(old), new=state(new), detailed_diff=changed
    )


def heard(narrator: Narrator, *steps: events.StepEventMetadata) -> None:
    for number, each in enumerate(steps):
        narrator.hear(events.EngineEvent(number, 0, resource_pre_event=events.ResourcePreEvent(each)))
        narrator.hear(events.EngineEvent(number, 0, res_outputs_event=events.ResOutputsEvent(each)))


@pytest.fixture
def listener() -> Listener:
    return Listener()


def test_a_preview_says_what_would_change_from_what_to_what(listener: Listener):
    heard(Narrator(listener, is_preview=True), metadata(events.OpType.UPDATE, {"replicas": 8}, {"replicas": 6}))
    assert listener.news == ["would update Deployment gpt-prefill: spec.replicas changes from 8 to 6"]


def test_an_update_leaves_the_values_to_its_preview(listener: Listener):
    heard(Narrator(listener), metadata(events.OpType.UPDATE, {"replicas": 8}, {"replicas": 6}))
    assert listener.news == ["updated Deployment gpt-prefill"]


@pytest.mark.parametrize(
    ("is_preview", "told"),
    [
        (True, ["would replace Deployment gpt-prefill: spec.selector changes from 'a' to 'b'"]),
        (False, ["created anew Deployment gpt-prefill", "deleted the old Deployment gpt-prefill"]),
    ],
)
def test_a_replacement_is_one_line_of_a_preview_and_two_of_an_update(
    listener: Listener, is_preview: bool, told: list[str]
):
    kinds = (events.OpType.CREATE_REPLACEMENT, events.OpType.REPLACE, events.OpType.DELETE_REPLACED)
    steps = [metadata(kind, {"selector": "a"}, {"selector": "b"}) for kind in kinds]
    heard(Narrator(listener, is_preview=is_preview), *steps)
    assert listener.news == told


def test_long_values_are_left_out():
    change = metadata(events.OpType.UPDATE, {"program": "a" * 200}, {"program": "b" * 200})
    assert differences(change) == ": spec.program changes"


def test_of_many_differences_the_first_are_told():
    old, new = ({str(number): value for number in range(9)} for value in (1, 2))
    assert differences(metadata(events.OpType.UPDATE, old, new)).endswith("; 5 more")
