from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments_for_tests import project, small_model
from llmd_base.addresses import HttpEndpoint, PodAddress
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_bench.deployment import EndpointRole, MetricsEndpoint, Reading, Snapshot
from llmd_bench.evidence import DecisionCounter, EvidenceSettings
from llmd_bench.queries import parse
from llmd_oke import planning
from llmd_oke.catalogue.endpoint_pickers import request_counters
from llmd_oke.operations import counters
from llmd_oke.operations.judgements import tolerances
from llmd_oke.operations.observations import CountedObservation
from llmd_tuner.experiments import watching
from llmd_tuner.experiments.records import Applied
from llmd_tuner.experiments.watching import ModelAssumptions, Reader, ReadingIntervals, model_assumptions, watch
from test_experiments_verification import forecast

EVIDENCE = EvidenceSettings(DecisionCounter(("decisions_total",), "decision_type", ("prefill-decode",)))
PACE = ReadingIntervals(every_s=10, for_s=20)


def histogram(name: str, observations: list[float], bounds: tuple[float, ...] = (0.1, 1.0)) -> str:
    buckets = [f'{name}_bucket{{le="{bound}"}} {sum(item <= bound for item in observations)}' for bound in bounds]
    rest = (f'{name}_bucket{{le="+Inf"}} {len(observations)}', f"{name}_sum {sum(observations)}")
    return "\n".join((f"# TYPE {name} histogram", *buckets, *rest, f"{name}_count {len(observations)}\n"))


def server(role: EndpointRole, requests: int, **gauges: float) -> Reading:
    """A server that answered so many requests of 1000/11 tokens: prefill 0.5 s, decode 0.05 s and 20 ms a token."""
    is_prefill = role == "prefill"
    text = (
        f"# TYPE vllm:request_success_total counter\nvllm:request_success_total {requests}\n"
        f"# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total {1000 * requests}\n"
        f"# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total {1000 * requests}\n"
        f"# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total {250 * requests * is_prefill}\n"
        f"# TYPE vllm:external_prefix_cache_hits_total counter\n"
        f"vllm:external_prefix_cache_hits_total {1000 * requests * (not is_prefill)}\n"
        f"vllm:num_preemptions_total {requests // 100}\n"
        f"vllm:num_requests_running {gauges.get('running', 0)}\n"
        f"vllm:num_requests_waiting {gauges.get('waiting', 0)}\n"
        f"vllm:kv_cache_usage_perc {gauges.get('usage', 0)}\n"
        + histogram("vllm:time_to_first_token_seconds", [0.5 if is_prefill else 0.05] * requests)
        + histogram("vllm:inter_token_latency_seconds", [] if is_prefill else [0.02] * 10 * requests)
        + histogram("vllm:request_prompt_tokens", [1000.0] * requests)
        + histogram("vllm:request_generation_tokens", [1.0 if is_prefill else 11.0] * requests)
    )
    return Reading(MetricsEndpoint(role, f"{role}-0", f"http://{role}/metrics"), parse(text))


def router(requests: int) -> Reading:
    text = (
        f"# TYPE inference_objective_request_total counter\ninference_objective_request_total {requests}\n"
        f'# TYPE decisions_total counter\ndecisions_total{{decision_type="prefill-decode"}} {requests}\n'
    )
    return Reading(MetricsEndpoint("router", "router-0", "http://router/metrics"), parse(text))


def unit(requests: int, **gauges: float) -> Snapshot:
    return Snapshot((router(requests), server("prefill", requests), server("decode", requests, **gauges)))


@pytest.mark.parametrize("name", request_counters())
def test_requests_are_counted_by_the_metric_name_of_the_picker_version(name: str):
    def shown(requests: int) -> Snapshot:
        text = f"# TYPE {name} counter\n{name} {requests}\n"
        return Snapshot((Reading(router(0).endpoint, parse(text)),))

    assert counters.window(shown(2), shown(9), 10.0).of("router", counters.ASKED) == 7


def dead(snapshot: Snapshot, role: str) -> Snapshot:
    readings = (
        Reading(item.endpoint, error="HTTP 503") if item.endpoint.role == role else item for item in snapshot.readings
    )
    return Snapshot(tuple(readings))


def watched(
    snapshots: Iterable[Snapshot] | Callable[[], Snapshot],
    pace: ReadingIntervals = PACE,
    evidence: EvidenceSettings | None = EVIDENCE,
) -> list[CountedObservation]:
    """Return what was seen in all after each reading, on a clock that only sleeping moves."""
    read = snapshots if callable(snapshots) else answering(*snapshots)
    return list(watching_on(read, pace, evidence))


def watching_on(
    read: Callable[[], Snapshot], pace: ReadingIntervals, evidence: EvidenceSettings | None = EVIDENCE
) -> Iterator[CountedObservation]:
    now = [0.0]

    def sleep(time_s: float) -> None:
        now[0] += time_s

    for whole, _ in watch(read, pace, evidence, Basis.MEASURED, clock=lambda: now[0], sleep=sleep):
        yield whole


def test_running_requests_are_observed_by_maximum_and_other_gauges_by_mean():
    first, last = {"running": 4, "waiting": 2, "usage": 0.2}, {"running": 8, "waiting": 4, "usage": 0.4}
    seen = watched([unit(0), unit(50, **first), unit(100, **last)])[-1]
    assert (seen.most_running, seen.waiting) == (8, 3)
    assert seen.kv_cache_usage == pytest.approx(0.3)


def test_an_aggregated_servers_counters_give_the_request_rate_and_ttft():
    snapshots = [Snapshot((server("aggregated", requests),)) for requests in (0, 50, 100)]
    seen = watched(snapshots, evidence=None)[-1]
    assert (seen.requests_per_s, seen.ttft_ms) == (pytest.approx(5), pytest.approx(50))
    assert seen.remote_prefill_share is None


def test_observed_durations_of_simulated_servers_are_divided_by_the_time_scale():
    seen = watched([unit(0), unit(50), unit(100)], replace(PACE, time_scale=2.0))[-1]
    assert (seen.duration_s, seen.requests_per_s) == (10.0, pytest.approx(10.0))


def test_counters_of_a_restarted_server_count_from_its_restart():
    seen = watched([unit(100), unit(30), unit(60)])[-1]
    assert seen.answered == 60
    assert "prefill-0" in seen.notes[0]
    assert "lower bounds" in seen.notes[0]


def test_without_the_routers_counters_the_request_rate_follows_from_the_servers():
    seen = watched([dead(unit(requests), "router") for requests in (0, 50, 100)])[-1]
    assert seen.requests_per_s == pytest.approx(5.0)


def answering(*result: Snapshot | str) -> Callable[[], Snapshot]:
    """A cluster that gives these snapshots, and fails where one is a message."""
    waiting = iter(result)

    def read() -> Snapshot:
        item = next(waiting)
        if isinstance(item, str):
            raise KitError(item)
        return item

    return read


def test_an_interval_in_which_a_server_or_the_cluster_did_not_answer_is_left_out():
    seen = watched([unit(0), dead(unit(50), "decode"), unit(100), unit(140)], replace(PACE, for_s=30))[-1]
    assert (seen.answered, seen.duration_s) == (40, 10.0)
    assert seen.notes == ("2 intervals are left out: a server came, went or could not be read",)
    seen = watched(answering(unit(0), unit(40), "no answer", unit(90), unit(120)), replace(PACE, for_s=40))[-1]
    assert (seen.answered, seen.duration_s) == (70, 20.0)
    assert seen.notes == ("2 intervals are left out: a server came, went or could not be read",)
    seen = watched(answering(unit(0), unit(40), "no answer", "no answer", unit(90)), replace(PACE, for_s=40))[-1]
    assert seen.duration_s == 10.0


def test_remote_prefill_proved_before_a_failed_reading_of_counters_stays_proved():
    seen = watched(answering(unit(0), unit(40), "no answer"))[-1]
    assert seen.remote_prefill_share == 1.0
    assert "no answer at the last reading: no answer" in seen.notes


def test_tune_watch_ends_with_an_error_if_the_cluster_is_silent_for_too_long():
    result: list[CountedObservation] = []
    limit_s = tolerances().silence_s
    with pytest.raises(KitError, match="no answer"):
        result.extend(watching_on(answering(unit(0), unit(40), *["no answer"] * 100), replace(PACE, for_s=2000)))
    assert len(result) == 1 + limit_s / PACE.every_s


def test_a_single_failed_reading_of_counters_is_tolerated_unless_it_is_the_first():
    pace = ReadingIntervals(every_s=2 * tolerances().silence_s, for_s=10 * tolerances().silence_s)
    with pytest.raises(KitError):
        watched(answering(unit(0), "no answer", "no answer"), pace)
    assert watched(answering(*[unit(0), "no answer"] * 3), pace)
    with pytest.raises(KitError, match="no answer"):
        watched(answering("no answer"))


def test_running_requests_are_averaged_over_the_servers_of_each_interval():
    """A second decode server that decodes nothing: 20 s of one, 10 s of two."""
    more = Reading(MetricsEndpoint("decode", "decode-1", "http://decode-1/metrics"), server("decode", 0).series)
    snapshots = [unit(0), unit(50), unit(100), *(Snapshot((*unit(n).readings, more)) for n in (150, 200))]
    seen = watched(snapshots, replace(PACE, for_s=40))[-1]
    assert seen.duration_s == 30.0
    assert seen.running == pytest.approx(150 * 10 * 0.02 / (20 + 2 * 10))


def test_standard_errors_of_means_are_estimated_from_histogram_buckets():
    """Half of the requests in the middle of each of two buckets, 0.05 s and 0.55 s: scatter 0.25 s."""
    snapshots = [Snapshot((scattered(requests),)) for requests in (0, 50, 100)]
    errors = watched(snapshots, evidence=None)[-1].standard_errors
    assert errors["ttft_ms"] == pytest.approx(250 / 10)
    assert errors["itl_ms"] == errors["input_tokens"] == 0.0


def scattered(requests: int) -> Reading:
    result = server("aggregated", requests)
    ttft = histogram("vllm:time_to_first_token_seconds", [0.05, 0.5] * (requests // 2))
    return replace(result, series={**result.series, **parse(ttft)})


class FakeAccess:
    """A cluster with these pods; `found` has those that a way was looked for."""

    def __init__(self, *_: object) -> None:
        self.pod_names: list[str] = []
        self.found: list[str] = []

    def pods(self, namespace: str, labels: Mapping[str, str]) -> list[PodAddress]:
        return [PodAddress(name, "10.0.0.1") for name in self.pod_names]

    def pod(self, namespace: str, pod: PodAddress, port: int) -> HttpEndpoint:
        self.found.append(pod.name)
        return HttpEndpoint("http://127.0.0.1:1")  # nobody answers there


@pytest.fixture(name="reader")
def reader_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Reader, FakeAccess]:
    access = FakeAccess()
    monkeypatch.setattr(watching, "ClusterAccess", lambda _: access)
    plan = planning.plan_stack_file(project(tmp_path), "s")
    return Reader(plan, plan.models[0]), access


def test_reading_the_counters_of_a_model_without_servers_is_an_error(reader: tuple[Reader, FakeAccess]):
    with pytest.raises(KitError, match="No server of gpt-oss-120b is there"):
        reader[0]()


def test_connections_to_pods_are_renewed_only_if_the_pods_change(reader: tuple[Reader, FakeAccess]):
    read, access = reader
    access.pod_names = ["a"]
    read()
    once = len(access.found)
    read()
    assert len(access.found) == once
    access.pod_names = ["a", "b"]
    assert {reading.endpoint.pod for reading in read().readings} == {"a", "b"}


def test_a_deployments_load_and_percentiles_are_computed_from_its_metrics():
    seen = watched([unit(100), unit(140), unit(200)])[-1]
    assert (seen.answered, seen.duration_s) == (100, 20.0)
    assert seen.requests_per_s == pytest.approx(5.0)
    assert (seen.input_tokens, seen.output_tokens) == (pytest.approx(1000), pytest.approx(11))
    assert seen.ttft_ms == pytest.approx(550)
    assert seen.itl_ms == pytest.approx(20)
    assert seen.prefix_cache_hit_share == pytest.approx(0.25)
    assert seen.preemptions == 2
    assert seen.remote_prefill_share == 1.0
    assert seen.notes == ()
    result = watched([unit(0), unit(50), unit(100)])[-1].percentiles_ms
    assert set(result) == {"TTFT of prefill servers", "TTFT of decode servers", "ITL of decode servers"}
    assert (result["TTFT of prefill servers"]["p50"].low, result["ITL of decode servers"]["p99"].high) == (100, 100)


def rests_on(folder: Path, applied: Applied | None, **changes: Any) -> ModelAssumptions:
    plan = planning.plan_stack_file(project(folder, models=[small_model(**changes)]), "s")
    return model_assumptions(plan, plan.models[0], applied, 0.25, 0.1)


def applied(**changes: Any) -> Applied:
    return Applied(applied="2026-03-01T00:00:00+00:00", targets="itl=30,qps=2.5", forecast=forecast(**changes))


def names(result: ModelAssumptions, kind: str) -> set[str]:
    return {item.figure.name for item in result.assumptions if item.kind == kind}


def test_tune_watch_takes_assumed_load_ttft_and_targets_from_an_applied_forecast(tmp_path: Path):
    result = rests_on(tmp_path, applied(), slo={"itlMs": 99.0})
    assert names(result, "load") == {"requests_per_s", "input_tokens", "output_tokens", "prefix_cache_hit_share"}
    assert names(result, "forecast") == {"ttft_ms"}
    assert str(result.targets) == "itl=30,qps=2.5"
    assert "forecast applied 2026-03-01" in result.source


def test_without_a_forecast_tune_watch_assumes_the_stack_files_lengths_and_targets(tmp_path: Path):
    result = rests_on(tmp_path, None, slo={"ttftMs": 500.0, "itlMs": 20.0})
    assert names(result, "load") == {"input_tokens", "output_tokens", "prefix_cache_hit_share"}
    assert names(result, "forecast") == set()
    assert str(result.targets) == "ttft=500,itl=20"
    assert "no forecast was applied" in result.source


def test_forecasts_of_another_deployment_or_without_settings_are_reported_as_such(tmp_path: Path):
    result = rests_on(tmp_path, applied(topology="agg-tp2-1r"))
    assert names(result, "forecast") == set()
    assert "the forecast of 2026-03-01T00:00:00+00:00 is of 1 x agg-tp2-1r" in result.source
    (told,) = rests_on(tmp_path, applied()).conditions
    assert told.startswith("conditions unknown: what the forecast of 2026-03-01")


def test_remote_prefill_is_assumed_only_for_disaggregated_models(tmp_path: Path):
    assert "remote_prefill_share" not in names(rests_on(tmp_path, None), "limit")
    assert "remote_prefill_share" in names(rests_on(tmp_path, None, topology="1p-tp1-1d-tp1"), "limit")


def test_server_settings_that_changed_since_the_forecast_are_reported(tmp_path: Path):
    made_for = {"block_size": 16, "router_profile": "token-load", "quick_reduce": "NONE", "image": "i"}
    result = rests_on(tmp_path, applied(**made_for), engine={"blockSize": 32}, router={"profile": "prefix"})
    told = {text.partition(",")[0] for text in result.conditions}
    assert {"block size 32", "router profile prefix"} < told
    assert not any("quick reduce" in text for text in result.conditions)
    assert result.conditions[-1].endswith("the forecast of 2026-03-01T00:00:00+00:00 was made for token-load")
