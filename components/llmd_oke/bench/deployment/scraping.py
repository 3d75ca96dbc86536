"""Reading the counters of the programs under test.

A scrape that fails is a fact to report, never an exception: the benchmark goes on and what rests on that counter is
unknown.
"""

import asyncio
from collections.abc import Iterable
from http import HTTPStatus

import httpx
from prometheus_client.parser import text_string_to_metric_families

from llmd_oke.bench.deployment.clients import open_client
from llmd_oke.bench.deployment.metrics import MetricsEndpoint, Reading, Series, Snapshot

SCRAPE_TIMEOUT_S = 10.0


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
