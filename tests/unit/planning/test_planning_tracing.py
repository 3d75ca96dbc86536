import pytest
from llmd_oke.planning.plan import TracingPlan
from stack_files import StackObject, model, paths, plan, problems

COLLECTOR = {"endpoint": "http://otel-collector:4317"}


def test_by_default_a_tenth_of_the_requests_is_traced():
    assert plan(tracing=COLLECTOR).tracing == TracingPlan("http://otel-collector:4317", 0.1)
    assert plan(tracing={**COLLECTOR, "sampledShare": 1}).tracing == TracingPlan("http://otel-collector:4317", 1.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("endpoint", "otel-collector:4317"),
        ("endpoint", "https://collector:4317"),
        ("endpoint", "http://collector"),
        ("endpoint", "http://collector:4317/v1/traces"),
        ("endpoint", "http://a@b:1"),
        ("sampledShare", 0),
        ("sampledShare", 1.5),
    ],
)
def test_an_invalid_collector_address_or_share_of_requests_is_refused(key: str, value: object):
    assert paths(tracing={**COLLECTOR, key: value}) == [f"tracing.{key}"]


@pytest.mark.parametrize(
    ("served", "release", "programs"),
    [
        (model(), "0.7.0", "endpoint picker v0.8.0, routing sidecar v0.8.0, vLLM of ghcr.io/llm-d/llm-d-rocm:v0.7.0"),
        (model("agg-tp1-2r", router={"mode": "none"}), "0.6.0", "vLLM of ghcr.io/llm-d/llm-d-rocm:v0.6.0"),
    ],
    ids=["all programs", "servers without a router"],
)
def test_tracing_is_refused_with_deployed_programs_not_known_to_export_traces(
    served: StackObject, release: str, programs: str
):
    found = problems(served, release=f"llm-d-{release}", tracing=COLLECTOR)
    (why,) = [problem.why for problem in found if problem.path == "tracing.endpoint"]
    assert why.endswith(f"traces are sent by {programs}")
