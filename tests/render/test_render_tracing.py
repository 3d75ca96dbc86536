from collections.abc import Callable

import pytest
from llmd_oke.testing import Rendered
from render_support import env, pod

TRACING = {"endpoint": "http://otel-collector:4317", "sampledShare": 0.25}
OLDER = {"override": {"router": "llm-d-0.6.0"}}
VARIABLES = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel-collector:4317",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.25",
}


@pytest.mark.parametrize(("more", "flag"), [({}, True), (OLDER, False)], ids=["own sidecar", "one that always does"])
def test_the_routing_sidecar_exports_traces(
    varied: Callable[..., Rendered], more: dict[str, object], flag: bool
) -> None:
    rendered = varied(stack={"tracing": TRACING, **more})
    (sidecar,) = pod(rendered, "gpt-oss-120b-decode")["spec"]["initContainers"]
    assert ("--tracing" in sidecar["args"]) is flag
    assert {**VARIABLES, "OTEL_SERVICE_NAME": "gpt-oss-120b-routing-proxy"}.items() <= env(sidecar).items()


def test_tracing_does_not_change_the_version_label_of_servers_that_share_kv_cache(
    varied: Callable[..., Rendered], rehearsal: Rendered
) -> None:
    versions = [
        pod(rendered, "gpt-oss-120b-decode")["metadata"]["labels"]["llmd-oke/version"]
        for rendered in (varied(stack={"tracing": TRACING}), rehearsal)
    ]
    assert versions[0] == versions[1]
