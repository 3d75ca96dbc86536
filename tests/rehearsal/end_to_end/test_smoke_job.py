"""The smoke benchmark as a part of the deployment: a report that fails an update, and runs again when it should."""

import json
from dataclasses import dataclass

import pytest
from user_project import Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "judged"


@dataclass(frozen=True)
class Life:
    """A threshold that nothing meets, then one that is met, then nothing new."""

    missed: Ended
    met: Ended
    again: Ended


@pytest.fixture(scope="module")
def life(project: Project) -> Life:
    project.write(STACK, smoke={"requests": 8, "concurrency": 2, "thresholds": {"maxTtftP95Ms": 0.001}})
    missed = project.rehearse(STACK)
    project.write(STACK)
    return Life(missed, project.rehearse(STACK), project.rehearse(STACK))


def test_a_missed_threshold_fails_the_update_and_is_named(life: Life) -> None:
    assert life.missed.status == 1
    assert "failed its smoke benchmark: TTFT p95" in " ".join(life.missed.errors.split())
    assert '{"message"' not in life.missed.errors
    assert "Traceback" not in life.missed.errors


def test_its_tables_and_report_are_there_all_the_same(life: Life, project: Project) -> None:
    assert "FAIL │ TTFT p95" in life.missed.errors
    assert list((project.folder / "reports" / STACK).glob("*/summary.json"))


def test_what_was_deployed_stays_and_only_the_benchmark_runs_again(life: Life) -> None:
    assert life.met.status == 0, life.met.errors
    (smoke,) = life.met.document["smoke"]
    assert smoke["passed"]
    changes = life.met.document["update"]["changes"]
    assert changes.get("create", 0) == 0
    assert changes["replace"] <= 3  # program, facts and Job


def test_an_update_without_changes_measures_nothing(life: Life) -> None:
    (before,), (after,) = life.met.document["smoke"], life.again.document["smoke"]
    assert set(life.again.document["update"]["changes"]) == {"same"}
    assert after["load"]["run"] == before["load"]["run"]


def test_the_jobs_report_says_what_was_simulated_and_what_ran(life: Life) -> None:
    (smoke,) = life.met.document["smoke"]
    assert smoke["provenance"]["numbers"] == "calibrated"
    assert "vLLM" in smoke["provenance"]["simulated"]
    assert smoke["provenance"]["time_scale"] == 0.5


def test_failed_prefills_are_counted_by_the_pickers_choices_and_finished_prefills(life: Life, project: Project) -> None:
    """The routing sidecar counts nothing. Half of them fail: 500 of the prefill server, after which decode does it all
    (or which is the client's, with a later sidecar)."""
    assert life.again.status == 0
    fault = {"LLMD_OKE_REHEARSED_FAILED_PREFILL_PERCENT": "50"}
    project.write(STACK, models=[model(engine={"env": fault})], smoke={"requests": 16, "concurrency": 2})
    failed = project.rehearse(STACK)
    assert failed.status == 1
    summary = json.loads((project.folder / "reports" / STACK / "latest" / "summary.json").read_text())
    proof = summary["remote_prefill"]
    assert abs(proof["failed_prefills"] - 8) <= 1  # of sixteen, in turn at each of two servers
    chosen, finished = (proof["counters"][name]["change"] for name in ("router remote decisions", "prefill requests"))
    assert chosen - finished == proof["failed_prefills"]
    assert "remote prefill" in [check["name"] for check in summary["checks"] if not check["passed"]]
