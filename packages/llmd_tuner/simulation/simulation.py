"""Simulation of a deployment under a load, over several seeds or rising concurrency."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from llmd_base.errors import InvalidStack, KitError, Problem
from llmd_base.row import Basis, Row
from llmd_bench.deployment import SHORT_FORMS
from llmd_oke.config import Role

from llmd_tuner.latency import LatencyModel
from llmd_tuner.simulation.deployment import (
    Arrivals,
    ClosedLoopArrivals,
    RecordedTimes,
    RequestClass,
    SimulatedDeployment,
    Workload,
    arrival_times_s,
    sizes,
)
from llmd_tuner.simulation.engine import Calendar
from llmd_tuner.simulation.result import (
    TRIMMED_SHARE,
    SimulationResult,
    SimulationRun,
    Use,
    View,
    Window,
    record,
    row_of,
)
from llmd_tuner.simulation.system import System

SEEDS = (0, 1, 2)
"""Random seeds of the runs of a simulation; three runs are the fewest with a useful confidence interval."""


@dataclass(frozen=True)
class Extent:
    """End of the sending of requests: after `duration_s` seconds, after a number of requests, or after whichever comes
    first.
    """

    duration_s: float | None
    requests: int | None


def run_once(
    deployment: SimulatedDeployment,
    workload: Workload,
    arrivals: Arrivals,
    latency: LatencyModel,
    extent: Extent,
    seed: int,
) -> SimulationRun:
    """Simulate a deployment with one seed until the last request is answered. Arrivals, sizes and routing each have a
    random number generator of their own.

    Raises:
        KitError: no request arrived.
    """
    # Load, not secrets; one seed gives the same arrivals to every deployment.
    streams = [Random(f"{seed} {use}") for use in ("arrivals", "sizes", "routing")]  # noqa: S311
    requests = itertools.islice(sizes(workload, arrivals, streams[1]), extent.requests)
    end_s = math.inf if extent.duration_s is None else extent.duration_s
    system = System(Calendar(), deployment, latency, streams[2])
    if isinstance(arrivals, ClosedLoopArrivals):
        _send_in_a_closed_loop(system, requests, arrivals.concurrency, end_s)
    else:
        _send_when_due(system, zip(arrival_times_s(arrivals, streams[0]), requests, strict=False), end_s)
    system.calendar.run()
    if not system.answered:
        raise KitError("No request arrived in the time of the simulation.", "Simulate a longer time.")
    uses: dict[Role, Use] = {}
    for role in deployment.limits:
        engines = system.engines(role)
        total_s = system.calendar.now_s * len(engines)
        uses[role] = Use(sum(e.busy_s for e in engines) / total_s, sum(e.sequence_s for e in engines) / total_s)
    return SimulationRun(seed, record(system.answered, system.gaps), uses)


def _send_when_due(system: System, requests: Iterator[tuple[float, RequestClass]], end_s: float) -> None:
    """Send requests of an open loop: each plans the next one."""

    def plan() -> None:
        due_s, size = next(requests, (math.inf, None))
        if due_s < end_s:
            system.calendar.at(due_s, send, size)

    def send(size: RequestClass) -> None:
        system.arrive(size)
        plan()

    plan()


def _send_in_a_closed_loop(system: System, requests: Iterator[RequestClass], concurrency: int, end_s: float) -> None:
    """Send a request for every user at once, and again when it is answered."""

    def send(_: object) -> None:
        size = next(requests, None)
        if size is not None and system.calendar.now_s < end_s:
            system.arrive(size)

    system.on_answer = lambda: system.calendar.at(system.calendar.now_s, send, None)
    for _ in range(concurrency):
        system.calendar.at(0.0, send, None)


def simulate(
    deployment: SimulatedDeployment,
    workload: Workload,
    arrivals: Arrivals,
    latency_model: LatencyModel,
    *,
    seeds: Sequence[int] = SEEDS,
    duration_s: float | None = None,
    requests: int | None = None,
    window: Window = "steady",
    basis: Basis = Basis.CALIBRATED,
) -> SimulationResult:
    """Simulate a deployment under a load, event by event, once for each seed.

    Requests are sent for `duration_s` seconds, or until `requests` were sent, or until the recorded ones end; all are
    answered. Servers are equal, and their times follow from the latency model alone; `EngineSimulation` and `System`
    say what is left out. `window` is the evaluated part of each run; `basis` is that of the latency model.

    Raises:
        InvalidStack: the load can't be sent, or a request fits no server; carries every problem.
        KitError: no request arrived in the evaluated part.
    """
    problems = [*_load_problems(workload, arrivals, duration_s, requests), *_size_problems(deployment, workload)]
    if not seeds:
        problems.append(Problem("seeds", None, "one number or more", "there is no run without a seed"))
    if problems:
        raise InvalidStack(problems, "the load can't be simulated")
    extent = Extent(duration_s, requests if requests or not isinstance(arrivals, RecordedTimes) else len(workload))
    runs = [run_once(deployment, workload, arrivals, latency_model, extent, seed) for seed in seeds]
    trimmed = TRIMMED_SHARE if window == "steady" else 0.0
    views: list[View] = []
    for run in runs:
        end_s = run.record.sending_s if window == "steady" else run.record.end_s
        views.append(run.record.between(trimmed * end_s, (1 - trimmed) * end_s))
    if not all(view.duration_s and view.requests for view in views):
        raise KitError("No request arrived in the part of the simulation that counts.", "Simulate a longer time.")
    rows = [row_of(view, run, deployment, arrivals, window, basis) for view, run in zip(views, runs, strict=True)]
    uses: dict[Role, list[Use]] = {role: [run.use[role] for run in runs] for role in runs[0].use}
    mean: dict[Role, Use] = {}
    for role, own in uses.items():
        mean[role] = Use(fmean(use.busy_share for use in own), fmean(use.batch for use in own))
    return SimulationResult(tuple(rows), tuple(views), mean)


def _load_problems(
    workload: Workload, arrivals: Arrivals, duration_s: float | None, requests: int | None
) -> Iterator[Problem]:
    if not workload:
        yield Problem("workload", None, "one class or more", "there is nothing to send")
    for index, request_class in enumerate(workload):
        if request_class.input_tokens < 1 or request_class.output_tokens < 1 or request_class.weight <= 0:
            why = "a request has at least one token in and one out, and a weight above 0"
            yield Problem(f"workload[{index}]", request_class, "positive numbers", why)
    if isinstance(arrivals, RecordedTimes):
        times_s = arrivals.times_s
        if len(times_s) != len(workload):
            why = f"there are {len(times_s)} times and {len(workload)} requests"
            yield Problem("arrivals.times_s", len(times_s), "one time for each request", why)
        if any(before > after for before, after in itertools.pairwise(times_s)) or any(t < 0 for t in times_s):
            yield Problem(
                "arrivals.times_s", None, "ascending times from 0 on", "a request comes before an earlier one"
            )
        return
    rate = arrivals.concurrency if isinstance(arrivals, ClosedLoopArrivals) else arrivals.requests_per_s
    if rate <= 0:
        yield Problem("arrivals", arrivals, "more than 0", "nothing would ever arrive")
    if (duration_s or 0) <= 0 and (requests or 0) <= 0:
        yield Problem("duration_s", duration_s, "duration_s or requests above 0", "the simulation would have no end")


def _size_problems(deployment: SimulatedDeployment, workload: Workload) -> Iterator[Problem]:
    """Yield what is wrong with servers: a request whose KV cache fits none, or that none takes, would wait for ever."""
    if set(deployment.limits) not in ({"aggregated"}, {"prefill", "decode"}):
        why = "requests need servers that do all, or prefill and decode servers"
        yield Problem("topology", str(deployment.topology), SHORT_FORMS, why)
    longest = max((request_class.input_tokens + request_class.output_tokens for request_class in workload), default=0)
    for role, limits in deployment.limits.items():
        if limits.max_num_seqs < 1 or limits.max_num_batched_tokens < limits.max_num_seqs:
            why = "a step must have room for a token of each sequence"
            yield Problem(f"limits.{role}.max_num_seqs", limits.max_num_seqs, "1 to max_num_batched_tokens", why)
        if longest + limits.block_size > limits.key_value_tokens:
            why = f"a request of {longest} tokens doesn't fit its KV cache"
            accepted = f"{longest + limits.block_size} or more"
            yield Problem(f"limits.{role}.key_value_tokens", limits.key_value_tokens, accepted, why)


def tpsg_at(rows: Iterable[Row], tpsu: float) -> float | None:
    """Return TPSG (output tokens per second and GPU) at a TPSU (per second and user), interpolated between the two
    nearest of a deployment's rows by rising concurrency, at which TPSU falls; None outside of them. Rows beyond these
    two are not read.
    """
    points = ((row.tpsu or 0.0, row.tpsg or 0.0) for row in rows)
    for (faster, less), (slower, more) in itertools.pairwise(points):
        if tpsu > faster:
            break
        if tpsu >= slower:
            return less if faster == slower else less + (more - less) * (faster - tpsu) / (faster - slower)
    return None


def simulate_users(
    deployment: SimulatedDeployment, workload: Workload, concurrency: int, latency_model: LatencyModel
) -> Row:
    """Simulate a deployment at one concurrency by the procedure of j-pareto's sweep: a short run determines the rate,
    then a run of a minute is evaluated.

    The short run has max(C, 20) requests, the long one max(200, 60 s x rate, 2 C). Rates include the filling and
    draining of the deployment, as those of j-pareto do.
    """

    def run(requests: int) -> Row:
        users = ClosedLoopArrivals(concurrency)
        return simulate(deployment, workload, users, latency_model, requests=requests, seeds=[0], window="whole").row

    rate = run(max(concurrency, 20)).achieved_requests_per_s or 0.0
    return run(max(200, math.ceil(60 * rate), 2 * concurrency))
