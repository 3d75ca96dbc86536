"""The smoke benchmark as a part of the deployment: a report that fails an update, runs again when it should, and asks
whether answers are still right where an override may change them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from user_project import TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "judged"
OVERRIDE = {"quickReduce": "INT4"}
FAULTS = {"LLMD_OKE_REHEARSED_FAILED_PREFILL_PERCENT": "50", "LLMD_OKE_REHEARSED_CORRUPT_KV_PERCENT": "60"}
"""Half of all prefills fail, and of what prefill servers hand over most is corrupted."""


@dataclass(frozen=True)
class Life:
    """A threshold that nothing meets, then none, then servers with faults."""

    missed: Ended
    met: Ended
    faulty: Ended
    faulty_summary: dict[str, Any]


@pytest.fixture(scope="module")
def life(project: Project) -> Life:
    thresholds = {"thresholds": {"maxTtftP95Ms": 0.001}}
    project.write(STACK, override=OVERRIDE, smoke={"requests": 8, "concurrency": 2, **thresholds})
    missed = project.rehearse(STACK)
    project.write(STACK, override=OVERRIDE)
    met = project.rehearse(STACK)
    faulty = model(engine={"env": FAULTS})
    project.write(STACK, override=OVERRIDE, models=[faulty], smoke={"requests": 16, "concurrency": 2})
    ended = project.rehearse(STACK)
    summary = json.loads((project.folder / "reports" / STACK / "latest" / "summary.json").read_text())
    return Life(missed, met, ended, summary)


def test_a_missed_threshold_fails_the_update_and_is_named(life: Life) -> None:
    assert life.missed.status == 1
    assert "failed its smoke benchmark: TTFT p95" in " ".join(life.missed.errors.split())
    assert '{"message"' not in life.missed.errors
    assert "Traceback" not in life.missed.errors


def test_tables_and_report_of_a_failed_job_are_there_all_the_same(life: Life, project: Project) -> None:
    assert "FAIL │ TTFT p95" in life.missed.errors
    assert list((project.folder / "reports" / STACK).glob("*/summary.json"))


def test_what_was_deployed_stays_and_only_the_benchmark_runs_again(life: Life) -> None:
    assert life.met.status == 0, life.met.errors
    (smoke,) = life.met.document["smoke"]
    assert smoke["passed"]
    changes = life.met.document["update"]["changes"]
    assert changes.get("create", 0) == 0
    assert changes["replace"] <= 3  # program, facts and Job


def test_the_jobs_report_says_what_was_simulated_and_what_ran(life: Life) -> None:
    (smoke,) = life.met.document["smoke"]
    assert smoke["provenance"]["numbers"] == "calibrated"
    assert "vLLM" in smoke["provenance"]["simulated"]
    assert smoke["provenance"]["time_scale"] == float(TIME_SCALE)


def test_failed_prefills_are_counted_by_the_pickers_choices_and_finished_prefills(life: Life) -> None:
    """The routing sidecar counts nothing. Half of them fail: 500 of the prefill server, after which decode does it all
    (or which is the client's, with a later sidecar)."""
    assert life.faulty.status == 1
    proof = life.faulty_summary["remote_prefill"]
    assert abs(proof["failed_prefills"] - 8) <= 1  # of sixteen, in turn at each of two servers
    chosen, finished = (proof["counters"][name]["change"] for name in ("router remote decisions", "prefill requests"))
    assert chosen - finished == proof["failed_prefills"]
    assert "remote prefill" in [check["name"] for check in life.faulty_summary["checks"] if not check["passed"]]


def test_an_override_that_changes_answers_fails_the_update(life: Life) -> None:
    (accuracy,) = [check for check in life.faulty_summary["checks"] if check["name"] == "accuracy"]
    assert not accuracy["passed"]
    assert "accuracy 0." in " ".join(life.faulty.errors.split())


def test_an_override_with_right_answers_is_deployed_and_its_passport_says_so(life: Life, project: Project) -> None:
    (accuracy,) = [check for check in life.met.document["smoke"][0]["checks"] if check["name"] == "accuracy"]
    assert (accuracy["value"], accuracy["limit"], accuracy["passed"]) == (1.0, 0.95, True)
    passports = map(Path.read_text, (project.folder / "reports" / STACK).glob("*/passport.json"))
    accuracies = [json.loads(passport)["accuracy"] for passport in passports]
    assert (1.0, 80) in [(accuracy["score"], accuracy["questions"]) for accuracy in accuracies]
