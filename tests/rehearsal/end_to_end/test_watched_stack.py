"""A watched stack: the real Prometheus scrapes the rehearsal by the stack's own monitors and evaluates its rules."""

import json
import sys
from typing import Any

import pytest
from llmd_oke.catalogue.monitoring import dashboards, programs, rules
from llmd_oke.serving.monitoring import in_namespace
from llmd_rehearsal.inventory import WATCHING
from llmd_rehearsal.programs import locate
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK, NAMESPACE = "watched", "llm-d"
MOST_MEMORY_BYTES = 300e6
SAMPLES_S = 90
"""Longest that Prometheus may take to have two samples of everything."""

ASK = """
import json, sys, time
from llmd_oke.operations.prometheus import query
from llmd_rehearsal.prometheus_operator import PROMETHEUS_URL
import httpx2
names, limit_s = json.load(open(sys.argv[1])), time.monotonic() + float(sys.argv[2])
while True:
    found = {name: len(query(PROMETHEUS_URL, name)) for name in names}
    if all(found.values()) or time.monotonic() > limit_s:
        break
    time.sleep(2)
rules = httpx2.get(PROMETHEUS_URL + "/api/v1/rules", trust_env=False).json()["data"]["groups"]
memory = query(PROMETHEUS_URL, 'process_resident_memory_bytes{job="prometheus"}')
targets = httpx2.get(PROMETHEUS_URL + "/api/v1/targets?state=active", trust_env=False).json()["data"]["activeTargets"]
print(json.dumps({"series": found, "rules": rules, "memory": [one.value for one in memory],
  "targets": [[t["scrapePool"], t["health"], t["lastError"]] for t in targets]}))
"""


def panels() -> list[str]:
    """The queries of all panels."""
    texts = [query for board in dashboards() for panel in board.panels for query in panel.queries.values()]
    return [in_namespace(text, NAMESPACE) for text in texts]


def metrics() -> list[str]:
    """All metrics of the table, as series."""
    rows = [(name, kind) for program in programs().values() for name, kind in program.metrics.items()]
    return [f"{name}_count" if kind == "histogram" else name for name, kind in rows]


@pytest.fixture(scope="module")
def answers(project: Project) -> dict[str, Any]:
    """What Prometheus says of a rehearsal whose smoke benchmark has run."""
    if any(locate(name) is None for name in WATCHING):
        pytest.skip("no prometheus: `llmd-oke rehearse programs --tests` builds it")
    project.write(STACK, monitoring="install", models=[model(slo={"ttftMs": 2000, "itlMs": 50})])
    rehearsed = project.rehearse(STACK)
    assert rehearsed.status == 0, rehearsed.errors
    asked = project.folder / "queries.json"
    asked.write_text(json.dumps([*panels(), *metrics()]))
    command = ("rehearse", "run", "--stack", STACK, "--", sys.executable, "-c", ASK, str(asked), str(SAMPLES_S))
    ended = project.command(*command)
    assert ended.status == 0, ended.errors
    return json.loads(ended.output.splitlines()[-1])


def test_every_target_of_the_monitors_is_scraped(answers: dict[str, Any]) -> None:
    jobs = {pool.split("/")[2] if "/" in pool else pool for pool, _, _ in answers["targets"]}
    assert jobs >= {"llmd-oke-model-servers", "llmd-oke-router-envoys", "llmd-oke-front-doors", "simulated-exporters"}
    assert any(job.endswith("-epp-monitor") for job in jobs)
    assert [target for target in answers["targets"] if target[1] != "up"] == []


@pytest.mark.parametrize("query", panels())
def test_every_panel_has_series(answers: dict[str, Any], query: str) -> None:
    assert answers["series"][query] > 0


@pytest.mark.parametrize("name", metrics())
def test_every_metric_that_rules_go_by_is_there(answers: dict[str, Any], name: str) -> None:
    assert answers["series"][name] > 0


def test_every_rule_is_evaluated_and_nothing_fires_in_a_sound_stack(answers: dict[str, Any]) -> None:
    rows = [rule for group in answers["rules"] for rule in group["rules"]]
    of_all = {row.record: row.needs for row in rules().recordings} | {row.alert: row.needs for row in rules().alerts}
    expected = {name for name, need in of_all.items() if need in {None, "disaggregated", "rdma", "slo"}}
    assert {rule["name"] for rule in rows} == {*expected, "llmd_oke:slo_ttft_seconds"}
    assert [(rule["name"], rule["lastError"]) for rule in rows if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rows if rule.get("state") == "firing"] == []


def test_prometheus_stays_small(answers: dict[str, Any]) -> None:
    (memory_bytes,) = answers["memory"]
    assert memory_bytes < MOST_MEMORY_BYTES
