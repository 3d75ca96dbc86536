"""A run as a report in the llm-d benchmark report format, version 0.2.

What the format has no field for stands in `results.observability.llmd_oke`, the one section that takes further
fields: tokens per GPU and per user, the proof of remote prefill with its counters, the checks, and what the numbers
are.
"""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from llmd_oke.bench.deployment.topology import Role, RouterPart, Servers
from llmd_oke.bench.records.distributions import single
from llmd_oke.bench.records.performance import Performance
from llmd_oke.bench.reporting import format as v02
from llmd_oke.bench.reporting.summary import (
    describe_checks,
    describe_load,
    describe_other_apis,
    describe_performance,
    describe_remote_prefill,
    provenance,
)
from llmd_oke.bench.smoke.smoke import SmokeResult

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


def _run(result: SmokeResult, experiment: str | None, cluster: str | None) -> v02.Run:
    return v02.Run(
        uid=result.run,
        eid=experiment,
        cid=cluster,
        time=v02.RunTime(start=result.started, end=result.ended, duration=f"PT{result.performance.duration_s:.6f}S"),
        description=_describe(result),
        keywords=_keywords(result),
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


def _keywords(result: SmokeResult) -> list[str]:
    plan = result.plan
    words = [TOOL, "smoke", plan.topology.name, f"provenance={plan.basis}"]
    return [*words, *(["simulated"] if plan.simulated else []), f"time_scale={plan.time_scale:g}"]


def _engine(model: str, accelerator: str, servers: Servers) -> v02.Component:
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
    metadata = v02.Metadata(label=f"{_ENGINE}-{servers.role}", cfg_id=_hash(identity))
    return v02.Component(metadata=metadata, standardized=standardized, native=native)


def _router_part(part: RouterPart) -> v02.Component:
    return v02.Component(
        metadata=v02.Metadata(label=part.label, cfg_id=_hash({"version": part.version, "config": part.config})),
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
            time_to_first_token=performance.ttft,
            normalized_time_per_output_token=performance.normalized_tpot,
            time_per_output_token=performance.tpot,
            inter_token_latency=performance.itl,
            request_latency=performance.e2e,
        ),
        throughput=v02.AggregateThroughput(
            input_token_rate=single(performance.input_tokens_per_s, "tokens/s"),
            output_token_rate=single(performance.output_tokens_per_s, "tokens/s"),
            total_token_rate=single(performance.total_tokens_per_s, "tokens/s"),
            request_rate=single(performance.requests_per_s, "queries/s"),
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
        "metrics_errors": {each.endpoint.pod: each.error for each in result.after.readings if each.error},
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
