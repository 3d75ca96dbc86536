"""Flow control in a model's router: queues for requests while servers are saturated."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import ConfigPart, Items, is_absent

Priority = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
"""Priority of an InferenceObjective: requests with a higher one go first; those without an objective have 0."""


class PriorityBandConfig(ConfigPart):
    """Queue limits for requests of one priority. Requests that arrive while the queue is full are refused (429)."""

    priority: Priority
    """Priority of the queue: one from `frontDoor.priorities`, or 0."""

    max_requests: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """Maximum number of queued requests; the endpoint picker's default if left out (5,000)."""

    max_mib: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """Maximum size of all queued requests in MiB; the endpoint picker's default if left out (1 GB)."""


class FlowControlConfig(ConfigPart):
    """Flow control of an endpoint picker: while servers are saturated, requests wait in the endpoint picker instead of
    in servers, those with higher priority go first, and clients with equal priority take turns.
    """

    detector: Literal["utilization", "concurrency"] = "utilization"
    """Detector of saturated servers. `utilization`: by the waiting requests and KV cache usage that servers report.
    `concurrency`: by the unanswered requests that the endpoint picker has sent, as in llm-d's guide.
    """

    max_concurrency: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """With `detector: concurrency`: number of requests in flight per server, averaged over all servers, from which they
    count as saturated.
    """

    queue_depth_threshold: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """With `detector: utilization`: number of waiting requests from which a server counts as saturated; 5 if left out.
    """

    kv_cache_util_threshold: Annotated[float | None, Field(gt=0, lt=1, exclude_if=is_absent)] = None
    """With `detector: utilization`: used share of the KV cache from which a server counts as saturated; 0.8 (80 %) if
    left out.
    """

    metrics_staleness_ms: Annotated[int | None, Field(ge=100, le=60_000, exclude_if=is_absent)] = None
    """With `detector: utilization`: age in milliseconds from which a server's last report is ignored and the server
    counts as saturated; 200 if left out.
    """

    request_ttl_s: Annotated[int, Field(ge=1, le=900)] = 60
    """Maximum time in seconds that a request waits; it is then refused (429, up to llm-d-0.7.0 503)."""

    priority_bands: Items[PriorityBandConfig] = ()
    """Queue limits for single priorities."""
