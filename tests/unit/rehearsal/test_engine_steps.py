"""The engine's events in the words of `pulumi preview --json`."""

from llmd_oke.operations.previews import of_document
from llmd_oke.rehearsal.engine_steps import Steps, step
from pulumi.automation import events

URN = "urn:pulumi:s::p::oci:ContainerEngine/nodePool:NodePool::pool"


def state(**inputs: str) -> events.StepEventStateMetadata:
    return events.StepEventStateMetadata("t", URN, "id", "", "", protect=True, inputs=inputs)


METADATA = events.StepEventMetadata(
    events.OpType.REPLACE,
    URN,
    "t",
    "",
    old=state(nodeShape="a"),
    new=state(nodeShape="b"),
    detailed_diff={"nodeShape": events.PropertyDiff(events.DiffKind.UPDATE_REPLACE, input_diff=True)},
)


def test_a_step_reads_like_one_of_the_command_line():
    (change,) = of_document({"steps": [step(METADATA)]}).changes
    assert (change.operation, change.name, change.replaced_by) == ("replace", "pool", ("nodeShape",))
    assert (change.old, change.new, change.protected) == ({"nodeShape": "a"}, {"nodeShape": "b"}, True)


def test_events_are_handed_on():
    heard: list[events.EngineEvent] = []
    steps = Steps(heard.append)
    steps.hear(events.EngineEvent(0, 0, resource_pre_event=events.ResourcePreEvent(METADATA)))
    assert len(heard) == len(steps.recorded) == 1
