"""A scaled stack: the real KEDA and HPA controller follow the load by the real Prometheus."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_rehearsal.inventory import FOLLOWING, WATCHING
from llmd_rehearsal.programs import locate
from user_project import Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "scaled"
ADDRESS = "http://gpt-oss-120b.llm-d.svc.cluster.local"
LOAD = Path(__file__).with_name("scaled_load.py")
SPEED = 30
SCALING = {"decode": {"minReplicas": 1, "maxReplicas": 2, "requests": 4}, "scaleDownWindowS": 60}
MOST_MEMORY_MB = 300
HOW = ("--stack", STACK, "--time-scale", "0.5", "--no-benchmark", "--scaling-speed", str(SPEED))


@pytest.fixture(scope="module")
def scaled(project: Project) -> Ended:
    """A rehearsal of a stack with one decode server, which may become two."""
    if missing := [name for name in (*WATCHING, *FOLLOWING) if locate(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: `llmd-oke rehearse programs --tests` builds them")
    models = [model(topology="1p-tp1-1d-tp1", scaling=SCALING)]
    project.write(STACK, models=models, smoke={"where": "none", "requests": 8, "concurrency": 2})
    done = project.command("rehearse", *HOW, "--json")
    assert done.status == 0, done.errors
    return done


def follow(project: Project, *words: str) -> dict[str, Any]:
    record = json.loads((project.folder / ".rehearsal" / STACK / "cluster.json").read_text())
    pid = str(record["processes"]["prometheus"]["pid"])
    command = ("rehearse", "run", "--stack", STACK, "--", sys.executable, str(LOAD), *words, pid)
    done = project.command(*command)
    assert done.status == 0, done.errors
    print(done.output)
    return json.loads(done.output.splitlines()[-1])


@pytest.fixture(scope="module")
def grown(project: Project, scaled: Ended) -> dict[str, Any]:
    """Before the load, under it, and after it with a Prometheus that hangs."""
    assert scaled.status == 0
    return follow(project, "grow", ADDRESS)


@pytest.fixture(scope="module")
def told(project: Project, grown: dict[str, Any]) -> Ended:
    """What the status says meanwhile."""
    assert grown
    return project.command("status", "--rehearse", "--stack", STACK, "--json")


@pytest.fixture(scope="module")
def shrunk(project: Project, told: Ended) -> dict[str, Any]:
    """With a Prometheus that answers again, and without load."""
    assert told
    return follow(project, "shrink")


def test_who_scales_and_how_fast_is_told(scaled: Ended) -> None:
    assert f"times of scaling are divided by {SPEED}" in scaled.document["scaling"]
    assert "scaling by load" not in " ".join(scaled.document["simulated"])


def test_keda_and_the_controller_are_ready_and_keep_the_least_without_load(grown: dict[str, Any]) -> None:
    before = grown["before"]
    assert before["active"]
    assert (before["servers"], before["scaled_object"]["Ready"]) == (1, "True")


def test_load_has_another_server_started(grown: dict[str, Any]) -> None:
    loaded = grown["loaded"]
    assert (loaded["servers"], loaded["hpa"]["ScalingActive"]) == (2, "True")


def test_servers_stay_while_prometheus_does_not_answer_and_the_scaled_object_says_so(grown: dict[str, Any]) -> None:
    hung = grown["hung"]
    assert (hung["servers"], hung["hpa"]["ScalingActive"], hung["scaled_object"]["Ready"]) == (2, "False", "False")


def test_the_status_tells_that_prometheus_does_not_answer(told: Ended) -> None:
    assert "rometheus" in told.output


def test_servers_go_again_once_the_load_has_ended(shrunk: dict[str, Any]) -> None:
    assert shrunk["after"]["servers"] == 1
    assert shrunk["after"]["hpa"]["ScalingActive"] == "True"


def test_keda_stays_small(grown: dict[str, Any]) -> None:
    sizes = grown["loaded"]["memory_mb"]
    assert sizes.keys() == {"/keda", "/keda-adapter"}
    assert max(sizes.values()) < MOST_MEMORY_MB


def test_another_update_changes_nothing(project: Project, shrunk: dict[str, Any]) -> None:
    assert shrunk
    again = project.command("rehearse", *HOW, "--json")
    assert again.document["update"]["changes"].keys() <= {"same", "read"}
