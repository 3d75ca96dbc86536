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
def test_an_evaluation_with_corrupted_kv_transfers_fails_its_floor_and_its_baseline(project: Project) -> None:
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
