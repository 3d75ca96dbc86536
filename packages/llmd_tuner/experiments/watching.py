"""Periodic readings of a deployed model's counters, and the assumptions that they are compared with."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from llmd_base.addresses import PodAddress
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_bench.deployment import MetricsEndpoint, Snapshot
from llmd_bench.evidence import EvidenceSettings
from llmd_bench.queries import scrape
from llmd_bench.smoke import endpoints
from llmd_oke import config
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.counters import (
    SERVER_ROLES,
    CounterWindow,
    Moment,
    moment,
    observation,
    remote_prefill,
    restarted,
    unread,
    window,
)
from llmd_oke.operations.judgements import Assumption, model_limits, tolerances
from llmd_oke.operations.observations import CountedObservation
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.program.smoke import conditions, smoke_request

from llmd_tuner.assumptions import of_forecast, of_lengths, of_targets
from llmd_tuner.experiments.records import Applied, changed_conditions, mismatch
from llmd_tuner.search_inputs import Targets, parse_targets


@dataclass(frozen=True)
class ReadingIntervals:
    """Interval between two readings of counters (`every_s`) and total duration (`for_s`) in wall seconds. In
    `time_scale` wall seconds simulated servers do what real ones do in one second.
    """

    every_s: float
    for_s: float
    time_scale: float = 1.0


@dataclass
class _Tally:
    """Observation so far. `first` is the snapshot since which the same servers are there.

    `heard_s` is when the cluster answered last, `unheard` says why it did not at the last reading.
    """

    first: Snapshot
    last: Snapshot
    heard_s: float
    unheard: str | None = None
    whole: CounterWindow = field(default_factory=CounterWindow)
    moments: list[Moment] = field(default_factory=list[Moment])
    remote_prefill_share: float | None = None
    left_out: int = 0
    restarted: set[str] = field(default_factory=set[str])


class Reader:
    """Reader of the Prometheus counters of all servers and routers of a model, including those of pods that were
    created since the last reading.
    """

    def __init__(self, plan: Plan, model: ModelPlan) -> None:
        self._access = ClusterAccess(plan.kubeconfig_context)
        self._request = smoke_request(plan, model)
        self._pods: set[PodAddress] = set()
        self._endpoints: tuple[MetricsEndpoint, ...] = ()

    def __call__(self) -> Snapshot:
        """Read the current counters.

        Raises:
            KitError: the cluster does not answer, or has no server of the model.
        """
        namespace, groups = self._request.namespace, self._request.groups
        pods = {pod for group in groups for pod in self._access.pods(namespace, group.selector)}
        if pods != self._pods:  # the way to a pod takes up to a second to find
            self._pods, self._endpoints = pods, tuple(endpoints(self._request, self._access))
        if not any(endpoint.role in SERVER_ROLES for endpoint in self._endpoints):
            raise KitError(f"No server of {self._request.service} is there.", "Is the stack deployed?")
        return asyncio.run(scrape(self._endpoints))


def watch(
    read: Callable[[], Snapshot],
    pace: ReadingIntervals,
    evidence: EvidenceSettings | None,
    basis: Basis,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[CountedObservation, CountedObservation]]:
    """Read counters periodically and yield, after each reading, what was observed since the beginning and since the
    last reading.

    `evidence` says how remote prefill is proved, where prefill is remote. An interval at whose end the cluster doesn't
    answer is left out.

    Raises:
        KitError: the cluster does not answer the first reading, or two readings in a row after more than `silence_s` of
            `values/tuning/watching.yaml`.
    """
    started_s = read_s = clock()
    snapshot = read()
    tally = _Tally(snapshot, snapshot, read_s)
    while read_s - started_s < pace.for_s:
        sleep(max(0.0, read_s + pace.every_s - clock()))
        now_s = clock()
        snapshot = _read(read, tally, now_s)
        latest = _add(tally, snapshot, (now_s - read_s) / pace.time_scale)
        read_s = now_s
        why = (tally.unheard,) if tally.unheard else ()
        share = remote_prefill(tally.first, tally.last, evidence) if evidence else None
        if share is not None:  # otherwise nothing has come since servers came, went or could not be read
            tally.remote_prefill_share = share
        seen = observation(tally.whole, tally.moments, basis)
        seen = replace(seen, remote_prefill_share=tally.remote_prefill_share, notes=tuple(_notes(tally)))
        yield seen, replace(observation(latest, tally.moments[-1:], basis), notes=why)


def _read(read: Callable[[], Snapshot], tally: _Tally, now_s: float) -> Snapshot:
    """Read all counters of now, none where the cluster does not answer."""
    try:
        snapshot = read()
    except KitError as error:
        if tally.unheard and now_s - tally.heard_s > tolerances().silence_s:
            raise
        tally.unheard = error.message
        return Snapshot(())
    tally.heard_s, tally.unheard = now_s, None
    return snapshot


def _add(tally: _Tally, snapshot: Snapshot, seconds: float) -> CounterWindow:
    """Count what has grown; an interval in which a server could not be read, or came or went, is left out."""
    before, tally.last = tally.last, snapshot
    if tally.unheard or unread(before, snapshot) or _pods(before) != _pods(snapshot):
        tally.left_out += 1
        tally.first = snapshot
        return CounterWindow()
    latest = window(before, snapshot, seconds)
    tally.whole = tally.whole + latest
    tally.restarted |= restarted(before, snapshot)
    if gauges := moment(snapshot):
        tally.moments.append(gauges)
    return latest


def _pods(snapshot: Snapshot) -> set[str]:
    return {reading.endpoint.pod for reading in snapshot.readings}


def _notes(tally: _Tally) -> Iterator[str]:
    if tally.left_out:
        yield f"{tally.left_out} intervals are left out: a server came, went or could not be read"
    if tally.unheard:
        yield f"no answer at the last reading: {tally.unheard}"
    for pod, why in unread(tally.last).items():
        yield f"{pod} can't be read: {why}"
    if tally.restarted:
        yield f"restarted, so that counts are lower bounds: {', '.join(sorted(tally.restarted))}"


@dataclass(frozen=True)
class ModelAssumptions:
    """Assumptions about a deployed model. `source` describes their origin in words; `conditions` are the differences
    between the deployment and the one that was forecast.
    """

    assumptions: tuple[Assumption, ...]
    targets: Targets
    source: str
    conditions: tuple[str, ...] = ()


def model_assumptions(
    plan: Plan, model: ModelPlan, applied: Applied | None, forecast_share: float, load_share: float
) -> ModelAssumptions:
    """Return the assumptions about a model: those of its applied forecast or, without one, those of the stack file's
    workload and targets. `forecast_share` and `load_share` are the tolerated relative errors of forecasts and of loads
    (0.1 is 10 %).
    """
    why = mismatch(model, applied) if applied else "no forecast was applied"
    slo = model.slo or config.Slo()
    targets = Targets(slo.ttft_ms and slo.ttft_ms / 1000, slo.itl_ms and slo.itl_ms / 1000)
    lengths = of_lengths(model.workload.input_tokens, model.workload.output_tokens, load_share)
    limit = tuple(model_limits(plan, model))
    if applied is None or why:
        source = f"the stack file's workload and slo, because {why}"
        return ModelAssumptions((*lengths, *of_targets(targets), *limit), targets, source)
    targets = parse_targets(applied.targets)
    servers = sum(role.replicas for unit in model.units for role in unit.roles if role.role != "prefill")
    from_forecast = of_forecast(applied.forecast, targets, servers, forecast_share, load_share)
    source = f"the forecast applied {applied.applied}; {'; '.join(applied.forecast.notes)}"
    return ModelAssumptions(
        (*from_forecast, *limit), targets, source, tuple(changed_conditions(applied, conditions(plan, model)))
    )
