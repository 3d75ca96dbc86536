"""What reports of versions 0.1 and 0.2 have in common."""

from collections.abc import Iterable, Mapping
from typing import Any

from llmd_oke.results.readers.document import Document, UnreadableError
from llmd_oke.results.row import CONDITIONS, Arrival, Quantiles

_LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "time_per_output_token",
    "itl_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
}

_TO_MS = {"s": 1000.0, "s/token": 1000.0, "ms": 1.0, "ms/token": 1.0}

ARRIVALS: Mapping[str, Arrival] = {
    "constant": "constant",
    "poisson": "poisson",
    "concurrent": "closed",
    "closed": "closed",
    "closed loop": "closed",
    "trace": "trace",
    "trace_replay": "trace",
    "trace_session_replay": "trace",
}
"""Load types of inference-perf, and this kit's names of loads."""


def lengths(requests: Document) -> dict[str, Any]:
    """Mean lengths of prompts and answers."""
    return {
        "input_tokens": requests.part("input_length").number("mean"),
        "output_tokens": requests.part("output_length").number("mean"),
    }


def latencies(latency: Document) -> dict[str, Quantiles]:
    """The four latencies in ms."""
    return {name: _quantiles(latency.part(key)) for name, key in _LATENCIES.items()}


def _quantiles(statistics: Document) -> Quantiles:
    units = statistics.text("units") or "s"
    if units not in _TO_MS:
        raise UnreadableError(f"{statistics.where}.units is {units!r}; readable are {', '.join(_TO_MS)}")
    values = {name: statistics.number(name) for name in Quantiles.model_fields}
    return Quantiles(**{name: None if value is None else value * _TO_MS[units] for name, value in values.items()})


def in_flight(latency: Document, requests_per_s: float | None) -> dict[str, Any]:
    """Requests in flight on average, by Little's law, where the load does not set them."""
    mean_ms = _quantiles(latency.part("request_latency")).mean
    return {} if mean_ms is None or requests_per_s is None else {"concurrency": requests_per_s * mean_ms / 1000}


def arrival_of(config: Document) -> Arrival | None:
    """How requests arrive, of the configuration of inference-perf, or of this kit, that a report carries along."""
    return ARRIVALS.get(config.part("load").text("type") or config.text("shape") or "")


def topology_of(servers: Iterable[tuple[str | None, int | None, int | None]]) -> str | None:
    """The short form of servers given by role, replicas and TP; None where they have none, or it is not told."""
    sizes: dict[str, tuple[int, int]] = {}
    for role, replicas, size in servers:
        if role is None or replicas is None or size is None or sizes.get(role, (0, size))[1] != size:
            return None
        sizes[role] = (sizes.get(role, (0, size))[0] + replicas, size)
    match sorted(sizes):
        case ["decode", "prefill"]:
            return "{}p-tp{}-{}d-tp{}".format(*sizes["prefill"], *sizes["decode"])
        case ["replica"]:
            return "agg-tp{1}-{0}r".format(*sizes["replica"])
        case _:
            return None


def own_facts(own: Document) -> dict[str, Any]:
    """What the kit's own reports say in the section that is theirs."""
    topology = own.text("topology") or ""
    copies, times, unit = topology.partition(" x ")
    told: dict[str, Any] = {
        "topology": (unit if times else topology) or None,
        "copies": int(copies) if times and copies.isdigit() else None,
        "gpus_counted": own.whole("gpus"),
        "gpus_reserved": own.whole("gpus_reserved"),
        "basis": own.part("provenance").text("numbers"),
        "price_usd_per_hour": own.part("facts").number("price_usd_per_hour"),
        **{name: own.part("facts").content.get(name) for name in CONDITIONS},
    }
    return {name: value for name, value in told.items() if value is not None}
