"""A watched stack: the real Prometheus scrapes the rehearsal by the stack's own monitors and evaluates its rules."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_bench.plots.charts import lines_svg
from llmd_bench.plots.drawing import Point, Series
from llmd_bench.plots.page import Section, page
from llmd_oke.catalogue.endpoint_pickers import endpoint_picker
from llmd_oke.catalogue.monitoring import Panel, programs, rules, watch
from llmd_oke.serving.monitoring import in_namespace
from llmd_pods.row import Basis
from llmd_rehearsal.inventory import WATCHING
from llmd_rehearsal.programs import locate, program_definition
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK, NAMESPACE = "watched", "llm-d"
MOST_MEMORY_BYTES = 300e6
PICKER = endpoint_picker(program_definition("epp").version or "").metrics
"""Of the endpoint picker that rehearsals build."""

DASHBOARDS = watch(PICKER).dashboards
SAMPLES_S = 90
"""Longest that Prometheus may take to have two samples of everything."""

ASK = """
import json, math, sys, time
from llmd_oke.operations.prometheus import query, query_range
from llmd_rehearsal.prometheus_operator import PROMETHEUS_URL
import httpx2
(panels, names), limit_s = json.load(open(sys.argv[1])), time.monotonic() + float(sys.argv[2])
def rows(text):
    now_s = time.time()
    return [{"labels": dict(one.labels), "points": [point for point in one.points if math.isfinite(point[1])]}
      for one in query_range(PROMETHEUS_URL, text, start_s=now_s - 120, end_s=now_s, step_s=2)]
while True:
    drawn = {text: [row for row in rows(text) if row["points"]] for text in panels}
    known = {name: len(query(PROMETHEUS_URL, name)) for name in names}
    if all(drawn.values()) and all(known.values()) or time.monotonic() > limit_s:
        break
    time.sleep(2)
rules = httpx2.get(PROMETHEUS_URL + "/api/v1/rules", trust_env=False).json()["data"]["groups"]
memory = query(PROMETHEUS_URL, 'process_resident_memory_bytes{job="prometheus"}')
targets = httpx2.get(PROMETHEUS_URL + "/api/v1/targets?state=active", trust_env=False).json()["data"]["activeTargets"]
print(json.dumps({"panels": drawn, "series": known, "rules": rules, "memory": [one.value for one in memory],
  "targets": [[t["scrapePool"], t["health"], t["lastError"]] for t in targets]}))
"""


def panels() -> list[str]:
    """The queries of all panels."""
    texts = [query for board in DASHBOARDS for panel in board.panels for query in panel.queries.values()]
    return [in_namespace(text, NAMESPACE) for text in texts]


def metrics() -> list[str]:
    """All metrics of the table, as series."""
    rows = [(name, kind) for program in programs().values() for name, kind in program.metrics.items()]
    series = [f"{name}_count" if kind == "histogram" else name for name, kind in rows]
    return [*series, PICKER.decisions, str(PICKER.ready_servers)]


@pytest.fixture(scope="module")
def answers(project: Project) -> dict[str, Any]:
    """What Prometheus says of a rehearsal whose smoke benchmark has run."""
    if any(locate(name) is None for name in WATCHING):
        pytest.skip("no prometheus: `llmd-oke rehearse programs --tests` builds it")
    traced = {"endpoint": "http://collector-that-is-gone:4317", "sampledShare": 1}  # it takes nothing from serving
    project.write(STACK, monitoring="install", tracing=traced, models=[model(slo={"ttftMs": 2000, "itlMs": 50})])
    rehearsed = project.rehearse(STACK)
    assert rehearsed.status == 0, rehearsed.errors
    asked = project.folder / "queries.json"
    asked.write_text(json.dumps([panels(), metrics()]))
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
    """Numbers at some moment: a share of nothing is none."""
    assert answers["panels"][query]


def test_panels_are_drawn_from_what_prometheus_answers(answers: dict[str, Any], project: Project) -> None:
    """`LLMD_OKE_PANELS` names a file to keep the page in."""
    sections = [
        Section(f"{board.title}: {panel.title}", svg=picture(answers["panels"], panel))
        for board in DASHBOARDS
        for panel in board.panels
    ]
    file = Path(os.environ.get("LLMD_OKE_PANELS") or project.folder / "panels.html")
    file.write_text(page("Panels of a rehearsed stack", sections))
    assert file.read_text().count("<svg") == len(sections)


def picture(answered: dict[str, list[dict[str, Any]]], panel: Panel) -> str:
    """A panel over the last two minutes, with its legends as Grafana writes them."""
    lines: list[Series] = []
    for legend, query in panel.queries.items():
        for row in answered[in_namespace(query, NAMESPACE)]:
            name = re.sub(r"{{(\w+)}}", lambda label, row=row: row["labels"].get(label[1], ""), legend)
            end_s = row["points"][-1][0]
            lines.append(Series(name, [Point(at_s - end_s, value) for at_s, value in row["points"]], Basis.CALIBRATED))
    return lines_svg(lines, title=panel.title, x_label="s", y_label=panel.unit)


@pytest.mark.parametrize("name", metrics())
def test_every_metric_that_rules_go_by_is_there(answers: dict[str, Any], name: str) -> None:
    assert answers["series"][name] > 0


def test_every_rule_is_evaluated_and_nothing_fires_in_a_sound_stack(answers: dict[str, Any]) -> None:
    rows = [rule for group in answers["rules"] for rule in group["rules"]]
    of_all = {row.record: row.needs for row in rules().recordings} | {row.alert: row.needs for row in rules().alerts}
    expected = {name for name, need in of_all.items() if need in {None, "disaggregated", "rdma", "slo"}}
    assert {rule["name"] for rule in rows} == {*expected, "llmd_oke:slo_ttft_seconds", "llmd_oke:gpu_usd_per_hour"}
    assert [(rule["name"], rule["lastError"]) for rule in rows if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rows if rule.get("state") == "firing"] == []


def test_prometheus_stays_small(answers: dict[str, Any]) -> None:
    (memory_bytes,) = answers["memory"]
    assert memory_bytes < MOST_MEMORY_BYTES
