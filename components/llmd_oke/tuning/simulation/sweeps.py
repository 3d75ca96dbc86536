"""Deployments under rising load, as published sweeps measure them: curves of throughput for each GPU and user."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmd_oke.results.row import Row
from llmd_oke.tuning.servers.latency import LatencyModel
from llmd_oke.tuning.simulation.arrivals import ClosedLoop, Workload
from llmd_oke.tuning.simulation.deployment import Deployment
from llmd_oke.tuning.simulation.simulation import simulate


@dataclass(frozen=True)
class Curve:
    """The rows of one deployment in the order of their concurrency."""

    rows: tuple[Row, ...]

    def tpsg_at(self, tpsu: float) -> float | None:
        """Output tokens per second and GPU at so many per user, between the two nearest rows; None outside of them."""
        points = [(row.tpsu or 0.0, row.tpsg or 0.0) for row in self.rows]
        for (faster, less), (slower, more) in itertools.pairwise(points):
            if slower <= tpsu <= faster:
                return less if faster == slower else less + (more - less) * (faster - tpsu) / (faster - slower)
        return None


def concurrency_sweep(
    deployment: Deployment, workload: Workload, concurrencies: Iterable[int], latency_model: LatencyModel
) -> Curve:
    """One curve by the procedure of j-pareto's sweep: a short run finds the rate, then a run of a minute counts whole.

    Requests: max(C, 20), then max(200, 60 s x rate, 2 C); fill and drain are in the rates, as they are in the source's.
    """
    return Curve(tuple(_level(deployment, workload, level, latency_model) for level in concurrencies))


def best_at(curves: Sequence[Curve], tpsu: float) -> float | None:
    """The most output tokens per second and GPU that any of the curves reaches at so many per user."""
    reached = [tpsg for curve in curves if (tpsg := curve.tpsg_at(tpsu)) is not None]
    return max(reached, default=None)


def _level(deployment: Deployment, workload: Workload, concurrency: int, latency_model: LatencyModel) -> Row:
    def run(requests: int) -> Row:
        users = ClosedLoop(concurrency)
        return simulate(deployment, workload, users, latency_model, requests=requests, seeds=[0], window="whole").row

    rate = run(max(concurrency, 20)).achieved_requests_per_s or 0.0
    return run(max(200, math.ceil(60 * rate), 2 * concurrency))
