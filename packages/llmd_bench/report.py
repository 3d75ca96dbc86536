"""Report of a smoke benchmark in the llm-d benchmark report format, version 0.2, and as a plain JSON summary.

Figures without a field in the format are in `results.observability.llmd_oke`, the only section that allows additional
fields: throughput per GPU and per user, the proof of remote prefill with its counters, the checks, and the basis of the
figures.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import yaml
from llmd_base.metrics import LATENCIES, RATES_IN_REPORTS, TOTAL_TOKENS
from llmd_base.records import document
from llmd_base.row import Basis
from pydantic import AliasPath, BaseModel, BeforeValidator, Field, PlainSerializer

from llmd_bench import report_format as v02
from llmd_bench.deployment import Parallelism, ReportedServers, Role
from llmd_bench.performance import Performance, Statistics, single
from llmd_bench.smoke import SmokePlan, SmokeResult
from llmd_bench.summaries import SummarySection

Json = dict[str, object]
Number = int | float
"""Number of a JSON summary, in which integers stay integers."""

Moment = Annotated[datetime, PlainSerializer(lambda moment: moment.isoformat(), return_type=str)]


class LoadSummary(SummarySection):
    """Load of a smoke benchmark as JSON. Each prompt depends on `run`, so that no two runs send equal prompts."""

    shape: str = "closed loop"
    requests: int
    concurrency: int
    input_tokens: int
    output_tokens: int
    warmup_requests: int = Field(validation_alias="warmup")
    api: str
    seed: int
    run: str = ""
    ignore_eos: bool = True
    temperature: int = 0


class Provenance(SummarySection):
    """Origin of a smoke benchmark's figures as JSON: basis, simulated parts, and time scale (wall seconds for each
    simulated second).
    """

    numbers: Basis = Field(validation_alias="basis")
    simulated: tuple[str, ...]
    time_scale: float


def _milliseconds(statistics: Statistics | None) -> dict[str, float] | None:
    if statistics is None:
        return None
    values = statistics.model_dump(include={"mean", "p50", "p90", "p95", "p99", "max"}, exclude_none=True)
    return {name: 1000 * value for name, value in values.items()}


Milliseconds = Annotated[dict[str, float] | None, BeforeValidator(_milliseconds)]
"""Statistics of a latency in milliseconds, converted from seconds."""


class PerformanceSummary(SummarySection):
    """Summary of a run's requests as JSON: latencies in milliseconds, rates per second."""

    requests: int
    failures: int
    incomplete: int
    failure_reasons: tuple[str, ...]
    duration_s: float
    ttft_ms: Milliseconds = Field(validation_alias="ttft")
    itl_ms: Milliseconds = Field(validation_alias="itl")
    tpot_ms: Milliseconds = Field(validation_alias="tpot")
    e2e_ms: Milliseconds = Field(validation_alias="e2e")
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    tpsg: float
    tpsu: float
    tpsu_decode: float | None
    users: float


class CounterSummary(SummarySection):
    """Value of a counter before and after a run, and its increase, as JSON."""

    before: Number | None
    after: Number | None
    change: Number | None = Field(validation_alias="value")


class RemotePrefillSummary(SummarySection):
    """Share of the uncached prompts that prefill servers computed, as JSON, with the counters that prove it."""

    share: float | None
    by_endpoint_picker: float | None = Field(validation_alias="by_epp")
    by_prefill_servers: float | None = Field(validation_alias="by_prefill")
    by_decode_servers: float | None = Field(validation_alias="by_decode")
    requests: int
    prompt_tokens: int
    fallback_requests: int
    failed_prefills: int | None
    proven: bool
    consistent: bool
    notes: tuple[str, ...]
    counters: dict[str, CounterSummary]


class ApiSummary(SummarySection):
    """Result of the single request to one of the model's other APIs as JSON."""

    path: str
    answered: bool
    error: str | None
    prompt_tokens: int
    disaggregated_by_endpoint_picker: bool | None = Field(validation_alias=AliasPath("api", "remote_prefill"))
    remote_prefill: RemotePrefillSummary | None


class CheckSummary(SummarySection):
    """Limit of one figure with the measured value, as JSON."""

    name: str
    bound: str
    limit: Number
    value: Number | None
    units: str
    passed: bool
    evidence: str


class SmokeSummary(SummarySection):
    """Result of a smoke benchmark without its requests as JSON, the content of `summary.json`."""

    passed: bool
    model: str = Field(validation_alias=AliasPath("plan", "model"))
    topology: str = Field(validation_alias=AliasPath("plan", "topology", "name"))
    gpus: int = Field(validation_alias=AliasPath("plan", "topology", "gpus"))
    gpus_reserved: int | None = Field(validation_alias=AliasPath("plan", "topology", "gpus_reserved"))
    load: LoadSummary = Field(validation_alias="plan")
    provenance: Provenance = Field(validation_alias="plan")
    first_answer: Moment | None
    started: Moment
    ended: Moment
    wall_s: float
    performance: PerformanceSummary
    remote_prefill: RemotePrefillSummary | None
    other_apis: tuple[ApiSummary, ...]
    checks: tuple[CheckSummary, ...] = Field(validation_alias=AliasPath("verdict", "checks"))
    notes: tuple[str, ...]
    facts: dict[str, object] = Field(validation_alias=AliasPath("plan", "facts"))


def _summary(result: SmokeResult) -> SmokeSummary:
    summary = SmokeSummary.model_validate(result)
    return summary.model_copy(update={"load": summary.load.model_copy(update={"run": result.run})})


def summarize_result(result: SmokeResult) -> Json:
    """Return the result of a smoke benchmark without its requests as plain JSON. Units are in the names; times are
    simulated seconds (wall seconds / time scale) if servers were simulated.
    """
    return _summary(result).model_dump(mode="json")


TOOL = "llmd-oke"

_ENGINE = "vllm"


def build_report(
    result: SmokeResult, *, experiment: str | None = None, cluster: str | None = None
) -> v02.BenchmarkReport:
    """Return the report of `result`; `experiment` and `cluster` are the identifiers (`eid`, `cid`) by which reports are
    linked to others.
    """
    plan = result.plan
    engines = [_engine(plan.model, plan.topology.accelerator, servers) for servers in plan.topology.servers]
    router = [
        v02.Component(
            metadata=v02.ComponentMetadata(
                label=part.label, cfg_id=_hash({"version": part.version, "config": part.config})
            ),
            standardized=v02.Generic(tool=part.tool, tool_version=part.version),
            native=v02.Native(config=part.config),
        )
        for part in plan.topology.router
    ]
    summary = _summary(result)
    per_gpu_and_user = {"tpsg", "tpsu", "tpsu_decode", "users", "failure_reasons"}
    own_facts = {
        **summary.model_dump(exclude={"model", "load", "first_answer", "started", "ended", "performance"}),
        **summary.performance.model_dump(include=per_gpu_and_user),
        "metrics_errors": {reading.endpoint.pod: reading.error for reading in result.after.readings if reading.error},
    }
    return v02.BenchmarkReport(
        run=_run(result, experiment, cluster),
        scenario=v02.Scenario(stack=[*engines, *router], load=_load(plan, summary.load)),
        results=v02.Results(
            request_performance=v02.RequestPerformance(aggregate=_aggregate(result.performance)),
            observability=v02.Observability(llmd_oke=own_facts),
        ),
    )


def _run(result: SmokeResult, experiment: str | None, cluster: str | None) -> v02.ReportedRun:
    plan = result.plan
    return v02.ReportedRun(
        uid=result.run,
        eid=experiment,
        cid=cluster,
        time=v02.RunTime(start=result.started, end=result.ended, duration=f"PT{result.performance.duration_s:.6f}S"),
        description=_describe(result),
        keywords=[
            *(TOOL, "smoke", plan.topology.name, f"provenance={plan.basis}"),
            *(["simulated"] if plan.simulated else []),
            f"time_scale={plan.time_scale:g}",
        ],
    )


def _describe(result: SmokeResult) -> str:
    plan = result.plan
    sentences = [
        f"Smoke benchmark of {plan.model}, {plan.topology.name}, {plan.topology.gpus} GPUs.",
        f"Numbers are {plan.basis}.",
    ]
    if plan.simulated:
        sentences.append(f"Simulated: {', '.join(plan.simulated)}.")
    if plan.time_scale != 1:
        sentences.append(
            f"Time scale {plan.time_scale:g}: latencies, rates and duration are wall time divided by it; "
            "start and end are wall time."
        )
    return " ".join(sentences)


def _engine(model: str, accelerator: str, servers: ReportedServers) -> v02.Component:
    roles: dict[Role, v02.ReportedRole] = {"prefill": "prefill", "decode": "decode", "aggregated": "replica"}
    native = v02.Native(args=dict(servers.args) or None, envars=dict(servers.env) or None)
    standardized = v02.InferenceEngine(
        tool=_ENGINE,
        tool_version=servers.image,
        role=roles[servers.role],
        replicas=servers.replicas,
        model=v02.ModelName(name=model),
        accelerator=v02.Accelerator(
            model=accelerator,
            count=servers.parallelism.gpus,
            parallelism=_parallelism(servers.parallelism),
        ),
    )
    identity = {**standardized.model_dump(mode="json"), **native.model_dump(mode="json")}
    metadata = v02.ComponentMetadata(label=f"{_ENGINE}-{servers.role}", cfg_id=_hash(identity))
    return v02.Component(metadata=metadata, standardized=standardized, native=native)


def _parallelism(spread: Parallelism) -> v02.ReportedParallelism:
    ranks = spread.data_parallel_size
    experts = spread.gpus if spread.expert_parallel else 1
    return v02.ReportedParallelism(tp=spread.tensor_parallel_size, dp=ranks, dp_local=ranks, ep=experts)


def _load(plan: SmokePlan, load: LoadSummary) -> v02.LoadSection:
    try:
        own_version = version(TOOL)
    except PackageNotFoundError:
        own_version = "unknown"
    return v02.LoadSection(
        metadata=v02.LoadMetadata(
            cfg_id=_hash(load.model_dump(exclude={"run"})), description="unique random prompts of common words"
        ),
        standardized=v02.StandardizedLoad(
            tool=TOOL,
            tool_version=own_version,
            source="random",
            input_seq_len=v02.SequenceLength(distribution="fixed", value=plan.input_tokens),
            output_seq_len=v02.SequenceLength(distribution="fixed", value=plan.output_tokens),
            concurrency=plan.concurrency,
        ),
        native=v02.Native(config=load.model_dump()),
    )


def _aggregate(performance: Performance) -> v02.Aggregate:
    return v02.Aggregate(
        requests=v02.AggregateRequests(
            total=performance.requests,
            **document("failures incomplete input_length output_length", performance),
        ),
        latency=v02.AggregateLatency(
            normalized_time_per_output_token=performance.normalized_tpot,
            **{latency.report: getattr(performance, latency.key) for latency in LATENCIES},
        ),
        throughput=v02.AggregateThroughput(
            **{
                rate.v02: single(getattr(performance, rate.performance), rate.units)
                for rate in (*RATES_IN_REPORTS.values(), TOTAL_TOKENS)
            }
        ),
    )


def _hash(config: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:32]


def to_yaml(report: BaseModel) -> str:
    """Return the report as YAML text without empty fields."""
    return yaml.safe_dump(report.model_dump(mode="json", exclude_none=True), sort_keys=False, width=120)
