import json
import re
from collections.abc import Callable, Mapping
from itertools import count
from urllib.parse import parse_qs, urlsplit

import pytest
from llmd_oke.operations.status.prometheus import RANGES_S
from stack_cluster import NAMESPACE, NOW, StackCluster, what

Counts = Mapping[str, float]

DECISIONS = 'llm_d_epp_disagg_decision_total{decision_type="prefill-decode"}'
URL = "http://prometheus-operated.monitoring.svc:9090"
PROXY = "/api/v1/namespaces/monitoring/services/http:prometheus-operated:9090/proxy"
TOKENS = 1000
"""Of each prompt."""


def server(requests: float, ttft_s: float = 0.1, received: float = 0.0, **gauges: float) -> dict[str, float]:
    """Counters of a server that has answered so many requests."""
    return {
        'vllm:request_success_total{finished_reason="stop"}': requests,
        "vllm:prompt_tokens_total": requests * TOKENS,
        "vllm:external_prefix_cache_hits_total": received * TOKENS,
        "vllm:time_to_first_token_seconds_sum": requests * ttft_s,
        "vllm:time_to_first_token_seconds_count": requests,
        "vllm:inter_token_latency_seconds_sum": requests * 10 * 0.005,
        "vllm:inter_token_latency_seconds_count": requests * 10,
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0.1,
        **{f"vllm:{name}": value for name, value in gauges.items()},
    }


def text(counts: Counts) -> str:
    return "".join(f"{name} {value}\n" for name, value in counts.items())


def serve(cluster: StackCluster, decode: Callable[[float], Counts], prefill: float = 1.0) -> None:
    """Have decode servers answer 60 more requests each at each reading, and prefill servers that share of them."""
    answers = {"-decode-": decode, "-router-": lambda n: {DECISIONS: n / 2}, "-prefill-": lambda n: server(n / 2)}
    for pod in cluster.pods:
        name = pod["metadata"]["name"]
        own = next((answer for part, answer in answers.items() if part in name), None)
        share, reading = prefill if "-prefill-" in name else 1.0, count()
        for port in (8000, 8200, 9090):
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:{port}/proxy/metrics"
            if own:
                cluster.answers[path] = lambda own=own, share=share, reading=reading: (
                    200,
                    text(own(60.0 * share * next(reading))),
                )


def remote(requests: float, **more: float) -> dict[str, float]:
    """A decode server all of whose prompts were prefilled elsewhere."""
    return server(requests, received=requests, **more)


def test_the_status_shows_measured_figures_beside_their_targets(run, cluster):
    serve(cluster, remote)
    result = run("status")
    assert result.exit_code == 0
    assert "100.0% / 95.0%" in " ".join(result.stdout.split())
    assert "200 / 2000" in result.stdout
    assert "5 / 25" in result.stdout


@pytest.mark.parametrize("slow", [False, True])
def test_status_colours_are_readable_on_light_and_dark_backgrounds(run, cluster, slow, monkeypatch):
    """Bold, dim, red, green and magenta alone: yellow, cyan and white vanish on light ones, blue on dark ones."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    serve(cluster, lambda requests: remote(requests, ttft_s=3.0 if slow else 0.1))
    codes = {code for codes in re.findall(r"\x1b\[([0-9;]*)m", run("status").stdout) for code in codes.split(";")}
    assert {"1", "31" if slow else "32"} <= codes <= {"", "0", "1", "2", "31", "32", "35"}


@pytest.mark.parametrize(
    ("decode", "prefill", "told"),
    [
        (lambda requests: remote(requests, ttft_s=3.0), 1.0, "TTFT mean, ms 3100, to be at most 2000"),
        (lambda requests: server(requests, received=requests / 2), 0.5, "remote prefill 50.0%, to be at least 95.0%"),
    ],
    ids=["latency", "remote prefill"],
)
def test_the_status_reports_a_missed_target(run, cluster, decode, prefill, told):
    serve(cluster, decode, prefill)
    assert what(run) == [f"gpt-oss-120b: {told}"]


def test_waiting_requests_and_a_full_kv_cache_are_reported(run, cluster):
    serve(cluster, lambda requests: remote(requests, num_requests_waiting=40, kv_cache_usage_perc=0.97))
    waiting, full = what(run)
    assert waiting.startswith("gpt-oss-120b: waiting ")
    assert full.startswith("gpt-oss-120b: KV cache ")


def test_the_status_leaves_a_metric_empty_that_servers_do_not_export(run, cluster):
    lacking = ("vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds_sum")
    serve(cluster, lambda requests: {name: value for name, value in remote(requests).items() if name not in lacking})
    result = run("status")
    assert result.exit_code == 0
    assert "- / 25" in result.stdout


def test_servers_with_unreadable_counters_are_reported_and_others_shown(run, cluster):
    serve(cluster, remote)
    name = cluster.pod("-decode-")["metadata"]["name"]
    cluster.answers[f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:8200/proxy/metrics"] = 503, "no endpoints"
    assert what(run) == [f"counters of {name} can't be read: HTTP 503"]


def alerts(cluster: StackCluster, *firing: Mapping[str, str]) -> None:
    listed = [
        {"labels": dict(labels), "annotations": {"summary": "KV transfers fail"}, "state": "firing", "activeAt": NOW}
        for labels in firing
    ]
    cluster.answers[f"{PROXY}/api/v1/alerts"] = 200, json.dumps({"status": "success", "data": {"alerts": listed}})


def history(cluster: StackCluster, series: Callable[[float, str], Counts], known_s: float = RANGES_S[0]) -> None:
    """Have the cluster's Prometheus know counters of now and of `known_s` before at most; they grow by two requests a
    second."""

    def answer() -> tuple[int, str]:
        (query,) = parse_qs(urlsplit(cluster.asked[-1]).query)["query"]
        ago_s = float(query.rpartition("offset ")[2].removesuffix("s")) if "offset" in query else 0.0
        requests = 600.0 - 2 * ago_s
        result = [
            {"metric": {"__name__": name.partition("{")[0], "pod": pod, **labels(name)}, "value": [0, str(value)]}
            for pod in (item["metadata"]["name"] for item in cluster.pods)
            for name, value in series(requests, pod).items()
            if ago_s <= known_s
        ]
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})

    cluster.answers[f"{PROXY}/api/v1/query"] = answer


def labels(name: str) -> dict[str, str]:
    key, _, value = name.partition("{")[2].rstrip("}").partition("=")
    return {key: value.strip('"')} if key else {}


def of_pod(requests: float, pod: str) -> Counts:
    if "-router-" in pod:
        return {DECISIONS: requests / 2}
    return remote(requests) if "-decode-" in pod else server(requests / 2)


LESS = ", as it doesn't know all servers for longer"


@pytest.mark.parametrize(("known_s", "source"), [(RANGES_S[0], "5 min"), (299, f"2 min{LESS}"), (90, f"1 min{LESS}")])
def test_load_from_prometheus_is_measured_over_five_minutes_or_what_it_has_of_them(run, cluster, known_s, source):
    alerts(cluster)
    history(cluster, of_pod, known_s)
    result = run("status", "--prometheus", URL, "--json")
    document = json.loads(result.stdout)
    (model,) = document["models"]
    assert (result.exit_code, document["load_source"]) == (0, f"Prometheus over {source}")
    assert (model["requests_per_s"], model["remote_prefill_share"]) == (pytest.approx(2.0), pytest.approx(1.0))
    assert document["symptoms"] == []


def test_servers_that_prometheus_has_known_for_under_a_minute_are_reported(run, cluster):
    alerts(cluster)
    history(cluster, of_pod, 10)
    (told,) = what(run, "--prometheus", URL)
    assert told.endswith("can't be read: Prometheus has known it for less than 60 s")


def test_the_status_reports_firing_alerts_except_watchdogs(run, cluster):
    history(cluster, of_pod)
    failing = {"alertname": "KvTransfersFail", "severity": "critical"}
    alerts(cluster, {"alertname": "Watchdog", "severity": "none"}, failing, {**failing, "pod": "other"})
    result = run("status", "--prometheus", URL)
    assert result.exit_code == 1
    assert "degraded  alert KvTransfersFail (2 times): KV transfers fail" in result.stdout
    assert "Watchdog" not in result.stdout


@pytest.mark.parametrize("answer", [(503, "no endpoints available"), (200, "<html>"), (404, "{}")])
def test_the_status_reads_servers_directly_if_prometheus_does_not_answer(run, cluster, answer):
    serve(cluster, remote)
    cluster.answers[f"{PROXY}/api/v1/alerts"] = cluster.answers[f"{PROXY}/api/v1/query"] = answer
    result = run("status", "--prometheus", URL)
    assert result.exit_code == 1
    assert "Prometheus does not tell which alerts fire" in result.stdout
    assert "200 / 2000" in result.stdout


@pytest.mark.parametrize(
    ("lacking", "roles"), [("", "decode, prefill, router"), ("-router-", "router")], ids=["all", "routers"]
)
def test_metrics_of_servers_that_prometheus_lacks_are_read_directly(run, cluster, lacking, roles):
    serve(cluster, remote)
    alerts(cluster)
    history(cluster, lambda requests, pod: {} if lacking in pod else of_pod(requests, pod))
    document = json.loads(run("status", "--prometheus", URL, "--json").stdout)
    assert document["load_source"].startswith("their own counters")
    (symptom,) = document["symptoms"]
    assert symptom["what"] == f"{URL} has no metrics of the stack's servers: {roles}"
