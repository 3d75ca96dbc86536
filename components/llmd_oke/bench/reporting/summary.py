"""A run in one plain structure: what `--json` prints and `summary.json` holds."""

from collections.abc import Sequence

from llmd_oke.bench.records.distributions import Statistics
from llmd_oke.bench.records.performance import Performance
from llmd_oke.bench.smoke.evidence import ApiAnswer, RemotePrefill
from llmd_oke.bench.smoke.smoke import SmokeResult
from llmd_oke.bench.smoke.thresholds import Verdict

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
        "ttft_ms": _milliseconds(performance.ttft),
        "itl_ms": _milliseconds(performance.itl),
        "tpot_ms": _milliseconds(performance.tpot),
        "e2e_ms": _milliseconds(performance.e2e),
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


def describe_checks(verdict: Verdict) -> list[Json]:
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
