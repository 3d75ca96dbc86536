"""Counters of the programs under test: read before and after a load, and compared.

A scrape that fails is a fact to report, never an exception: the benchmark goes on and what rests on that counter is
unknown.
"""

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal

import httpx
from prometheus_client.parser import text_string_to_metric_families

from llmd_oke.bench.clients import open_client
from llmd_oke.bench.topology import Role

EndpointRole = Literal["router"] | Role

SCRAPE_TIMEOUT_S = 10.0

_STARTED = "process_start_time_seconds"


@dataclass(frozen=True)
class MetricsEndpoint:
    """Where one program shows its counters.

    `headers` may carry a bearer token, which the endpoint picker asks for by default.
    """

    role: EndpointRole
    pod: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True


@dataclass(frozen=True)
class Counter:
    """A counter under the names it has had in different versions; the first that a program shows counts.

    Series are added up. With `labels` only those count whose labels have one of the given values.
    """

    names: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class Series:
    """One sample of a scrape."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Reading:
    """What one program showed; `error` says why there are no series."""

    endpoint: MetricsEndpoint
    series: Mapping[str, tuple[Series, ...]] = field(default_factory=dict[str, tuple[Series, ...]])
    error: str | None = None

    def total(self, counter: Counter) -> float | None:
        """The counter's value, or None if the program doesn't show it."""
        name = next((name for name in counter.names if name in self.series), None)
        if name is None:
            return None
        return sum(series.value for series in self.series[name] if _matches(series.labels, counter.labels))


@dataclass(frozen=True)
class Snapshot:
    """All readings of one moment, in the order of the endpoints."""

    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class Change:
    """What a counter of a role grew by between two snapshots, over all its programs.

    `value` is None when no program of the role shows the counter, or one of them could not be read, since then the
    sum means nothing. Of a program that restarted in between, only what it counted since then is in `value`: a lower
    bound.
    """

    value: float | None
    before: float | None = None
    after: float | None = None
    restarted: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    read: int = 0


def parse(text: str) -> dict[str, tuple[Series, ...]]:
    """Read Prometheus text; a sample keeps the name that stands in the text."""
    series: dict[str, list[Series]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(Series(sample.labels, sample.value))
    return {name: tuple(samples) for name, samples in series.items()}


async def scrape(endpoints: Iterable[MetricsEndpoint], *, timeout_s: float = SCRAPE_TIMEOUT_S) -> Snapshot:
    """Read all endpoints at the same time, each within `timeout_s`."""
    return Snapshot(tuple(await asyncio.gather(*(_read(endpoint, timeout_s) for endpoint in endpoints))))


async def _read(endpoint: MetricsEndpoint, timeout_s: float) -> Reading:
    try:
        async with (
            asyncio.timeout(timeout_s),
            open_client(
                endpoint.url, verify=endpoint.verify, headers=endpoint.headers, timeout=httpx.Timeout(timeout_s)
            ) as client,
        ):
            answer = await client.get(endpoint.url)
        if answer.status_code != HTTPStatus.OK:
            return Reading(endpoint, error=f"HTTP {answer.status_code}")
        return Reading(endpoint, parse(answer.text))
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
        return Reading(endpoint, error=f"{type(error).__name__}: {error}".rstrip(": "))


def change(before: Snapshot, after: Snapshot, role: EndpointRole, counter: Counter) -> Change:
    """What `counter` grew by over all programs of `role`."""
    earlier = {reading.endpoint.url: reading for reading in before.readings}
    pairs = [
        (earlier.get(reading.endpoint.url, Reading(reading.endpoint, error="not read")), reading)
        for reading in after.readings
        if reading.endpoint.role == role
    ]
    unread = tuple(new.endpoint.pod for old, new in pairs if old.error or new.error)
    read = [(old, new) for old, new in pairs if not (old.error or new.error)]
    grown = [(_restarted(old, new, counter), old.total(counter), new.total(counter), new) for old, new in read]
    shown = [(restarted, old or 0.0, new, reading) for restarted, old, new, reading in grown if new is not None]
    return Change(
        value=sum(new if restarted else new - old for restarted, old, new, _ in shown)
        if shown and not unread
        else None,
        before=sum(old for _, old, _, _ in shown) if shown else None,
        after=sum(new for _, _, new, _ in shown) if shown else None,
        restarted=tuple(reading.endpoint.pod for restarted, _, _, reading in shown if restarted),
        unread=unread,
        read=len(read),
    )


def _restarted(old: Reading, new: Reading, counter: Counter) -> bool:
    started = Counter((_STARTED,))
    if (old.total(started) or 0.0) != (new.total(started) or 0.0):
        return True
    return (new.total(counter) or 0.0) < (old.total(counter) or 0.0)


def _matches(labels: Mapping[str, str], wanted: Mapping[str, tuple[str, ...]]) -> bool:
    return all(labels.get(name) in values for name, values in wanted.items())
