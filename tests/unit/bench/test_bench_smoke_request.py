from dataclasses import replace

import pytest
from fake_deployment import REQUEST, TOPOLOGY
from llmd_base.addresses import HttpEndpoint, PodAddress
from llmd_base.row import Basis
from llmd_bench.deployment import RouterPart
from llmd_bench.performance import summarize
from llmd_bench.run_context import VARIABLE, RunContext, from_environment
from llmd_bench.smoke import resolve
from llmd_bench.smoke_request import SmokeLimits, from_json, judge
from test_bench_evidence import decode, prefill, prove, router
from test_bench_performance import failed, request

PODS = {
    "router": [PodAddress("r", "10.0.0.1")],
    "prefill": [PodAddress("p0", "10.0.0.2"), PodAddress("p1", "10.0.0.3")],
    "decode": [PodAddress("d", "10.0.0.4")],
}


class FakeDirectory:
    def service(self, namespace, name):
        return HttpEndpoint(f"http://{name}.{namespace}")

    def pods(self, namespace, labels):
        return PODS[labels["role"]]

    def pod(self, namespace, pod, port):
        return HttpEndpoint(f"http://{pod.address}:{port}")


def test_a_smoke_request_is_read_back_from_its_file_and_equal_ones_are_equal_json():
    assert from_json(REQUEST.to_json()) == REQUEST
    assert replace(REQUEST).to_json() == REQUEST.to_json()


def test_pods_are_scraped_at_their_own_ports_and_servers_listed_by_labels():
    plan = resolve(REQUEST, FakeDirectory(), RunContext())
    assert [(item.role, item.url) for item in plan.metrics] == [
        ("router", "http://10.0.0.1:9090/metrics"),
        ("prefill", "http://10.0.0.2:8000/metrics"),
        ("prefill", "http://10.0.0.3:8000/metrics"),
        ("decode", "http://10.0.0.4:8200/metrics"),
    ]
    assert plan.servers
    listed = [(server.role, server.name) for server in plan.servers()]
    assert listed == [("prefill", "p0"), ("prefill", "p1"), ("decode", "d")]


def test_each_prefill_decode_pair_of_a_copy_is_connected_through_the_routing_sidecar():
    pairs = resolve(REQUEST, FakeDirectory(), RunContext()).introductions
    assert [(pair.base_url, pair.headers["x-prefiller-host-port"]) for pair in pairs] == [
        ("http://10.0.0.4:8000", "10.0.0.2:8000"),
        ("http://10.0.0.4:8000", "10.0.0.3:8000"),
    ]
    apart = replace(REQUEST, groups=(REQUEST.groups[1], replace(REQUEST.groups[2], unit="b")))
    assert resolve(apart, FakeDirectory(), RunContext()).introductions == ()


def test_a_benchmark_result_states_the_picker_version_that_the_rehearsal_ran():
    topology = replace(
        TOPOLOGY, router=(RouterPart("endpoint-picker", "x", "v0.8.0"), RouterPart("service", "y", "v1"))
    )
    how = RunContext(ran={"epp": "v0.7.1"})
    plan = resolve(replace(REQUEST, topology=topology), FakeDirectory(), how)
    assert [part.version for part in plan.topology.router] == ["v0.7.1", "v1"]


@pytest.mark.parametrize("basis", list(Basis))
def test_a_smoke_pod_reads_time_scale_and_simulated_parts_from_a_rehearsals_variable(basis):
    how = RunContext(0.3, basis, ("vLLM", "nodes, and their GPUs"), {"epp": "v0.7.1"}, ("some/model",))
    assert from_environment({VARIABLE: how.to_text()}) == how
    assert from_environment({}) == RunContext(), "servers are real ones without it"


GOOD = summarize([request(index) for index in range(4)], planned=4, gpus=1, concurrency=4)
NO_LIMITS = SmokeLimits(max_failures=None)


def check(thresholds: SmokeLimits, performance=GOOD, proof=None):
    (only,) = judge(thresholds, performance, proof).checks
    return only


def test_without_thresholds_or_remote_prefill_to_judge_nothing_is_checked():
    assert judge(NO_LIMITS, GOOD, None).checks == ()
    assert judge(replace(NO_LIMITS, min_remote_prefill_share=1), GOOD, None).checks == ()


@pytest.mark.parametrize(
    ("limit", "generous", "strict", "measured"),
    [
        ("max_ttft_p95_ms", 501, 499, 500),
        ("max_itl_p95_ms", 101, 99, 100),
        ("max_e2e_p95_ms", 1001, 999, 1000),
        ("min_output_tokens_per_s", 23, 25, 24),
    ],
)
def test_a_benchmark_limit_is_compared_with_the_measured_value(limit, generous, strict, measured):
    assert check(replace(NO_LIMITS, **{limit: generous})).passed
    failing = check(replace(NO_LIMITS, **{limit: strict}))
    assert not failing.passed
    assert failing.value == pytest.approx(measured)
    assert failing.evidence


def test_failed_requests_beyond_their_limit_fail_the_check_with_their_reasons():
    performance = summarize([request(), failed(), failed(8)], planned=3, gpus=1, concurrency=1)
    result = check(SmokeLimits(max_failures=1), performance)
    assert (result.value, result.passed) == (2, False)
    assert result.evidence == "2 x status: HTTP 503: x"
    assert check(SmokeLimits(max_failures=2), performance).passed


@pytest.mark.parametrize("records", [[], [failed(0), failed(1)]], ids=["sent", "answered"])
def test_a_benchmark_without_successful_requests_fails_the_check_of_answers(records):
    nothing = summarize(records, planned=2, gpus=1, concurrency=1)
    assert [item.name for item in judge(SmokeLimits(max_failures=2), nothing, None).failed] == ["answers"]


def test_a_latency_that_was_not_measured_fails_its_limit():
    short = summarize([request(tokens=1)], planned=1, gpus=1, concurrency=1)
    result = check(replace(NO_LIMITS, max_itl_p95_ms=10), short)
    assert (result.value, result.passed) == (None, False)


def test_remote_prefill_that_fell_back_or_that_no_server_confirms_fails_its_check():
    thresholds = replace(NO_LIMITS, min_remote_prefill_share=0.95)
    assert check(thresholds, proof=prove(router(10), prefill(10_000), decode(10_000))).passed
    fallback = check(thresholds, proof=prove(router(10), prefill(6_000), decode(6_000)))
    assert (fallback.passed, "silent fallback" in fallback.evidence) == (False, True)
    unproven = check(thresholds, proof=prove(router(10), None, None))
    assert (unproven.value, unproven.passed, "nothing is proven" in unproven.evidence) == (None, False, True)
