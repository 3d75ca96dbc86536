"""The llm-d benchmark report, version 0.1: only read, since published results come in it. Unknown fields are kept."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from llmd_oke.bench.records.distributions import Statistics


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class LatencyV01(_Lenient):
    """Latencies of all requests."""

    time_to_first_token: Statistics
    normalized_time_per_output_token: Statistics | None = None
    time_per_output_token: Statistics | None = None
    inter_token_latency: Statistics | None = None
    request_latency: Statistics | None = None


class RequestsV01(_Lenient):
    """Requests and their lengths in tokens."""

    total: int
    failures: int | None = None
    incomplete: int | None = None
    input_length: Statistics
    output_length: Statistics


class ThroughputV01(_Lenient):
    """Rates of the whole stack."""

    total_tokens_per_sec: float
    input_tokens_per_sec: float | None = None
    output_tokens_per_sec: float | None = None
    requests_per_sec: float | None = None


class TimeV01(_Lenient):
    """`duration` is in seconds."""

    duration: float
    start: float | None = None
    stop: float | None = None


class MetricsV01(_Lenient):
    """What was found."""

    time: TimeV01
    requests: RequestsV01
    latency: LatencyV01
    throughput: ThroughputV01


class BenchmarkReportV01(_Lenient):
    """A report of version 0.1."""

    version: Literal["0.1"]
    scenario: dict[str, Any]
    metrics: MetricsV01
