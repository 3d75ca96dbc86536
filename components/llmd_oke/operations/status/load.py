"""Load of a stack's servers, from the increase of their counters between two times, compared with targets and limits.

Counters are scraped from the pods, or queried from Prometheus, which has older data; both sources yield snapshots.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic, sleep

from llmd_base.addresses import PodAddress
from llmd_base.row import Basis
from llmd_bench.deployment import Counter, MetricsEndpoint, Snapshot
from llmd_bench.queries import scrape

from llmd_oke.access.addresses import is_reachable
from llmd_oke.catalogue.server_settings import vllm_port
from llmd_oke.config import Slo
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.counters import (
    KV_CACHE_USAGE,
    RUNNING,
    WAITING,
    moment,
    observation,
    remote_prefill,
    restarted,
    unread,
    window,
)
from llmd_oke.operations.judgements import AssumptionJudgement, judge, latency_limits, model_limits
from llmd_oke.operations.observations import CountedObservation
from llmd_oke.operations.status.reading import Unread
from llmd_oke.operations.status.servers import CountedProgram
from llmd_oke.operations.status.symptoms import Severity, Symptom, grouped, some
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.program.smoke import ROUTER_METRICS_PORT, smoke_request


@dataclass(frozen=True)
class CounterGrowth:
    """Counters of servers and routers at two times that are `seconds` of wall time apart, with a text for their
    `source`. `unscraped` are the roles of which Prometheus has no data.
    """

    before: Snapshot
    after: Snapshot
    seconds: float
    source: str
    unscraped: tuple[str, ...] = ()


class PodCounters:
    """Scraper of the pods' counters. The first call scrapes twice, `every_s` seconds apart; later calls scrape once,
    and compare with the last scrape. Pods are reached directly if possible, otherwise through the API server's proxy.
    """

    def __init__(self, access: ClusterAccess, namespace: str, every_s: float) -> None:
        self._access = access
        self._namespace = namespace
        self._every_s = every_s
        self._last: tuple[Snapshot, float] | None = None
        self._straight: bool | None = None

    def __call__(self, programs: Sequence[CountedProgram]) -> CounterGrowth:
        """Return the counters at the last scrape, or now if programs have changed, and at least `every_s` seconds
        later.
        """
        endpoints = tuple(self._endpoints(programs))
        before, started_s = self._last or self._read(endpoints)
        if {item.endpoint.pod for item in before.readings} != {item.pod for item in endpoints}:
            before, started_s = self._read(endpoints)
        sleep(max(0.0, started_s + self._every_s - monotonic()))
        after, ended_s = self._last = self._read(endpoints)
        return CounterGrowth(before, after, ended_s - started_s, f"their own counters over {ended_s - started_s:.0f} s")

    def _read(self, endpoints: Sequence[MetricsEndpoint]) -> tuple[Snapshot, float]:
        return asyncio.run(scrape(endpoints)), monotonic()

    def _endpoints(self, programs: Sequence[CountedProgram]) -> Iterator[MetricsEndpoint]:
        for program in programs:
            port = ROUTER_METRICS_PORT if program.role == "router" else vllm_port(program.role)
            if self._straight is None:  # one attempt, a second at most; all pods are in one network
                self._straight = is_reachable(program.address, port)
            pod = PodAddress(program.pod, program.address)
            way = self._access.pod if self._straight else self._access.proxied
            endpoint = way(self._namespace, pod, port)
            yield MetricsEndpoint(
                program.role, program.pod, f"{endpoint.url}/metrics", endpoint.headers, endpoint.verify
            )


@dataclass(frozen=True)
class Gauges:
    """Latest gauges of the servers of one unit (servers with a router of their own): numbers of waiting and running
    requests, and the share (0 to 1) of the KV cache in use at the fullest server; None if no server exposes them.
    """

    waiting: float | None
    running: float | None
    kv_cache_usage: float | None


@dataclass(frozen=True)
class ModelLoad:
    """Figures of a model's load, compared with targets and limits. `unread` maps servers whose counters can't be read
    to the reason.
    """

    model: str
    observation: CountedObservation
    judgements: tuple[AssumptionJudgement, ...]
    unread: Mapping[str, str]


def model_load(
    plan: Plan,
    model: ModelPlan,
    programs: Iterable[CountedProgram],
    growth: CounterGrowth,
    time_scale: float,
    basis: Basis,
) -> ModelLoad:
    """Compute the figures of one model's load and compare them with its targets and limits; `time_scale` is the wall
    time in seconds in which simulated servers do the work of one second on the real hardware.
    """
    own = {program.pod for program in programs if program.model == model.name}
    before, after = _only(growth.before, own), _only(growth.after, own)
    gauges = moment(after)
    counted = window(before, after, growth.seconds / time_scale)
    seen = observation(counted, [gauges] if gauges else [], basis)
    evidence = smoke_request(plan, model).evidence
    gaps = unread(before, after)
    if evidence and not gaps and not restarted(before, after):
        seen = replace(seen, remote_prefill_share=remote_prefill(before, after, evidence))
    slo = model.slo or Slo()
    held = (*latency_limits(slo.ttft_ms, slo.itl_ms), *model_limits(plan, model))
    return ModelLoad(model.name, seen, judge(held, seen), gaps)


def unit_gauges(programs: Iterable[CountedProgram], snapshot: Snapshot) -> dict[str, Gauges]:
    """Return the gauges of the servers of each unit (servers with a router of their own), by name of the unit."""
    servers = [program for program in programs if program.role != "router"]
    units = grouped((program.unit, program.pod) for program in servers)
    scraped = {unit: _only(snapshot, set(pods)) for unit, pods in units.items()}
    return {
        unit: Gauges(_sum(own, WAITING), _sum(own, RUNNING), max(_values(own, KV_CACHE_USAGE), default=None))
        for unit, own in scraped.items()
    }


def _only(snapshot: Snapshot, pods: set[str]) -> Snapshot:
    return Snapshot(tuple(reading for reading in snapshot.readings if reading.endpoint.pod in pods))


def _values(snapshot: Snapshot, gauge: Counter) -> list[float]:
    values = (reading.total(gauge) for reading in snapshot.readings)
    return [value for value in values if value is not None]


def _sum(snapshot: Snapshot, gauge: Counter) -> float | None:
    values = _values(snapshot, gauge)
    return sum(values) if values else None


def load_symptoms(loads: Iterable[ModelLoad] | Unread, stack: str) -> Iterator[Symptom]:
    """Yield the symptoms of targets and limits that aren't met, and of servers whose counters can't be read."""
    if isinstance(loads, Unread):
        return
    for load in loads:
        for judgement in load.judgements:
            if judgement.off and judgement.value is not None:
                limit = judgement.assumption
                seen, held = (limit.figure.text(value) for value in (judgement.value, limit.value))
                what = f"{load.model}: {limit.figure.title} {seen}, to be {limit.side} {held}"
                yield Symptom(Severity.DEGRADED, what, f"llmd-oke tune watch --stack {stack}")
        if load.unread:
            why = next(iter(load.unread.values()))
            what = f"counters of {some(load.unread)} can't be read: {why}"
            yield Symptom(Severity.RISK, what, "docs/network-policies.md says who may reach servers.")
