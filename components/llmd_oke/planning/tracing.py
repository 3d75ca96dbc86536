"""Traces of requests: where they go, and which programs of a release send none."""

from collections.abc import Iterator

from llmd_pods.errors import Problem

from llmd_oke.catalogue.releases import Release, release_names
from llmd_oke.catalogue.releases import release as known_release
from llmd_oke.config import StackConfig
from llmd_oke.planning.plan import TracingPlan
from llmd_oke.planning.releases import used_release


def tracing(config: StackConfig) -> TracingPlan | None:
    """Where traces go; None where nothing is traced."""
    asked = config.tracing
    return None if asked is None else TracingPlan(asked.endpoint, asked.sampled_share)


def tracing_problems(config: StackConfig) -> Iterator[Problem]:
    """Programs of which it isn't known that they can send traces."""
    release = used_release(config)
    if config.tracing is None or release is None:
        return
    if silent := list(_silent(config, release)):
        why = f"it is not known that traces are sent by {', '.join(silent)}"
        releases = ((name, known_release(name)) for name in release_names())
        able = [name for name, known in releases if known and not list(_silent(config, known))]
        yield Problem("tracing.endpoint", config.tracing.endpoint, f"nothing, or release {' or '.join(able)}", why)


def _silent(config: StackConfig, release: Release) -> Iterator[str]:
    routed = any(model.router.mode != "none" for model in config.models)
    if routed and not release.router.traces:
        yield f"endpoint picker {release.endpoint_picker.program.version}"
    if (
        any(model.topology.disaggregated for model in config.models)
        and release.routing_sidecar.tracing_arguments is None
    ):
        yield f"routing sidecar {release.routing_sidecar.program.version}"
    if not release.vllm.traces:
        yield f"vLLM of {release.vllm.image.reference}"
