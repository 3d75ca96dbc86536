"""Accuracy of a rehearsed deployment: the kit's own questions through the real router, and a planted corruption."""

import json

import pytest
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK, BASELINE = "accuracy", "accuracy-baseline"
TOPOLOGY = "1p-tp2-1d-tp2"
TIME_SCALE = ("--time-scale", "0.1")
NO_SMOKE = {"where": "none"}


@pytest.mark.nightly
def test_a_corrupted_kv_transfer_is_caught_by_floor_and_baseline(project: Project) -> None:
    project.write(BASELINE, models=[model(topology="agg-tp1-2r")], smoke=NO_SMOKE)
    assert project.command("rehearse", "--stack", BASELINE, *TIME_SCALE).status == 0
    sound = project.command("eval", "--stack", BASELINE, "--rehearse", "--json")
    assert sound.status == 0, sound.errors
    assert sound.document[0]["score"] == 1.0
    assert project.command("rehearse", "down", "--stack", BASELINE).status == 0

    fault = {"env": {"LLMD_OKE_REHEARSED_CORRUPT_KV_PERCENT": "30"}}
    project.write(STACK, models=[model(topology=TOPOLOGY, engine=fault)], smoke=NO_SMOKE)
    assert project.command("rehearse", "--stack", STACK, *TIME_SCALE).status == 0
    broken = project.command("eval", "--stack", STACK, "--rehearse", "--against", BASELINE, "--json")
    assert broken.status == 1
    (outcome,) = json.loads(broken.output)
    assert not outcome["judgement"]["passed"]
    assert outcome["judgement"]["difference"] < -0.1
    assert {"floor", "baseline"} <= {word for text in outcome["judgement"]["failures"] for word in text.split()}


def test_an_override_that_changes_answers_is_deployed_only_with_right_ones(project: Project) -> None:
    """On the servers that corrupt what they hand over, then on sound ones."""
    changes = {"override": {"quickReduce": "INT4"}, "smoke": {"requests": 8, "concurrency": 2}}
    fault = {"env": {"LLMD_OKE_REHEARSED_CORRUPT_KV_PERCENT": "30"}}
    project.write(STACK, models=[model(topology=TOPOLOGY, engine=fault)], **changes)
    wrong = project.command("rehearse", "--stack", STACK, "--json", *TIME_SCALE)
    assert wrong.status == 1
    assert "failed its smoke benchmark: accuracy 0." in " ".join(wrong.errors.split())

    project.write(STACK, models=[model(topology=TOPOLOGY)], **changes)
    right = project.command("rehearse", "--stack", STACK, "--json", *TIME_SCALE)
    assert right.status == 0, right.errors
    (accuracy,) = [check for check in right.document["smoke"][0]["checks"] if check["name"] == "accuracy"]
    assert (accuracy["value"], accuracy["limit"], accuracy["passed"]) == (1.0, 0.95, True)
    (passport,) = project.command("passport", "--stack", STACK, "--rehearse", "--json").document
    assert (passport["accuracy"]["score"], passport["accuracy"]["questions"]) == (1.0, 80)
    assert project.command("rehearse", "down", "--stack", STACK).status == 0
