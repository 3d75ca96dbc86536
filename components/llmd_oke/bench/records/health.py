"""The load generator's own health: whether what was measured is the server's doing or its own.

All figures are of the wall clock, since it is this machine that is judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmd_oke.bench.records.percentiles import percentile

LATEST_MS = 5.0
"""How late the slowest hundredth of requests and of the loop's own ticks may be before latencies are in doubt."""

LATEST_SHARE = 0.05
"""The same as a share of the median time to first token: what is slow anyway isn't spoiled by some milliseconds."""

LEAST_SENT_SHARE = 0.97
"""Of the offered rate: a run that sent less was another run than the one asked for."""


@dataclass(frozen=True)
class Delay:
    """How late something was, in milliseconds."""

    mean: float
    p50: float
    p99: float
    max: float


def delay_of(late_s: Sequence[float]) -> Delay | None:
    """Summarise lateness in seconds; None without samples."""
    ordered = sorted(1000 * late for late in late_s)
    if not ordered:
        return None
    return Delay(sum(ordered) / len(ordered), percentile(ordered, 50), percentile(ordered, 99), ordered[-1])


@dataclass(frozen=True)
class Health:
    """How well the generator did its own work in one stage.

    - `slip_ms`: how much later than due requests were sent;
    - `loop_lag_ms`: how late its event loop woke up, which is how wrong its times can be;
    - `cpu_share`: of one core, for each process;
    - `offered_requests_per_s` and `sent_requests_per_s`: None in a closed loop, which offers no rate;
    - `abandoned`: requests that were given up because the run was interrupted; they have no record;
    - `spoiled`: why the figures of this stage say more of the generator than of the server, or None.
    """

    slip_ms: Delay | None = None
    loop_lag_ms: Delay | None = None
    cpu_share: tuple[float, ...] = ()
    offered_requests_per_s: float | None = None
    sent_requests_per_s: float | None = None
    abandoned: int = 0
    spoiled: str | None = None


def spoiled(health: Health, median_ttft_ms: float | None) -> str | None:
    """What spoiled a run, or None."""
    limit_ms = max(LATEST_MS, LATEST_SHARE * (median_ttft_ms or 0.0))
    found = [
        f"{what} {delay.p99:.1f} ms late (p99, limit {limit_ms:.1f} ms)"
        for what, delay in (("requests were sent", health.slip_ms), ("its event loop was", health.loop_lag_ms))
        if delay and delay.p99 > limit_ms
    ]
    offered, sent = health.offered_requests_per_s, health.sent_requests_per_s
    if offered and sent is not None and sent < LEAST_SENT_SHARE * offered:
        found.append(f"{sent:.1f} of {offered:.1f} requests/s were sent")
    if not found:
        return None
    busiest = f"; its busiest process took {max(health.cpu_share):.0%} of a core" if health.cpu_share else ""
    return "the load generator was too slow: " + ", ".join(found) + busiest
