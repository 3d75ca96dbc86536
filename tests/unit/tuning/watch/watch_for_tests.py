"""Deployments that were seen, and the forecast that they rest on, for tests."""

from typing import Any

from llmd_oke.results.row import Basis, Quantiles, Row
from llmd_oke.tuning.search.question import parse_targets
from llmd_oke.tuning.watch.assumptions import Assumption, limits, of_forecast
from llmd_oke.tuning.watch.judging import Judged, judge
from llmd_oke.tuning.watch.seen import Seen
from tuning_for_tests import row

TARGETS = parse_targets("ttft=2000,itl=25,qps=40")


def forecast(**changes: Any) -> Row:
    """40 requests/s of 4096/256, TTFT 300 ms, ITL 10 ms: with two servers 51 sequences in each."""
    fields: dict[str, Any] = {
        "basis": Basis.CALIBRATED,
        "input_tokens": 4096,
        "output_tokens": 256,
        "offered_requests_per_s": 40.0,
        "ttft_ms": Quantiles(mean=300.0),
        "itl_ms": Quantiles(mean=10.0),
    }
    return row("end-to-end", **{**fields, **changes})


def assumptions(*, targets: str = "ttft=2000,itl=25,qps=40", **changes: Any) -> tuple[Assumption, ...]:
    found = of_forecast(forecast(**changes), parse_targets(targets), 2, 0.25, 0.10)
    return (*found, *limits(256, 0.95))


def as_forecast(**changes: Any) -> Seen:
    """Exactly what was assumed, for ten minutes."""
    fields: dict[str, Any] = {
        "basis": Basis.MEASURED,
        "duration_s": 600.0,
        "answered": 24_000,
        "requests_per_s": 40.0,
        "input_tokens": 4096.0,
        "output_tokens": 256.0,
        "prefix_cache_hit_share": 0.0,
        "ttft_ms": 300.0,
        "itl_ms": 10.0,
        "running": 51.0,
        "most_running": 70.0,
        "waiting": 0.5,
        "kv_cache_usage": 0.3,
        "preemptions": 0.0,
        "remote_prefill_share": 1.0,
    }
    return Seen(**{**fields, **changes})


def judged(**changes: Any) -> tuple[Judged, ...]:
    return judge(assumptions(), as_forecast(**changes))


def verdicts(found: tuple[Judged, ...]) -> dict[str, str]:
    """What does not hold, by figure and kind."""
    return {
        f"{each.assumption.figure.name} {each.assumption.kind}": each.verdict.value
        for each in found
        if each.verdict != "holds"
    }
