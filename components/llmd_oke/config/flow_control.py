"""Flow control in a model's routers: what waits there while servers are saturated, and for how long."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import ConfigPart, Items, is_absent

Priority = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
"""Of an InferenceObjective: higher ones first, and 0 for whoever has none."""


class PriorityBandConfig(ConfigPart):
    """Room for requests of one priority that wait. What comes while it is full is refused (429)."""

    priority: Priority
    """Priority that it is for: one that `frontDoor.priorities` has, or 0."""

    max_requests: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """Requests that wait; the endpoint picker's own limit if left out (5,000)."""

    max_mib: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """Size of the requests that wait, in MiB; the endpoint picker's own limit if left out (1 GB)."""


class FlowControlConfig(ConfigPart):
    """Flow control of an endpoint picker: while servers are saturated requests wait there and not in servers, those of
    higher priority go first, and clients of one priority take turns.
    """

    detector: Literal["utilization", "concurrency"] = "utilization"
    """What servers are found saturated by. `utilization`: their waiting requests and KV cache, as they report them.
    `concurrency`: requests that the endpoint picker has sent and that aren't answered, as in llm-d's guide."""

    max_concurrency: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """With `detector: concurrency`: requests under way at each server, on average over all."""

    queue_depth_threshold: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """With `detector: utilization`: waiting requests of a saturated server; 5 if left out."""

    kv_cache_util_threshold: Annotated[float | None, Field(gt=0, lt=1, exclude_if=is_absent)] = None
    """With `detector: utilization`: share of the KV cache in use of a saturated server; 0.8 if left out."""

    metrics_staleness_ms: Annotated[int | None, Field(ge=100, le=60_000, exclude_if=is_absent)] = None
    """With `detector: utilization`: age in milliseconds from which what a server reported is not believed any more, and
    it counts as saturated; 200 if left out."""

    request_ttl_s: Annotated[int, Field(ge=1, le=900)] = 60
    """Seconds that a request waits at most; then it is refused (503)."""

    priority_bands: Items[PriorityBandConfig] = ()
    """Limits of single priorities."""
