"""Summary of a run's requests: latencies, throughput, and throughput per GPU and per user.

Distributions have the statistics of the llm-d benchmark report format.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from llmd_base.metrics import LATENCIES
from pydantic import BaseModel, ConfigDict, Field

from llmd_bench.load.records import STARTED_BUT_UNFINISHED, RequestRecord, percentile

Units = Literal[
    "count", "pixels", "percent", "fraction", "ratio", "ms", "s",
    "bytes", "MB", "GB", "TB", "MiB", "GiB", "TiB",
    "Mbit/s", "Gbit/s", "Tbit/s", "MB/s", "GB/s", "TB/s", "GiB/s",
    "ms/token", "s/token", "tokens/s", "queries/s", "images/s", "videos/s", "audios/s", "Watts",
]  # fmt: skip
"""Units of the llm-d benchmark report format, in its spelling."""


class Statistics(BaseModel):
    """Summary of samples. Field names are the report format's: `p0p1` is the 0.1th percentile, `p99p9` the 99.9th."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    units: Units
    mean: float
    mode: float | None = None
    stddev: float | None = Field(default=None, ge=0)
    min: float | None = None
    p0p1: float | None = None
    p1: float | None = None
    p5: float | None = None
    p10: float | None = None
    p25: float | None = None
    p50: float | None = None
    p75: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p99p9: float | None = None
    max: float | None = None


def describe(samples: Iterable[float], units: Units) -> Statistics | None:
    """Return a summary of the samples, with the population's standard deviation; None without samples."""
    ordered = sorted(samples)
    if not ordered:
        return None
    mean = min(max(math.fsum(ordered) / len(ordered), ordered[0]), ordered[-1])
    return Statistics(
        units=units,
        mean=mean,
        stddev=math.sqrt(math.fsum((sample - mean) ** 2 for sample in ordered) / len(ordered)),
        min=ordered[0],
        p0p1=percentile(ordered, 0.1),
        p1=percentile(ordered, 1),
        p5=percentile(ordered, 5),
        p10=percentile(ordered, 10),
        p25=percentile(ordered, 25),
        p50=percentile(ordered, 50),
        p75=percentile(ordered, 75),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        p99p9=percentile(ordered, 99.9),
        max=ordered[-1],
    )


def single(value: float, units: Units) -> Statistics:
    """Return the summary of a quantity that was measured once over the whole run, such as throughput: only a mean."""
    return Statistics(units=units, mean=value)


@dataclass(frozen=True)
class Performance:
    """Measurements over the successful requests of a run, in simulated seconds (wall seconds / time scale); None for a
    quantity without measurements.

    - `tpsg`: output tokens/s of the run divided by the number of GPUs.
    - `tpsu`: output tokens/s of the run divided by the number of users (requests in flight), so that waiting and
      prefill count. The Pareto charts of llm-d show this quantity.
    - `tpsu_decode`: 1 / mean TPOT, the speed of a text once it has begun, as in `Row`.
    """

    planned: int
    requests: int
    failures: int
    incomplete: int
    failure_reasons: tuple[str, ...]
    duration_s: float
    ttft: Statistics | None
    itl: Statistics | None
    tpot: Statistics | None
    normalized_tpot: Statistics | None
    e2e: Statistics | None
    input_length: Statistics | None
    output_length: Statistics | None
    input_tokens: int
    output_tokens: int
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    users: float
    gpus: int
    tpsg: float
    tpsu: float
    tpsu_decode: float | None
    tokens_per_event: float

    @property
    def total_tokens_per_s(self) -> float:
        """Rate of input and output tokens together, per second."""
        return self.input_tokens_per_s + self.output_tokens_per_s


def summarize(
    records: Sequence[RequestRecord], *, planned: int, gpus: int, concurrency: int | None = None
) -> Performance:
    """Return the summary of `records` on `gpus` GPUs; times are in simulated seconds (wall seconds / time scale).
    `concurrency` is the number of users of a closed loop; if None, users are the mean number of requests in flight
    (Little's law).
    """
    good = [record for record in records if record.succeeded]
    bad = [record for record in records if not record.succeeded]
    first_s = min((record.started_s for record in records), default=0.0)
    duration_s = max((record.started_s + record.latency_s for record in records), default=0.0) - first_s
    input_tokens = sum(record.input_tokens for record in good)
    output_tokens = sum(record.output_tokens for record in good)
    in_flight = _rate(sum(record.latency_s for record in good), duration_s)
    users = in_flight if concurrency is None else float(min(concurrency, planned))
    output_tokens_per_s = _rate(output_tokens, duration_s)
    latencies = {latency.key: describe(latency.samples_of(good), latency.units) for latency in LATENCIES}
    tpot = latencies["tpot"]
    reasons = Counter(f"{record.failure}: {record.error}" for record in bad)
    return Performance(
        planned=planned,
        requests=len(records),
        failures=len(bad),
        incomplete=sum(record.failure in STARTED_BUT_UNFINISHED for record in bad),
        failure_reasons=tuple(f"{count} x {reason}" for reason, count in reasons.most_common()),
        duration_s=duration_s,
        ttft=latencies["ttft"],
        itl=latencies["itl"],
        tpot=tpot,
        normalized_tpot=describe(
            (value for record in good if (value := record.normalized_tpot_s) is not None), "s/token"
        ),
        e2e=latencies["e2e"],
        input_length=describe((record.input_tokens for record in good), "count"),
        output_length=describe((record.output_tokens for record in good), "count"),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        requests_per_s=_rate(len(good), duration_s),
        input_tokens_per_s=_rate(input_tokens, duration_s),
        output_tokens_per_s=output_tokens_per_s,
        users=users,
        gpus=gpus,
        tpsg=_rate(output_tokens_per_s, gpus),
        tpsu=_rate(output_tokens_per_s, users),
        tpsu_decode=1 / tpot.mean if tpot and tpot.mean else None,
        tokens_per_event=_rate(output_tokens, sum(len(record.event_times_s) for record in good)),
    )


def _rate(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
