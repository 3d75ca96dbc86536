from collections.abc import Callable

import pytest
from llmd_oke.testing import Rendered
from render_support import env, pod, vllm

TRACING = {"endpoint": "http://otel-collector:4317", "sampledShare": 0.25}
OLDER = {"override": {"router": "llm-d-0.6.0"}}
VARIABLES = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel-collector:4317",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.25",
}


@pytest.fixture
def traced(varied: Callable[..., Rendered]) -> Rendered:
    """The rehearsal's stack with traces of a quarter of its requests."""
    return varied(stack={"tracing": TRACING})


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_model_servers_export_traces_named_after_their_role(traced: Rendered, role: str) -> None:
    container = vllm(traced, f"gpt-oss-120b-{role}")
    assert "--otlp-traces-endpoint=http://otel-collector:4317" in container["args"]
    assert {**VARIABLES, "OTEL_SERVICE_NAME": f"gpt-oss-120b-{role}"}.items() <= env(container).items()


def test_the_endpoint_picker_exports_traces_under_its_own_name(traced: Rendered) -> None:
    (picker,) = [c for c in pod(traced, "gpt-oss-120b-epp")["spec"]["containers"] if c["name"] == "epp"]
    assert "--tracing=true" in picker["args"]
    assert "--tracing=false" not in picker["args"]
    assert {**VARIABLES, "OTEL_SERVICE_NAME": "gpt-oss-120b-epp"}.items() <= env(picker).items()


@pytest.mark.parametrize(("more", "flag"), [({}, True), (OLDER, False)], ids=["own sidecar", "one that always does"])
def test_the_routing_sidecar_exports_traces(
    varied: Callable[..., Rendered], more: dict[str, object], flag: bool
) -> None:
    rendered = varied(stack={"tracing": TRACING, **more})
    (sidecar,) = pod(rendered, "gpt-oss-120b-decode")["spec"]["initContainers"]
    assert ("--tracing" in sidecar["args"]) is flag
    assert {**VARIABLES, "OTEL_SERVICE_NAME": "gpt-oss-120b-routing-proxy"}.items() <= env(sidecar).items()


def test_a_stack_without_tracing_has_no_tracing_settings(rehearsal: Rendered) -> None:
    assert "OTEL_" not in str(rehearsal.manifests())
    assert "otlp" not in str(rehearsal.manifests())


def test_tracing_does_not_change_the_version_label_of_servers_that_share_kv_cache(
    traced: Rendered, rehearsal: Rendered
) -> None:
    versions = [
        pod(rendered, "gpt-oss-120b-decode")["metadata"]["labels"]["llmd-oke/version"]
        for rendered in (traced, rehearsal)
    ]
    assert versions[0] == versions[1]
