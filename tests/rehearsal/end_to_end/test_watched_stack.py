"""A stack that is watched and scaled: the real Prometheus scrapes the rehearsal by the stack's own monitors and
evaluates its rules; the real KEDA and HPA controller follow the load by what it answers.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_base.row import Basis
from llmd_bench.plots.charts import lines_svg
from llmd_bench.plots.drawing import ChartPoint, ChartSeries
from llmd_bench.plots.page import PageSection, page
from llmd_oke.catalogue.endpoint_pickers import endpoint_picker
from llmd_oke.catalogue.monitoring import Panel, programs, rules, watch
from llmd_oke.serving.monitoring import in_namespace
from llmd_rehearsal.inventory import FOLLOWING, WATCHING
from llmd_rehearsal.program_definitions import program_definition
from llmd_rehearsal.programs import locate
from user_project import Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on this machine")

STACK, NAMESPACE = "watched", "llm-d"
MAX_MEMORY_BYTES = 300e6
ADDRESS = "http://gpt-oss-120b.llm-d.svc.cluster.local"
LOAD = Path(__file__).with_name("scaled_load.py")
SPEED = 30
SCALING = {"decode": {"minReplicas": 1, "maxReplicas": 2, "requests": 4}, "scaleDownWindowS": 60}
HOW = ("--stack", STACK, "--time-scale", "0.5", "--scaling-speed", str(SPEED), "--json")
PICKER = endpoint_picker(program_definition("epp").version or "").metrics
"""Of the endpoint picker that rehearsals build."""

DASHBOARDS = watch(PICKER).dashboards
ENDED_BY_TIMEOUT = 124
SAMPLES_S = 90
"""Longest that Prometheus may take to have two samples of everything, from targets that are all up."""

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
def asked(path):
    return httpx2.get(f"{PROMETHEUS_URL}/api/v1/{path}", trust_env=False).json()["data"]
while True:
    drawn = {text: [row for row in rows(text) if row["points"]] for text in panels}
    known = {name: len(query(PROMETHEUS_URL, name)) for name in names}
    targets = asked("targets?state=active")["activeTargets"]
    answered = all(drawn.values()) and all(known.values()) and all(one["health"] == "up" for one in targets)
    if answered or time.monotonic() > limit_s:
        break
    time.sleep(2)
rules = asked("rules")["groups"]
memory = query(PROMETHEUS_URL, 'process_resident_memory_bytes{job="prometheus"}')
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
def rehearsed(project: Project) -> Ended:
    """A rehearsal of a stack with one decode server, which may become two, whose smoke benchmark has run."""
    if missing := [name for name in (*WATCHING, *FOLLOWING) if locate(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: `llmd-oke rehearse programs --tests` builds them")
    traced = {"endpoint": "http://collector-that-is-gone:4317", "sampledShare": 1}  # it takes nothing from serving
    watched = model(topology="1p-tp1-1d-tp1", slo={"ttftMs": 2000, "itlMs": 50}, scaling=SCALING)
    project.write(STACK, monitoring="install", canaries={"everySeconds": 1}, tracing=traced, models=[watched])
    done = project.command("rehearse", *HOW)
    assert done.status == 0, done.errors
    return done


@pytest.fixture(scope="module")
def answers(project: Project, rehearsed: Ended) -> dict[str, Any]:
    """Return Prometheus' answers to the queries of panels and metrics."""
    assert rehearsed.status == 0
    queries = project.folder / "queries.json"
    queries.write_text(json.dumps([panels(), metrics()]))
    return inside(project, "-c", ASK, str(queries), str(SAMPLES_S))


def inside(project: Project, *words: str) -> dict[str, Any]:
    """The last line that a program of Python prints inside the rehearsal's cluster."""
    return json.loads(project.inside(STACK, sys.executable, *words).output.splitlines()[-1])


def prometheus_pid(project: Project) -> str:
    record = json.loads((project.folder / ".rehearsal" / STACK / "cluster.json").read_text())
    return str(record["processes"]["prometheus"]["pid"])


@pytest.fixture(scope="module")
def grown(project: Project, answers: dict[str, Any]) -> dict[str, Any]:
    """Three looks: before the load, under it, and after it with a Prometheus that hangs."""
    assert answers
    return inside(project, str(LOAD), "grow", ADDRESS, prometheus_pid(project))


@pytest.fixture(scope="module")
def status(project: Project, grown: dict[str, Any]) -> Ended:
    """Return what the status says meanwhile."""
    assert grown
    return project.command("status", "--rehearse", "--stack", STACK, "--json")


@pytest.fixture(scope="module")
def shrunk(project: Project, status: Ended) -> dict[str, Any]:
    """A look without load, with a Prometheus that answers again."""
    assert status
    return inside(project, str(LOAD), "shrink", prometheus_pid(project))


def test_prometheus_scrapes_every_target_of_the_pod_monitors(answers: dict[str, Any]) -> None:
    jobs = {pool.split("/")[2] if "/" in pool else pool for pool, _, _ in answers["targets"]}
    assert jobs >= {"llmd-oke-model-servers", "llmd-oke-router-envoys", "llmd-oke-front-doors", "simulated-exporters"}
    assert "llmd-oke-canaries" in jobs
    assert any(job.endswith("-epp-monitor") for job in jobs)
    assert [target for target in answers["targets"] if target[1] != "up"] == []


@pytest.mark.parametrize("query", panels())
def test_every_panel_of_the_grafana_dashboards_has_data_in_a_rehearsal(answers: dict[str, Any], query: str) -> None:
    """Numbers at some moment: a share of nothing is none."""
    assert answers["panels"][query]


def test_dashboard_panels_are_drawn_from_the_answers_of_prometheus(answers: dict[str, Any], project: Project) -> None:
    """The first of each dashboard; all of them where `LLMD_OKE_PANELS` names a file to keep the page in."""
    kept = os.environ.get("LLMD_OKE_PANELS")
    sections = [
        PageSection(f"{board.title}: {panel.title}", svg=picture(answers["panels"], panel))
        for board in DASHBOARDS
        for panel in (board.panels if kept else board.panels[:1])
    ]
    file = Path(kept or project.folder / "panels.html")
    file.write_text(page("Panels of a rehearsed stack", sections))
    assert file.read_text().count("<svg") == len(sections)


def picture(answered: dict[str, list[dict[str, Any]]], panel: Panel) -> str:
    """A panel over the last two minutes, with its legends as Grafana writes them."""
    lines: list[ChartSeries] = []
    for legend, query in panel.queries.items():
        for row in answered[in_namespace(query, NAMESPACE)]:
            name = re.sub(r"{{(\w+)}}", lambda label, row=row: row["labels"].get(label[1], ""), legend)
            end_s = row["points"][-1][0]
            lines.append(
                ChartSeries(name, [ChartPoint(at_s - end_s, value) for at_s, value in row["points"]], Basis.CALIBRATED)
            )
    return lines_svg(lines, title=panel.title, x_label="s", y_label=panel.unit)


@pytest.mark.parametrize("name", metrics())
def test_every_metric_that_the_alert_rules_use_exists(answers: dict[str, Any], name: str) -> None:
    assert answers["series"][name] > 0


def test_every_alert_rule_is_evaluated_and_none_fires_in_a_sound_stack(answers: dict[str, Any]) -> None:
    rows = [rule for group in answers["rules"] for rule in group["rules"]]
    of_all = {row.record: row.needs for row in rules().recordings} | {row.alert: row.needs for row in rules().alerts}
    expected = {name for name, need in of_all.items() if need in {None, "disaggregated", "rdma", "slo", "canaries"}}
    assert {rule["name"] for rule in rows} == {*expected, "llmd_oke:slo_ttft_seconds", "llmd_oke:gpu_usd_per_hour"}
    assert [(rule["name"], rule["lastError"]) for rule in rows if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rows if rule.get("state") == "firing"] == []


def test_a_rehearsals_prometheus_process_stays_below_its_memory_limit(answers: dict[str, Any]) -> None:
    (memory_bytes,) = answers["memory"]
    assert memory_bytes < MAX_MEMORY_BYTES


def test_a_rehearsal_with_keda_reports_the_factor_that_shortens_scaling_times(rehearsed: Ended) -> None:
    assert f"times of scaling are divided by {SPEED}" in rehearsed.document["scaling"]
    assert "scaling by load" not in " ".join(rehearsed.document["simulated"])


def test_keda_is_ready_and_keeps_the_minimum_of_servers_without_load(grown: dict[str, Any]) -> None:
    before = grown["before"]
    assert before["active"]
    assert (before["servers"], before["scaled_object"]["Ready"]) == (1, "True")


def test_load_makes_keda_start_another_server(grown: dict[str, Any]) -> None:
    loaded = grown["loaded"]
    assert (loaded["servers"], loaded["hpa"]["ScalingActive"]) == (2, "True")


def test_keda_keeps_the_number_of_servers_while_prometheus_does_not_answer(grown: dict[str, Any]) -> None:
    hung = grown["hung"]
    assert (hung["servers"], hung["hpa"]["ScalingActive"], hung["unready"]) == (2, "False", True)


def test_the_status_reports_that_prometheus_does_not_answer(status: Ended) -> None:
    assert "rometheus" in status.output


def test_keda_removes_the_additional_server_after_the_load_has_ended(shrunk: dict[str, Any]) -> None:
    assert shrunk["after"]["servers"] == 1
    assert shrunk["after"]["hpa"]["ScalingActive"] == "True"


@needs_kubectl
def test_kubectl_shows_the_autoscalers_of_a_rehearsed_stack(project: Project, rehearsed: Ended) -> None:
    assert rehearsed.status == 0
    look = ("timeout", "5", "kubectl", "get", "hpa", "-A", "--watch")
    seen = project.command("rehearse", "run", "--stack", STACK, "--", *look)
    assert seen.status == ENDED_BY_TIMEOUT, seen.errors
    assert re.search(r"Deployment/gpt-oss-120b-\w+-decode ", seen.output)


def test_a_rehearsals_keda_processes_stay_below_their_memory_limit(grown: dict[str, Any]) -> None:
    sizes = grown["loaded"]["memory_mb"]
    assert sizes.keys() == {"/keda", "/keda-adapter"}
    assert max(sizes.values()) * 1e6 < MAX_MEMORY_BYTES


@needs_kubectl
def test_the_documented_kubectl_command_restarts_a_canary_deployment(project: Project, shrunk: dict[str, Any]) -> None:
    """A restarted canary takes the next answers for the first ones, so this test stands last."""
    assert shrunk
    command = ("kubectl", "rollout", "restart", "deployment", "canary-gpt-oss-120b", "-n", NAMESPACE)
    project.inside(STACK, *command)
