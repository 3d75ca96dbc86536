"""Table of all metrics: names, units, better direction, formulas, titles, and field names in reports.

Reports, rows, comparisons, gates and tables read this table: a new metric is one line here, and a field of `Row` unless
it is computed from other fields.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from typing import Literal, Protocol

from llmd_base.errors import KitError
from llmd_base.row import Quantiles, Row

Better = Literal["more", "less"]

_QUANTILES = ("mean", "p50", "p90", "p95", "p99", "p99p9", "max")
_QUANTILES_IN_TABLES = frozenset({"mean", "p95", "p99"})


class RequestTimes(Protocol):
    """Durations of one request in seconds; None if the request ended before the event that the duration runs to."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending the request to its first token."""
        ...

    @property
    def gaps_s(self) -> Iterable[float]:
        """Seconds between consecutive tokens of the answer."""
        ...

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds between consecutive tokens of the answer."""
        ...

    @property
    def latency_s(self) -> float | None:
        """Seconds from sending the request to its last token."""
        ...


@dataclass(frozen=True)
class Latency:
    """Definition of a latency whose distribution, in milliseconds, is the field `name` of `Row`.

    Attributes:
        name: field of `Row`.
        title: short title in tables.
        meaning: explanation of the title.
        report: name in llm-d benchmark reports, versions 0.1 and 0.2, and in results of inference-perf.
        units: units in the reports that this kit writes.
        samples_s: function that returns the samples in seconds that one request adds to the distribution.
        in_tables: whether tables of comparisons show the latency.
    """

    name: str
    title: str
    meaning: str
    report: str
    units: Literal["s", "s/token"]
    samples_s: Callable[[RequestTimes], Iterable[float | None]]
    in_tables: bool = True

    @property
    def key(self) -> str:
        """Name of the field of `Performance` with this latency: the name without its unit suffix, such as `ttft` for
        `ttft_ms`.
        """
        return self.name.removesuffix("_ms")

    def of(self, row: Row) -> Quantiles:
        """Return the distribution of this latency in a row, in milliseconds."""
        return getattr(row, self.name)

    def samples_of(self, records: Iterable[RequestTimes]) -> list[float]:
        """Return the samples of this latency over all requests, in seconds."""
        return [value for record in records for value in self.samples_s(record) if value is not None]


LATENCIES = (
    Latency("ttft_ms", "TTFT", "time to first token", "time_to_first_token", "s", lambda record: (record.ttft_s,)),
    Latency("itl_ms", "ITL", "between tokens", "inter_token_latency", "s/token", lambda record: record.gaps_s),
    Latency(
        "tpot_ms",
        "TPOT",
        "per output token",
        "time_per_output_token",
        "s/token",
        lambda record: (record.tpot_s,),
        in_tables=False,
    ),
    Latency("e2e_ms", "E2E", "whole request", "request_latency", "s", lambda record: (record.latency_s,)),
)
"""Latencies in the order of tables and charts."""


@dataclass(frozen=True)
class ReportRate:
    """Names of a rate (tokens or requests per second) in llm-d benchmark reports.

    Attributes:
        v01: key under `throughput` in reports of version 0.1.
        v02: key under `throughput` in reports of version 0.2.
        units: units in reports of version 0.2.
        performance: field of `Performance` with the value.
    """

    v01: str
    v02: str
    units: Literal["tokens/s", "queries/s"]
    performance: str


@dataclass(frozen=True)
class Metric:
    """Definition of one metric of a row.

    Attributes:
        name: name in gates and in JSON, such as `ttft_ms.p95`.
        title: title in tables.
        units: units of the value.
        better: whether more or less is better.
        of: function that computes the value from a row; None if the row lacks the figures.
        report: names of the rate in reports; None if reports don't contain it as a rate.
        in_tables: whether tables of comparisons show the metric.
    """

    name: str
    title: str
    units: str
    better: Better
    of: Callable[[Row], float | None]
    report: ReportRate | None = None
    in_tables: bool = True


_RATES = (
    Metric(
        "output_tokens_per_s",
        "output",
        "tokens/s",
        "more",
        lambda row: row.output_tokens_per_s,
        ReportRate("output_tokens_per_sec", "output_token_rate", "tokens/s", "output_tokens_per_s"),
    ),
    Metric(
        "input_tokens_per_s",
        "input",
        "tokens/s",
        "more",
        lambda row: row.input_tokens_per_s,
        ReportRate("input_tokens_per_sec", "input_token_rate", "tokens/s", "input_tokens_per_s"),
        in_tables=False,
    ),
    Metric(
        "achieved_requests_per_s",
        "requests",
        "/s",
        "more",
        lambda row: row.achieved_requests_per_s,
        ReportRate("requests_per_sec", "request_rate", "queries/s", "requests_per_s"),
    ),
    Metric("tpsg", "TPSG", "tokens/s/GPU", "more", lambda row: row.tpsg),
    Metric("tpsu", "TPSU", "tokens/s/user", "more", lambda row: row.tpsu),
    Metric("tpsu_decode", "TPSU decode", "tokens/s/user", "more", lambda row: row.tpsu_decode),
)

_SHARES = (
    Metric(
        "failures_share",
        "failures",
        "of requests",
        "less",
        lambda row: row.failures / row.requests if row.requests else None,
    ),
    Metric("goodput_share", "goodput", "of requests", "more", lambda row: row.goodput_share),
    Metric(
        "usd_per_million_output_tokens", "price", "$/1M tokens", "less", lambda row: row.usd_per_million_output_tokens
    ),
)

TOTAL_TOKENS = ReportRate("total_tokens_per_sec", "total_token_rate", "tokens/s", "total_tokens_per_s")
"""Rate of input and output tokens together; reports contain it, rows don't."""

RATES_IN_REPORTS: Mapping[str, ReportRate] = {metric.name: metric.report for metric in _RATES if metric.report}
"""Rates that llm-d benchmark reports contain, by the name of the field of `Row`."""


def _quantiles(latencies: Iterable[Latency]) -> list[Metric]:
    return [
        Metric(
            f"{latency.name}.{quantile}",
            f"{latency.title} {quantile}",
            "ms",
            "less",
            attrgetter(f"{latency.name}.{quantile}"),
            in_tables=latency.in_tables and quantile in _QUANTILES_IN_TABLES,
        )
        for latency in latencies
        for quantile in _QUANTILES
    ]


_FIELDS = list(Row.model_fields)

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *_RATES,
        *_SHARES,
        *_quantiles(sorted(LATENCIES, key=lambda latency: _FIELDS.index(latency.name))),
    )
}
"""All metrics by name; latencies in the order of the fields of `Row`."""

SHOWN: tuple[str, ...] = tuple(
    metric.name for metric in (*_RATES, *_quantiles(LATENCIES), *_SHARES) if metric.in_tables
)
"""Names of the metrics that a table of a comparison shows, if the rows have them."""


def metric(name: str) -> Metric:
    """Return the metric with this name.

    Raises:
        KitError: no metric has this name; the message suggests similar names.
    """
    if name in METRICS:
        return METRICS[name]
    close = get_close_matches(name, METRICS, n=3, cutoff=0.5) or list(METRICS)
    raise KitError(f"There is no metric {name!r}.", f"Known are, for example, {', '.join(close)}.")
