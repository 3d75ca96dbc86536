import pytest
from llmd_oke import planning
from llmd_oke.planning.plan import TracingPlan
from stack_files import model, plan, problems, stack

COLLECTOR = {"endpoint": "http://otel-collector:4317"}


def test_tracing_is_off_by_default():
    assert plan().tracing is None


def test_tracing_none_does_not_change_the_configuration_hash():
    traced = planning.plan_object(stack(tracing=COLLECTOR))
    assert traced.config_hash != planning.plan_object(stack()).config_hash


def test_by_default_a_tenth_of_the_requests_is_traced():
    assert plan(tracing=COLLECTOR).tracing == TracingPlan("http://otel-collector:4317", 0.1)
    assert plan(tracing={**COLLECTOR, "sampledShare": 1}).tracing == TracingPlan("http://otel-collector:4317", 1.0)


@pytest.mark.parametrize(
    "endpoint",
    [
        "otel-collector:4317",
        "https://collector:4317",
        "http://collector",
        "http://collector:4317/v1/traces",
        "http://a@b:1",
    ],
)
def test_an_invalid_collector_address_is_refused(endpoint: str):
    assert [problem.path for problem in problems(tracing={"endpoint": endpoint})] == ["tracing.endpoint"]


@pytest.mark.parametrize("share", [0, 1.5])
def test_an_invalid_share_of_traced_requests_is_refused(share: float):
    paths = [problem.path for problem in problems(tracing={**COLLECTOR, "sampledShare": share})]
    assert paths == ["tracing.sampledShare"]


def test_tracing_is_refused_with_programs_that_are_not_known_to_export_traces():
    (problem,) = [
        item for item in problems(release="llm-d-0.7.0", tracing=COLLECTOR) if item.path == "tracing.endpoint"
    ]
    for name in ("endpoint picker v0.8.0", "routing sidecar v0.8.0", "vLLM of ghcr.io/llm-d/llm-d-rocm:v0.7.0"):
        assert name in str(problem)


def test_a_sidecar_that_no_server_has_needs_no_tracing_support():
    aggregated = model("agg-tp1-2r", router={"mode": "none"})
    texts = [str(item) for item in problems(aggregated, release="llm-d-0.6.0", tracing=COLLECTOR)]
    (told,) = [text for text in texts if text.startswith("tracing")]
    assert "vLLM of" in told
    assert "sidecar" not in told
    assert "picker" not in told
