"""The generator's health in one stage, from what its processes told."""

from collections.abc import Sequence
from dataclasses import replace

from llmd_oke.bench.generator.crews import Findings
from llmd_oke.bench.records.health import Health, delay_of, spoiled
from llmd_oke.bench.records.percentiles import percentile
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.workload.shapes import ClosedLoop, LoadShape


def examine(records: Sequence[RequestRecord], shape: LoadShape, findings: Findings) -> Health:
    """Judge a stage by its `records`, in wall time."""
    is_open = not isinstance(shape, ClosedLoop)
    health = Health(
        slip_ms=delay_of([record.slip_s for record in records if record.slip_s is not None]),
        loop_lag_ms=delay_of(findings.lags_s),
        cpu_share=tuple(findings.cpu_share),
        offered_requests_per_s=_rate([record.due_s or 0.0 for record in records]) if is_open else None,
        sent_requests_per_s=_rate([record.started_s for record in records]) if is_open else None,
        abandoned=findings.abandoned,
    )
    ttfts_ms = sorted(1000 * record.ttft_s for record in records if record.ttft_s is not None)
    reasons = [*findings.lost, spoiled(health, percentile(ttfts_ms, 50) if ttfts_ms else None)]
    return replace(health, spoiled="; ".join(reason for reason in reasons if reason) or None)


def _rate(moments_s: Sequence[float]) -> float | None:
    """Of events at these moments; None for fewer than two different ones."""
    if not moments_s or max(moments_s) == min(moments_s):
        return None
    return (len(moments_s) - 1) / (max(moments_s) - min(moments_s))
