"""One run: requests arrive, are served, and the last one is waited for."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from llmd_oke.config.topology import Role
from llmd_oke.errors import KitError
from llmd_oke.tuning.servers.latency import LatencyModel
from llmd_oke.tuning.simulation.arrivals import (
    Arrivals,
    ClosedLoop,
    RequestClass,
    Workload,
    arrival_times_s,
    sizes,
)
from llmd_oke.tuning.simulation.calendar import Calendar
from llmd_oke.tuning.simulation.deployment import Deployment
from llmd_oke.tuning.simulation.record import Record, record
from llmd_oke.tuning.simulation.system import System


@dataclass(frozen=True)
class Use:
    """How the servers of a role were used: the share of time in which a step ran, and the mean batch over all time."""

    busy_share: float
    batch: float


@dataclass(frozen=True)
class Run:
    """One run with one seed."""

    seed: int
    record: Record
    use: dict[Role, Use]


@dataclass(frozen=True)
class Extent:
    """When requests stop coming: after a time, after a number of them, or whichever is first."""

    duration_s: float | None
    requests: int | None


def run_once(
    deployment: Deployment, workload: Workload, arrivals: Arrivals, latency: LatencyModel, extent: Extent, seed: int
) -> Run:
    """Simulate until the last request is answered. Arrivals, sizes and routing have random numbers of their own.

    Raises:
        KitError: no request arrived.
    """
    # Load, not secrets; one seed gives the same arrivals to every deployment.
    streams = [Random(f"{seed} {use}") for use in ("arrivals", "sizes", "routing")]  # noqa: S311
    requests = itertools.islice(sizes(workload, arrivals, streams[1]), extent.requests)
    end_s = math.inf if extent.duration_s is None else extent.duration_s
    system = System(Calendar(), deployment, latency, streams[2])
    if isinstance(arrivals, ClosedLoop):
        _send_in_a_closed_loop(system, requests, arrivals.concurrency, end_s)
    else:
        _send_when_due(system, zip(arrival_times_s(arrivals, streams[0]), requests, strict=False), end_s)
    system.calendar.run()
    if not system.answered:
        raise KitError("No request arrived in the time of the simulation.", "Simulate a longer time.")
    return Run(seed, record(system.answered, system.gaps), _use(system, deployment))


def _send_when_due(system: System, requests: Iterator[tuple[float, RequestClass]], end_s: float) -> None:
    """An open loop: each request plans the next one."""

    def plan() -> None:
        due_s, size = next(requests, (math.inf, None))
        if due_s < end_s:
            system.calendar.at(due_s, send, size)

    def send(size: RequestClass) -> None:
        system.arrive(size)
        plan()

    plan()


def _send_in_a_closed_loop(system: System, requests: Iterator[RequestClass], concurrency: int, end_s: float) -> None:
    """All users send at once, and again when they are answered."""

    def send(_: object) -> None:
        size = next(requests, None)
        if size is not None and system.calendar.now_s < end_s:
            system.arrive(size)

    system.on_answer = lambda: system.calendar.at(system.calendar.now_s, send, None)
    for _ in range(concurrency):
        system.calendar.at(0.0, send, None)


def _use(system: System, deployment: Deployment) -> dict[Role, Use]:
    uses: dict[Role, Use] = {}
    for role in deployment.limits:
        engines = system.engines(role)
        total_s = system.calendar.now_s * len(engines)
        uses[role] = Use(sum(e.busy_s for e in engines) / total_s, sum(e.sequence_s for e in engines) / total_s)
    return uses
