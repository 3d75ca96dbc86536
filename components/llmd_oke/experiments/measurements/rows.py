"""From what one measurement found to its row."""

from llmd_oke.bench.deployment.metrics import change
from llmd_oke.bench.reporting.rows import smoke_row
from llmd_oke.bench.smoke.evidence import VLLM_COUNTERS
from llmd_oke.bench.smoke.smoke import SmokeResult
from llmd_oke.experiments.recipes.schedule import Stage
from llmd_oke.experiments.runs.assignment import Assignment
from llmd_oke.results.row import Row

TOOL = "llmd-oke experiment"

_SUBJECTS = {"end-to-end": "end-to-end", "prefill-only": "prefill", "decode-only": "decode"}


def row_of(result: SmokeResult, stage: Stage, assignment: Assignment) -> Row:
    """The row of one stage of a deployment."""
    row = smoke_row(result)
    alone = assignment.subject != "end-to-end"
    origin = {
        "tool": TOOL,
        "file": f"{assignment.deployment}/{stage.name}/row.json",
        "run": f"{assignment.recipe}/{assignment.folder.name}",
    }
    return row.model_copy(
        update={
            "subject": _SUBJECTS[assignment.subject],
            "origin": row.origin.model_copy(update=origin),
            "tensor_parallel_size": result.plan.topology.servers[0].tensor_parallel_size if alone else None,
            "gpus_reserved": row.gpus_reserved or row.gpus_counted,
            "arrival": stage.arrival,
            "offered_requests_per_s": None if stage.concurrency else stage.level,
            "seed": stage.seed,
            "max_num_seqs": assignment.max_num_seqs,
            "prefix_cache_hit_share": _cached_share(result) if assignment.subject == "prefill-only" else None,
            "goodput_share": _goodput_share(result, assignment),
            "price_usd_per_hour": assignment.price_usd_per_hour,
        }
    )


def _cached_share(result: SmokeResult) -> float | None:
    """Share of the prompts' tokens that a prefix cache answered, by the servers' own counters."""
    cached = change(result.before, result.after, "aggregated", VLLM_COUNTERS.cached_tokens).value
    asked = sum(record.input_tokens for record in result.records if record.succeeded)
    return None if cached is None or not asked else cached / asked


def _goodput_share(result: SmokeResult, assignment: Assignment) -> float | None:
    """Share of requests with a first token and a mean gap within the targets."""
    ttft_ms, itl_ms = assignment.slo.ttft_ms, assignment.slo.itl_ms
    if (ttft_ms is None and itl_ms is None) or not result.records:
        return None
    good = [
        record
        for record in result.records
        if record.succeeded
        and (ttft_ms is None or 1000 * (record.ttft_s or 0) <= ttft_ms)
        and (itl_ms is None or 1000 * (record.tpot_s or 0) <= itl_ms)
    ]
    return len(good) / len(result.records)
