"""Watches a deployed model by its own counters, scrape by scrape."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from llmd_oke.bench.deployment.directory import PodAddress
from llmd_oke.bench.deployment.metrics import MetricsEndpoint, Snapshot
from llmd_oke.bench.deployment.scraping import scrape
from llmd_oke.bench.smoke.evidence import EvidenceSettings, Sent, prove_remote_prefill
from llmd_oke.bench.smoke.resolving import endpoints
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.cluster_access import ClusterAccess
from llmd_oke.experiments.tuner import counters
from llmd_oke.experiments.tuner.counters import Moment, Window
from llmd_oke.experiments.tuner.seeing import seen_in
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.results.row import Basis
from llmd_oke.stack.smoke import smoke_request
from llmd_oke.tuning.watch.assumptions import tolerances
from llmd_oke.tuning.watch.seen import Seen


@dataclass(frozen=True)
class Pace:
    """How often counters are read and for how long, in wall seconds; `time_scale` of them are a second of the model."""

    every_s: float
    for_s: float
    time_scale: float = 1.0


@dataclass
class _Tally:
    """What was seen so far. `first` is the snapshot since which the same servers are there.

    `heard_s` is when the cluster answered last, `unheard` says why it did not at the last reading.
    """

    first: Snapshot
    last: Snapshot
    heard_s: float
    unheard: str | None = None
    whole: Window = field(default_factory=Window)
    moments: list[Moment] = field(default_factory=list[Moment])
    remote_prefill_share: float | None = None
    left_out: int = 0
    restarted: set[str] = field(default_factory=set[str])


class Reader:
    """Reads all programs of a model, those of pods that have come since too."""

    def __init__(self, plan: Plan, model: ModelPlan) -> None:
        self._access = ClusterAccess(plan.kubeconfig_context)
        self._request = smoke_request(plan, model)
        self._pods: set[PodAddress] = set()
        self._endpoints: tuple[MetricsEndpoint, ...] = ()

    def __call__(self) -> Snapshot:
        """All counters of now.

        Raises:
            KitError: the cluster does not answer, or has no server of the model.
        """
        namespace, groups = self._request.namespace, self._request.groups
        pods = {pod for group in groups for pod in self._access.pods(namespace, group.selector)}
        if pods != self._pods:  # the way to a pod takes up to a second to find
            self._pods, self._endpoints = pods, tuple(endpoints(self._request, self._access))
        if not any(each.role in counters.SERVER_ROLES for each in self._endpoints):
            raise KitError(f"No server of {self._request.service} is there.", "Is the stack deployed?")
        return asyncio.run(scrape(self._endpoints))


def watch(
    read: Callable[[], Snapshot],
    pace: Pace,
    evidence: EvidenceSettings | None,
    basis: Basis,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Seen, Seen]]:
    """What was seen since the beginning and since the last reading, after each reading.

    `evidence` tells how remote prefill is proved, where prefill is remote. A reading without an answer of the cluster
    is an interval left out.

    Raises:
        KitError: the cluster does not answer at first, or at two readings for longer than `silence_s` of
            `values/tuning/watching.yaml`.
    """
    began_s = read_s = clock()
    snapshot = read()
    tally = _Tally(snapshot, snapshot, read_s)
    while read_s - began_s < pace.for_s:
        sleep(max(0.0, read_s + pace.every_s - clock()))
        now_s = clock()
        snapshot = _read(read, tally, now_s)
        latest = _add(tally, snapshot, (now_s - read_s) / pace.time_scale)
        read_s = now_s
        why = (tally.unheard,) if tally.unheard else ()
        yield _seen(tally, evidence, basis), replace(seen_in(latest, tally.moments[-1:], basis), notes=why)


def _read(read: Callable[[], Snapshot], tally: _Tally, now_s: float) -> Snapshot:
    """All counters of now, none where the cluster does not answer."""
    try:
        snapshot = read()
    except KitError as error:
        if tally.unheard and now_s - tally.heard_s > tolerances().silence_s:
            raise
        tally.unheard = error.message
        return Snapshot(())
    tally.heard_s, tally.unheard = now_s, None
    return snapshot


def _add(tally: _Tally, snapshot: Snapshot, seconds: float) -> Window:
    """Counts what has grown; an interval in which a server could not be read, or came or went, is left out."""
    before, tally.last = tally.last, snapshot
    if tally.unheard or counters.unread(before, snapshot) or _pods(before) != _pods(snapshot):
        tally.left_out += 1
        tally.first = snapshot
        return Window()
    latest = counters.window(before, snapshot, seconds)
    tally.whole = tally.whole + latest
    tally.restarted |= counters.restarted(before, snapshot)
    if found := counters.moment(snapshot):
        tally.moments.append(found)
    return latest


def _pods(snapshot: Snapshot) -> set[str]:
    return {reading.endpoint.pod for reading in snapshot.readings}


def _seen(tally: _Tally, evidence: EvidenceSettings | None, basis: Basis) -> Seen:
    share = _remote_prefill(tally, evidence) if evidence else None
    if share is not None:  # otherwise nothing has come since servers came, went or could not be read
        tally.remote_prefill_share = share
    seen = seen_in(tally.whole, tally.moments, basis)
    return replace(seen, remote_prefill_share=tally.remote_prefill_share, notes=tuple(_notes(tally)))


def _remote_prefill(tally: _Tally, evidence: EvidenceSettings) -> float | None:
    """By the requests that got their first token, because those that ended may have been prefilled long before."""
    whole = counters.window(tally.first, tally.last, 0.0)
    requests, tokens = whole.of("decode", f"{counters.TTFT} count"), whole.of("decode", counters.PREFILLED)
    if not requests or not tokens:
        return None
    sent = Sent(round(requests), round(tokens), round(requests))
    return prove_remote_prefill(tally.first, tally.last, sent, evidence).share


def _notes(tally: _Tally) -> Iterator[str]:
    if tally.left_out:
        yield f"{tally.left_out} intervals are left out: a server came, went or could not be read"
    if tally.unheard:
        yield f"no answer at the last reading: {tally.unheard}"
    for pod, why in counters.unread(tally.last).items():
        yield f"{pod} can't be read: {why}"
    if tally.restarted:
        yield f"restarted, so that counts are lower bounds: {', '.join(sorted(tally.restarted))}"
