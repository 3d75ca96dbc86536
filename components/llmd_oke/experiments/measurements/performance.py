"""What a stage comes to: all of its requests, or those of its steady state."""

from dataclasses import replace

from llmd_oke.bench.load.stage import StageResult
from llmd_oke.bench.records.performance import Performance, summarize
from llmd_oke.experiments.recipes.schedule import Stage


def of_all(result: StageResult, stage: Stage, gpus: int) -> Performance:
    """From the first request to the last answer."""
    return summarize(result.records, planned=stage.requests, gpus=gpus, concurrency=stage.concurrency)


def of_window(result: StageResult, stage: Stage, gpus: int) -> Performance:
    """In the window alone: latencies of the requests that were sent in it, rates of what came in it.

    Numbers of requests and of failures stay those of the whole stage.
    """
    whole = of_all(result, stage, gpus)
    duration_s = result.window.duration_s
    if not stage.steady_state or not duration_s or not result.counted:
        return whole
    counted = summarize(result.counted, planned=stage.requests, gpus=gpus, concurrency=stage.concurrency)
    users = stage.concurrency or result.concurrency
    return replace(
        counted,
        requests=whole.requests,
        failures=whole.failures,
        incomplete=whole.incomplete,
        failure_reasons=whole.failure_reasons,
        duration_s=duration_s,
        requests_per_s=result.requests_per_s,
        input_tokens_per_s=counted.input_tokens / duration_s,
        output_tokens_per_s=result.output_tokens_per_s,
        users=users,
        tpsg=result.output_tokens_per_s / gpus,
        tpsu=result.output_tokens_per_s / users if users else 0.0,
    )
