"""What many samples of one quantity come to: the statistics of the llm-d benchmark report format."""

import math
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from llmd_oke.bench.records.percentiles import percentile

Units = Literal[
    "count", "pixels", "percent", "fraction", "ratio", "ms", "s",
    "bytes", "MB", "GB", "TB", "MiB", "GiB", "TiB",
    "Mbit/s", "Gbit/s", "Tbit/s", "MB/s", "GB/s", "TB/s", "GiB/s",
    "ms/token", "s/token", "tokens/s", "queries/s", "images/s", "videos/s", "audios/s", "Watts",
]  # fmt: skip
"""Units of the report format, spelled as it spells them."""


class Statistics(BaseModel):
    """A summary of samples. Field names are the report format's: `p0p1` is the 0.1th percentile, `p99p9` the 99.9th."""

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
    """Summarise `samples`; None when there are none. The standard deviation is the population's."""
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
    """A quantity that was measured once over the whole run, such as a throughput: a mean and nothing else."""
    return Statistics(units=units, mean=value)
