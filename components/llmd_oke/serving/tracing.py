"""Traces of requests: what endpoint pickers, routing sidecars and vLLM are told by environment variables."""

from llmd_oke.serving.args import TracingArgs


def environment(service: str, tracing: TracingArgs | None) -> dict[str, str]:
    """The variables by name (llm-d guides, recipes/observability/tracing); none where nothing is traced.

    Args:
        service: what the program is called in traces.
        tracing: where they go.
    """
    if tracing is None:
        return {}
    return {
        "OTEL_SERVICE_NAME": service,
        "OTEL_EXPORTER_OTLP_ENDPOINT": tracing["endpoint"],
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": f"{tracing['sampled_share']:g}",
    }
