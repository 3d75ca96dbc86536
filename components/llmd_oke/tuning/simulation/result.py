"""What a simulation says: one row for each seed, their mean, and how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Literal

from llmd_oke.config.topology import Role
from llmd_oke.results.row import Arrival, Basis, Origin, Quantiles, Row
from llmd_oke.tuning.simulation.arrivals import Arrivals, ClosedLoop, ConstantRate, PoissonRate, RecordedTimes
from llmd_oke.tuning.simulation.confidence import Estimate, estimate
from llmd_oke.tuning.simulation.deployment import Deployment
from llmd_oke.tuning.simulation.record import View, quantiles_ms
from llmd_oke.tuning.simulation.run import Run, Use

Window = Literal["steady", "whole"]
"""What counts of a run: the middle 60 % of the time in which requests are sent, or all until the last answer."""

TRIMMED_SHARE = 0.2
"""Of the sending time, at each end of a steady window."""

_ARRIVALS: dict[type[Arrivals], Arrival] = {
    ClosedLoop: "closed",
    ConstantRate: "constant",
    PoissonRate: "poisson",
    RecordedTimes: "trace",
}
_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
_RATES = ("achieved_requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "concurrency")


@dataclass(frozen=True)
class SimulationResult:
    """Rows of independent runs of one deployment under one load, and how their servers were used."""

    rows: tuple[Row, ...]
    views: tuple[View, ...]
    """What the rows summarise: times of every request."""
    use: dict[Role, Use]

    @cached_property
    def row(self) -> Row:
        """The mean over all runs; quantiles are means of the runs' quantiles."""
        first = self.rows[0]
        if len(self.rows) == 1:
            return first
        merged = {name: _mean_quantiles([getattr(row, name) for row in self.rows]) for name in _LATENCIES}
        means = {name: _mean([getattr(row, name) for row in self.rows]) for name in (*_RATES, "duration_s")}
        update = {
            **merged,
            **means,
            "input_tokens": fmean(row.input_tokens for row in self.rows),
            "output_tokens": fmean(row.output_tokens for row in self.rows),
            "requests": sum(row.requests or 0 for row in self.rows),
            "seed": None,
            "notes": (*first.notes, f"mean of {len(self.rows)} runs"),
        }
        return first.model_copy(update=update)

    def estimate(self, metric: str) -> Estimate:
        """A figure with its 95 % interval; `metric` as in a row: `tpsg`, `ttft_ms.p99`, `output_tokens_per_s`.

        Raises:
            KeyError: rows have no such figure, or it isn't known for this load.
        """
        return estimate([_figure(row, metric) for row in self.rows])

    def goodput_share(self, ttft_ms: float, tpot_ms: float) -> Estimate:
        """The share of requests that keep both promises: time to first token, and mean time for each later one."""
        return estimate([view.goodput_share(ttft_ms / 1000, tpot_ms / 1000) for view in self.views])


def row_of(view: View, run: Run, deployment: Deployment, arrivals: Arrivals, window: Window, basis: Basis) -> Row:
    """What one run did, as a row."""
    rate = arrivals.requests_per_s if isinstance(arrivals, ConstantRate | PoissonRate) else None
    price = deployment.price_usd_per_gpu_hour
    return Row(
        subject="end-to-end",
        basis=basis,
        model=deployment.model,
        gpu=deployment.gpu,
        origin=Origin(tool="llmd-oke event simulation"),
        topology=str(deployment.topology),
        copies=deployment.copies,
        gpus_counted=deployment.gpus,
        input_tokens=view.input_tokens,
        output_tokens=view.output_tokens,
        arrival=_ARRIVALS[type(arrivals)],
        concurrency=arrivals.concurrency if isinstance(arrivals, ClosedLoop) else view.in_flight,
        offered_requests_per_s=rate,
        achieved_requests_per_s=view.requests_per_s,
        input_tokens_per_s=view.input_tokens_per_s,
        output_tokens_per_s=view.output_tokens_per_s,
        ttft_ms=quantiles_ms(view.ttft_s),
        tpot_ms=quantiles_ms(view.tpot_s),
        itl_ms=view.gap_quantiles_ms(),
        e2e_ms=quantiles_ms(view.e2e_s),
        requests=view.requests,
        duration_s=view.duration_s,
        seed=run.seed,
        max_num_seqs=min(limits.max_num_seqs for limits in deployment.limits.values()),
        price_usd_per_hour=None if price is None else price * deployment.gpus,
        notes=(f"router policy {deployment.policy}", _WINDOW_NOTES[window]),
    )


_WINDOW_NOTES = {
    "steady": "the middle 60 % of the sending time",
    "whole": "the whole run, from the first request to the last answer",
}


def view_of(run: Run, window: Window) -> View:
    """The part of a run that counts."""
    if window == "whole":
        return run.record.between(0.0, run.record.end_s)
    sending_s = run.record.sending_s
    return run.record.between(TRIMMED_SHARE * sending_s, (1 - TRIMMED_SHARE) * sending_s)


def mean_use(runs: Sequence[Run]) -> dict[Role, Use]:
    """How servers were used, over all runs."""
    return {
        role: Use(fmean(run.use[role].busy_share for run in runs), fmean(run.use[role].batch for run in runs))
        for role in runs[0].use
    }


def _figure(row: Row, metric: str) -> float:
    value: object = row
    for name in metric.split("."):
        value = getattr(value, name, None)
    if not isinstance(value, int | float):
        raise KeyError(metric)
    return float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _mean_quantiles(parts: Sequence[Quantiles]) -> Quantiles:
    return Quantiles(**{name: _mean([getattr(part, name) for part in parts]) for name in Quantiles.model_fields})
