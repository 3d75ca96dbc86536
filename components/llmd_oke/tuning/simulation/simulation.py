"""The simulation of a deployment under a load, over several seeds."""

import itertools
from collections.abc import Iterator, Sequence

from llmd_oke.config.topology import SHORT_FORMS
from llmd_oke.errors import KitError, Problem, Refused
from llmd_oke.results.row import Basis
from llmd_oke.tuning.servers.latency import LatencyModel
from llmd_oke.tuning.simulation.arrivals import Arrivals, ClosedLoop, RecordedTimes, Workload
from llmd_oke.tuning.simulation.deployment import Deployment
from llmd_oke.tuning.simulation.record import View
from llmd_oke.tuning.simulation.result import SimulationResult, Window, mean_use, row_of, view_of
from llmd_oke.tuning.simulation.run import Extent, Run, run_once

SEEDS = (0, 1, 2)
"""Three runs are the least that say how sure they are."""


def simulate(
    deployment: Deployment,
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
    """What the deployment does under the load, by events.

    Requests are sent for `duration_s`, or until there were that many `requests`, or all that were recorded; every one
    is answered. Servers are equal and their times follow from the latency model alone; see `Engine` and `System` for
    what is left out. `basis` is the latency model's.

    Raises:
        Refused: the load can't be sent, or a request fits no server; carries every problem.
        KitError: no request came in the time that counts.
    """
    problems = [*_load_problems(workload, arrivals, duration_s, requests), *_size_problems(deployment, workload)]
    if not seeds:
        problems.append(Problem("seeds", None, "one number or more", "there is no run without a seed"))
    if problems:
        raise Refused(problems, "the load can't be simulated")
    extent = Extent(duration_s, requests if requests or not isinstance(arrivals, RecordedTimes) else len(workload))
    runs = [run_once(deployment, workload, arrivals, latency_model, extent, seed) for seed in seeds]
    views = [_view(run, window) for run in runs]
    rows = [row_of(view, run, deployment, arrivals, window, basis) for view, run in zip(views, runs, strict=True)]
    return SimulationResult(tuple(rows), tuple(views), mean_use(runs))


def _view(run: Run, window: Window) -> View:
    view = view_of(run, window)
    if not view.duration_s or not view.requests:
        raise KitError("No request arrived in the part of the simulation that counts.", "Simulate a longer time.")
    return view


def _load_problems(
    workload: Workload, arrivals: Arrivals, duration_s: float | None, requests: int | None
) -> Iterator[Problem]:
    if not workload:
        yield Problem("workload", None, "one class or more", "there is nothing to send")
    for index, each in enumerate(workload):
        if each.input_tokens < 1 or each.output_tokens < 1 or each.weight <= 0:
            why = "a request has at least one token in and one out, and a weight above 0"
            yield Problem(f"workload[{index}]", each, "positive numbers", why)
    if isinstance(arrivals, RecordedTimes):
        yield from _recorded_problems(workload, arrivals)
        return
    rate = arrivals.concurrency if isinstance(arrivals, ClosedLoop) else arrivals.requests_per_s
    if rate <= 0:
        yield Problem("arrivals", arrivals, "more than 0", "nothing would ever arrive")
    if (duration_s or 0) <= 0 and (requests or 0) <= 0:
        yield Problem("duration_s", duration_s, "duration_s or requests above 0", "the simulation would have no end")


def _recorded_problems(workload: Workload, arrivals: RecordedTimes) -> Iterator[Problem]:
    times_s = arrivals.times_s
    if len(times_s) != len(workload):
        why = f"there are {len(times_s)} times and {len(workload)} requests"
        yield Problem("arrivals.times_s", len(times_s), "one time for each request", why)
    if any(before > after for before, after in itertools.pairwise(times_s)) or any(t < 0 for t in times_s):
        yield Problem("arrivals.times_s", None, "ascending times from 0 on", "a request comes before an earlier one")


def _size_problems(deployment: Deployment, workload: Workload) -> Iterator[Problem]:
    """A request whose KV cache fits no server would wait for ever, and so would one that no server takes."""
    if set(deployment.limits) not in ({"aggregated"}, {"prefill", "decode"}):
        why = "requests need servers that do all, or prefill and decode servers"
        yield Problem("topology", str(deployment.topology), SHORT_FORMS, why)
    longest = max((each.input_tokens + each.output_tokens for each in workload), default=0)
    for role, limits in deployment.limits.items():
        if limits.max_num_seqs < 1 or limits.max_num_batched_tokens < limits.max_num_seqs:
            why = "a step must have room for a token of each sequence"
            yield Problem(f"limits.{role}.max_num_seqs", limits.max_num_seqs, "1 to max_num_batched_tokens", why)
        if longest + limits.block_size > limits.key_value_tokens:
            why = f"a request of {longest} tokens doesn't fit its KV cache"
            accepted = f"{longest + limits.block_size} or more"
            yield Problem(f"limits.{role}.key_value_tokens", limits.key_value_tokens, accepted, why)
