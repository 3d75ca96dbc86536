"""The benchmark that belongs to an update."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import Part, is_absent

Milliseconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class SmokeThresholds(Part):
    """What the smoke benchmark must reach; a figure that is left out is not judged."""

    max_failures: Annotated[int, Field(ge=0)] = 0
    """Requests that may fail."""

    min_remote_prefill_share: Share = 0.95
    """Share of uncached prompts that prefill servers must have computed. Judged for disaggregated models behind a
    router only."""

    max_ttft_p95_ms: Milliseconds | None = None
    """95th percentile of the time to first token in milliseconds."""

    max_itl_p95_ms: Milliseconds | None = None
    """95th percentile of the inter-token latency in milliseconds."""

    max_e2e_p95_ms: Milliseconds | None = None
    """95th percentile of the whole request in milliseconds."""

    min_accuracy: Annotated[Share | None, Field(exclude_if=is_absent)] = None
    """Share of the kit's own questions with known answers (those of `llmd-oke eval`) that are answered right. If left
    out, they are asked only where something changes answers (`override.quickReduce`, another attention backend), and
    held against the kit's floor."""

    min_output_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    """Output tokens per second of the whole model."""


class Smoke(Part):
    """A short closed-loop benchmark of every model, with the lengths of its workload."""

    where: Literal["cluster", "client", "none"] = "cluster"
    """`cluster`: a Job is part of the deployment, runs when what it measures has changed, and fails the update where a
    threshold is missed. `client`: the command benchmarks from its own machine after each update. `none`: only
    `llmd-oke smoke` does."""

    requests: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Measured requests."""

    concurrency: Annotated[int, Field(ge=1, le=4096)] = 8
    """Requests in flight."""

    timeout_s: Annotated[int, Field(ge=1)] = 600
    """Limit of the whole benchmark of one model in seconds."""

    thresholds: SmokeThresholds = SmokeThresholds()
    """What makes the benchmark, and with it the command, fail."""
