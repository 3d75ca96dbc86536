"""Data model of the llm-d benchmark report, version 0.2: the fields that this kit writes or reads, with the format's
names.

The format allows no additional fields except in `results.observability` and in generic components. Sections that the
kit neither writes nor reads pass through unchecked. Source: llm-d-benchmark, docs/benchmark_report.md and its JSON
schema of version 0.2.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field

from llmd_bench.performance import Statistics, Units

VERSION = "0.2"


def _in_units(*accepted: Units) -> Callable[[Statistics], Statistics]:
    def check(statistics: Statistics) -> Statistics:
        if statistics.units not in accepted:
            raise ValueError(f"units are {statistics.units!r}, must be one of {', '.join(accepted)}")
        return statistics

    return check


Quantity = Annotated[Statistics, AfterValidator(_in_units("count", "pixels"))]
Duration = Annotated[Statistics, AfterValidator(_in_units("s", "ms"))]
TokenLatency = Annotated[Statistics, AfterValidator(_in_units("s/token", "ms/token"))]
TokenRate = Annotated[Statistics, AfterValidator(_in_units("tokens/s"))]
RequestRate = Annotated[Statistics, AfterValidator(_in_units("queries/s"))]
Json = dict[str, Any]


class Strict(BaseModel):
    """Base class of sections of the report that allow no additional fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunTime(Strict):
    """Start and end of the run; `duration` is ISO 8601 (`PT12.5S`)."""

    start: datetime | None = None
    end: datetime | None = None
    duration: str | None = None


class ReportedRun(Strict):
    """Identity of a run: `uid` identifies the report, `eid` the experiment, `cid` the cluster."""

    uid: str
    eid: str | None = None
    cid: str | None = None
    pid: str | None = None
    time: RunTime | None = None
    user: str | None = None
    description: str | None = None
    keywords: list[str] | None = None


class ComponentMetadata(Strict):
    """Label of a component; `cfg_id` is a hash of its configuration."""

    schema_version: str = "0.0.1"
    label: str
    cfg_id: str
    description: str | None = None


class Native(Strict):
    """Configuration of a component or of the load generator in the program's own format."""

    args: Json | None = None
    envars: Json | None = None
    config: Any = None


class ModelName(Strict):
    """Name of the served model."""

    name: str


class ReportedParallelism(Strict):
    """Parallelism of one inference engine (model server): numbers of ranks of each kind."""

    tp: int = Field(default=1, ge=0)
    dp: int = Field(default=1, ge=0)
    dp_local: int = Field(default=1, ge=0)
    workers: int = Field(default=1, ge=0)
    ep: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)


class Accelerator(Strict):
    """Accelerators of one replica: `count` is `tp * dp_local`, whatever `replicas` is, as in llm-d-benchmark's own
    converters.
    """

    model: str
    count: int = Field(ge=0)
    parallelism: ReportedParallelism


ReportedRole = Literal["replica", "prefill", "decode"]


class InferenceEngine(Strict):
    """Identical model servers; aggregated servers have the role `replica`."""

    kind: Literal["inference_engine"] = "inference_engine"
    tool: str
    tool_version: str
    role: ReportedRole
    replicas: int = Field(ge=1)
    model: ModelName
    accelerator: Accelerator


class Generic(BaseModel):
    """Program other than an inference engine, with any additional fields."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: Literal["generic"] = "generic"
    tool: str
    tool_version: str


class Component(Strict):
    """Component of the stack under test, such as model servers or a router."""

    metadata: ComponentMetadata
    standardized: Annotated[InferenceEngine | Generic, Discriminator("kind")]
    native: Native


class LoadMetadata(Strict):
    """Identifier and description of a workload."""

    schema_version: str = "0.0.1"
    cfg_id: str | None = None
    description: str | None = None


class SequenceLength(Strict):
    """Length of prompts or answers, in tokens."""

    distribution: Literal["fixed", "gaussian", "uniform", "other"]
    value: float = Field(ge=0)
    std_dev: float | None = Field(default=None, ge=0)
    min: int | None = Field(default=None, ge=0)
    max: int | None = Field(default=None, ge=1)


class StandardizedLoad(Strict):
    """Workload in the format's standardized fields. `concurrency` is an integer or infinite."""

    tool: str
    tool_version: str
    parallelism: int = Field(default=1, ge=1)
    source: Literal["random", "sampled", "unknown"]
    stage: int = Field(default=0, ge=0)
    input_seq_len: SequenceLength
    output_seq_len: SequenceLength | None = None
    prefix: Json | None = None
    multi_turn: Json | None = None
    rate_qps: float | None = Field(default=None, gt=0)
    concurrency: int | float | None = Field(default=None, ge=1)


class LoadSection(Strict):
    """Section of the report on the workload."""

    metadata: LoadMetadata
    standardized: StandardizedLoad
    native: Native


class Scenario(Strict):
    """Section of the report on the stack under test and its workload."""

    stack: list[Component] | None = None
    load: LoadSection | None = None


class AggregateRequests(Strict):
    """Request counts: `failures` are requests without a complete answer, `incomplete` the failures whose answer broke
    off.
    """

    total: int = Field(ge=0)
    failures: int | None = Field(default=None, ge=0)
    incomplete: int | None = Field(default=None, ge=0)
    input_length: Quantity | None = None
    output_length: Quantity | None = None


class AggregateLatency(Strict):
    """Latencies of all requests of a run; each states its units."""

    time_to_first_token: Duration | None = None
    normalized_time_per_output_token: TokenLatency | None = None
    time_per_output_token: TokenLatency | None = None
    inter_token_latency: TokenLatency | None = None
    request_latency: Duration | None = None


class AggregateThroughput(Strict):
    """Throughput of the whole stack under test, per second."""

    input_token_rate: TokenRate | None = None
    output_token_rate: TokenRate | None = None
    total_token_rate: TokenRate | None = None
    request_rate: RequestRate | None = None


class Aggregate(Strict):
    """Figures of all requests of a run together."""

    requests: AggregateRequests | None = None
    latency: AggregateLatency | None = None
    throughput: AggregateThroughput | None = None


class RequestPerformance(Strict):
    """Section of the report on the performance of requests as clients measured it."""

    aggregate: Aggregate | None = None
    time_series: Json | None = None


class Observability(BaseModel):
    """Section on data that the stack under test exposed. The format allows additional fields; `llmd_oke` is this
    kit's.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    llmd_oke: Json | None = None


class Results(Strict):
    """Section of the report on the results of the run."""

    request_performance: RequestPerformance | None = None
    session_performance: Json | None = None
    observability: Observability | None = None
    profiling: Any = None
    component_health: list[Json] | None = None


class BenchmarkReport(Strict):
    """llm-d benchmark report of version 0.2."""

    version: Literal["0.2"] = VERSION
    run: ReportedRun
    scenario: Scenario | None = None
    results: Results
