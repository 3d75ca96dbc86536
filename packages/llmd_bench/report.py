"""A smoke benchmark as a report in the llm-d benchmark report format, version 0.2, or as one plain structure.

What the format has no field for stands in `results.observability.llmd_oke`, the one section that takes further
fields: tokens per GPU and per user, the proof of remote prefill with its counters, the checks, and what the numbers
are.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

import yaml
from llmd_base.metrics import LATENCIES, RATES_IN_REPORTS, TOTAL_TOKENS
from pydantic import BaseModel

from llmd_bench import report_format as v02
from llmd_bench.deployment import ReportedServers, Role, RouterPart
from llmd_bench.evidence import ApiAnswer, RemotePrefill
from llmd_bench.performance import Performance, Statistics, single
from llmd_bench.smoke import SmokeResult
from llmd_bench.smoke_request import SmokeVerdict

Json = dict[str, object]


def summarize_result(result: SmokeResult) -> Json:
    """Everything of a run but its requests; times in its names' units and, where the plan has a time scale, in model
    time.
    """
    plan = result.plan
    return {
        "passed": result.passed,
        "model": plan.model,
        "topology": plan.topology.name,
        "gpus": plan.topology.gpus,
        "gpus_reserved": plan.topology.gpus_reserved,
        "load": describe_load(result),
        "provenance": provenance(result),
        "first_answer": result.first_answer.isoformat() if result.first_answer else None,
        "started": result.started.isoformat(),
        "ended": result.ended.isoformat(),
        "wall_s": result.wall_s,
        "performance": describe_performance(result.performance),
        "remote_prefill": describe_remote_prefill(result.remote_prefill),
        "other_apis": describe_other_apis(result.other_apis),
        "checks": describe_checks(result.verdict),
        "notes": list(result.notes),
        "facts": dict(plan.facts),
    }


def provenance(result: SmokeResult) -> Json:
    """What the numbers are: measured, calibrated or bound; on which clock; and what was not real."""
    plan = result.plan
    return {"numbers": plan.basis.value, "simulated": list(plan.simulated), "time_scale": plan.time_scale}


def describe_load(result: SmokeResult) -> Json:
    """What was sent."""
    plan = result.plan
    return {
        "shape": "closed loop",
        "requests": plan.requests,
        "concurrency": plan.concurrency,
        "input_tokens": plan.input_tokens,
        "output_tokens": plan.output_tokens,
        "warmup_requests": plan.warmup,
        "api": plan.api,
        "seed": plan.seed,
        "run": result.run,
        "ignore_eos": True,
        "temperature": 0,
    }


def describe_performance(performance: Performance) -> Json:
    """Latencies in ms, rates per second."""
    return {
        "requests": performance.requests,
        "failures": performance.failures,
        "incomplete": performance.incomplete,
        "failure_reasons": list(performance.failure_reasons),
        "duration_s": performance.duration_s,
        **{latency.name: _milliseconds(getattr(performance, latency.key)) for latency in LATENCIES},
        "requests_per_s": performance.requests_per_s,
        "input_tokens_per_s": performance.input_tokens_per_s,
        "output_tokens_per_s": performance.output_tokens_per_s,
        "total_tokens_per_s": performance.total_tokens_per_s,
        "tpsg": performance.tpsg,
        "tpsu": performance.tpsu,
        "tpsu_decode": performance.tpsu_decode,
        "users": performance.users,
    }


def describe_remote_prefill(proof: RemotePrefill | None) -> Json | None:
    """Shares, and the counters that they come from."""
    if proof is None:
        return None
    return {
        "share": proof.share,
        "by_endpoint_picker": proof.by_epp,
        "by_prefill_servers": proof.by_prefill,
        "by_decode_servers": proof.by_decode,
        "requests": proof.requests,
        "prompt_tokens": proof.prompt_tokens,
        "fallback_requests": proof.fallback_requests,
        "failed_prefills": proof.failed_prefills,
        "proven": proof.proven,
        "consistent": proof.consistent,
        "notes": list(proof.notes),
        "counters": {
            name: {"before": counter.before, "after": counter.after, "change": counter.value}
            for name, counter in proof.counters.items()
        },
    }


def describe_other_apis(answers: Sequence[ApiAnswer]) -> list[Json]:
    """One entry for each API that was asked once."""
    return [
        {
            "path": answer.path,
            "answered": answer.error is None,
            "error": answer.error,
            "prompt_tokens": answer.prompt_tokens,
            "disaggregated_by_endpoint_picker": answer.api.remote_prefill,
            "remote_prefill": describe_remote_prefill(answer.remote_prefill),
        }
        for answer in answers
    ]


def describe_checks(verdict: SmokeVerdict) -> list[Json]:
    """One entry for each threshold."""
    return [
        {
            "name": check.name,
            "bound": check.bound,
            "limit": check.limit,
            "value": check.value,
            "units": check.units,
            "passed": check.passed,
            "evidence": check.evidence,
        }
        for check in verdict.checks
    ]


def _milliseconds(statistics: Statistics | None) -> dict[str, float] | None:
    if statistics is None:
        return None
    values = statistics.model_dump(include={"mean", "p50", "p90", "p95", "p99", "max"}, exclude_none=True)
    return {name: 1000 * value for name, value in values.items()}


TOOL = "llmd-oke"

_ENGINE = "vllm"


def build_report(
    result: SmokeResult, *, experiment: str | None = None, cluster: str | None = None
) -> v02.BenchmarkReport:
    """The report of `result`; `experiment` and `cluster` are the ids that join it to others (`eid`, `cid`)."""
    plan = result.plan
    engines = [_engine(plan.model, plan.topology.accelerator, servers) for servers in plan.topology.servers]
    router = [_router_part(part) for part in plan.topology.router]
    return v02.BenchmarkReport(
        run=_run(result, experiment, cluster),
        scenario=v02.Scenario(stack=[*engines, *router], load=_load(result)),
        results=v02.Results(
            request_performance=v02.RequestPerformance(aggregate=_aggregate(result.performance)),
            observability=v02.Observability(llmd_oke=_own_facts(result)),
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
    roles: dict[Role, str] = {"prefill": "prefill", "decode": "decode", "aggregated": "replica"}
    native = v02.Native(args=dict(servers.args) or None, envars=dict(servers.env) or None)
    standardized = v02.InferenceEngine.model_validate(
        {
            "tool": _ENGINE,
            "tool_version": servers.image,
            "role": roles[servers.role],
            "replicas": servers.replicas,
            "model": {"name": model},
            "accelerator": {
                "model": accelerator,
                "count": servers.tensor_parallel_size,
                "parallelism": {"tp": servers.tensor_parallel_size},
            },
        }
    )
    identity = {**standardized.model_dump(mode="json"), **native.model_dump(mode="json")}
    metadata = v02.ComponentMetadata(label=f"{_ENGINE}-{servers.role}", cfg_id=_hash(identity))
    return v02.Component(metadata=metadata, standardized=standardized, native=native)


def _router_part(part: RouterPart) -> v02.Component:
    return v02.Component(
        metadata=v02.ComponentMetadata(
            label=part.label, cfg_id=_hash({"version": part.version, "config": part.config})
        ),
        standardized=v02.Generic(tool=part.tool, tool_version=part.version),
        native=v02.Native(config=part.config),
    )


def _load(result: SmokeResult) -> v02.LoadSection:
    plan, config = result.plan, describe_load(result)
    comparable = {name: value for name, value in config.items() if name != "run"}
    return v02.LoadSection(
        metadata=v02.LoadMetadata(cfg_id=_hash(comparable), description="unique random prompts of common words"),
        standardized=v02.StandardizedLoad(
            tool=TOOL,
            tool_version=_own_version(),
            source="random",
            input_seq_len=v02.SequenceLength(distribution="fixed", value=plan.input_tokens),
            output_seq_len=v02.SequenceLength(distribution="fixed", value=plan.output_tokens),
            concurrency=plan.concurrency,
        ),
        native=v02.Native(config=config),
    )


def _aggregate(performance: Performance) -> v02.Aggregate:
    return v02.Aggregate(
        requests=v02.AggregateRequests(
            total=performance.requests,
            failures=performance.failures,
            incomplete=performance.incomplete,
            input_length=performance.input_length,
            output_length=performance.output_length,
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


def _own_facts(result: SmokeResult) -> v02.Json:
    numbers = describe_performance(result.performance)
    topology = result.plan.topology
    return {
        "topology": topology.name,
        "gpus": topology.gpus,
        "gpus_reserved": topology.gpus_reserved,
        "provenance": provenance(result),
        "wall_s": result.wall_s,
        **{name: numbers[name] for name in ("tpsg", "tpsu", "tpsu_decode", "users", "failure_reasons")},
        "passed": result.passed,
        "checks": describe_checks(result.verdict),
        "remote_prefill": describe_remote_prefill(result.remote_prefill),
        "other_apis": describe_other_apis(result.other_apis),
        "metrics_errors": {reading.endpoint.pod: reading.error for reading in result.after.readings if reading.error},
        "notes": list(result.notes),
        "facts": dict(result.plan.facts),
    }


def _hash(config: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _own_version() -> str:
    try:
        return version(TOOL)
    except PackageNotFoundError:
        return "unknown"


def to_yaml(report: BaseModel) -> str:
    """The report as the YAML text of a report file, without empty fields."""
    return yaml.safe_dump(report.model_dump(mode="json", exclude_none=True), sort_keys=False, width=120)
