"""The figures of a row that are compared, by the names that gates and tables use."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from llmd_oke.errors import KitError
from llmd_oke.results.row import Row

Better = Literal["more", "less"]

_LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}
_QUANTILES = ("mean", "p50", "p90", "p95", "p99", "p99p9", "max")


@dataclass(frozen=True)
class Metric:
    """One figure: its name (`ttft_ms.p95`), what to call it, its units, and which way is better."""

    name: str
    title: str
    units: str
    better: Better
    of: Callable[[Row], float | None]


def _failures_share(row: Row) -> float | None:
    return row.failures / row.requests if row.requests else None


def _latencies() -> Iterator[Metric]:
    for field, title in _LATENCIES.items():
        for quantile in _QUANTILES:
            yield Metric(f"{field}.{quantile}", f"{title} {quantile}", "ms", "less", _quantile(field, quantile))


def _quantile(field: str, quantile: str) -> Callable[[Row], float | None]:
    return lambda row: getattr(getattr(row, field), quantile)


_RATES = (
    Metric("output_tokens_per_s", "output", "tokens/s", "more", lambda row: row.output_tokens_per_s),
    Metric("input_tokens_per_s", "input", "tokens/s", "more", lambda row: row.input_tokens_per_s),
    Metric("achieved_requests_per_s", "requests", "/s", "more", lambda row: row.achieved_requests_per_s),
    Metric("tpsg", "TPSG", "tokens/s/GPU", "more", lambda row: row.tpsg),
    Metric("tpsu", "TPSU", "tokens/s/user", "more", lambda row: row.tpsu),
    Metric("tpsu_decode", "TPSU decode", "tokens/s/user", "more", lambda row: row.tpsu_decode),
    Metric("failures_share", "failures", "of requests", "less", _failures_share),
    Metric("goodput_share", "goodput", "of requests", "more", lambda row: row.goodput_share),
    Metric(
        "usd_per_million_output_tokens", "price", "$/1M tokens", "less", lambda row: row.usd_per_million_output_tokens
    ),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*_RATES, *_latencies())}
"""All of them by name."""

SHOWN: tuple[str, ...] = (
    "output_tokens_per_s",
    "achieved_requests_per_s",
    "tpsg",
    "tpsu",
    "tpsu_decode",
    *(f"{field}.{quantile}" for field in ("ttft_ms", "itl_ms", "e2e_ms") for quantile in ("mean", "p95", "p99")),
    "failures_share",
    "goodput_share",
    "usd_per_million_output_tokens",
)
"""What a table shows, as far as the rows have it."""


def metric(name: str) -> Metric:
    """The metric of a name.

    Raises:
        KitError: there is none; says which come close.
    """
    if name in METRICS:
        return METRICS[name]
    close = get_close_matches(name, METRICS, n=3, cutoff=0.5) or list(METRICS)
    raise KitError(f"There is no metric {name!r}.", f"Known are, for example, {', '.join(close)}.")
