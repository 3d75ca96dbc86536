"""Reader of llm-d benchmark reports 0.1 and 0.2 (llm-d-benchmark, docs/benchmark_report.md): one report is one row."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from llmd_base.config_maps import NO_ENTRIES
from llmd_base.metrics import LATENCIES, RATES_IN_REPORTS, TOTAL_TOKENS
from llmd_base.row import CONDITIONS, Arrival, Origin, Quantiles, Row

from llmd_bench.deployment import Parallelism, aggregated_short_form, disaggregated_short_form
from llmd_bench.files import Hints
from llmd_bench.readers.source import SourceDocument, SourceFile, UnreadableError, to_row

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
"""Arrival process by load type of inference-perf, or by load shape in this kit's own reports."""


def lengths(requests: SourceDocument) -> dict[str, Any]:
    """Return the mean lengths of prompts and answers in tokens, by field of a row, from a report's section on
    requests.
    """
    return {
        "input_tokens": requests.part("input_length").number("mean"),
        "output_tokens": requests.part("output_length").number("mean"),
    }


def latencies(section: SourceDocument, names: Mapping[str, str] = NO_ENTRIES) -> dict[str, Quantiles]:
    """Return the distributions of the four latencies in ms; `names` maps quantiles of a row to the document's names if
    they differ.
    """
    return {latency.name: _quantiles(section.part(latency.report), names) for latency in LATENCIES}


def _quantiles(statistics: SourceDocument, names: Mapping[str, str] = NO_ENTRIES) -> Quantiles:
    units = statistics.text("units") or "s"
    if units not in _TO_MS:
        raise UnreadableError(f"{statistics.where}.units is {units!r}; readable are {', '.join(_TO_MS)}")
    values = {name: statistics.number(names.get(name, name)) for name in Quantiles.model_fields}
    return Quantiles(**{name: None if value is None else value * _TO_MS[units] for name, value in values.items()})


def in_flight(latency: SourceDocument, requests_per_s: float | None) -> dict[str, Any]:
    """Return the mean number of requests in flight, by Little's law, as the field `concurrency`; empty if unknown."""
    mean_ms = _quantiles(latency.part("request_latency")).mean
    return {} if mean_ms is None or requests_per_s is None else {"concurrency": requests_per_s * mean_ms / 1000}


def arrival_of(config: SourceDocument) -> Arrival | None:
    """Return the arrival process from the configuration of inference-perf or of this kit that a report contains; None
    if unknown.
    """
    return ARRIVALS.get(config.part("load").text("type") or config.text("shape") or "")


def topology_of(servers: Iterable[tuple[str | None, int | None, Parallelism | None]]) -> str | None:
    """Return the short form of servers given as role, replicas and parallelism; None if it can't be determined."""
    known: dict[str, tuple[int, Parallelism]] = {}
    for role, replicas, spread in servers:
        if role is None or replicas is None or spread is None or known.get(role, (0, spread))[1] != spread:
            return None
        known[role] = (known.get(role, (0, spread))[0] + replicas, spread)
    match sorted(known):
        case ["decode", "prefill"]:
            return disaggregated_short_form(*known["prefill"], *known["decode"])
        case ["replica"]:
            replicas, spread = known["replica"]
            return aggregated_short_form(spread, replicas)
        case _:
            return None


def _spread(parallelism: SourceDocument) -> Parallelism | None:
    """Return how a report's servers are spread over GPUs; None where their tensor parallel size isn't told."""
    size, ranks, experts = (parallelism.whole(name) for name in ("tp", "dp", "ep"))
    return None if size is None else Parallelism(size, ranks or 1, (experts or 1) > 1)


def own_facts(own: SourceDocument) -> dict[str, Any]:
    """Return the facts in the section that this kit adds to its reports, by field of a row."""
    topology = own.text("topology") or ""
    copies, times, unit = topology.partition(" x ")
    facts: dict[str, Any] = {
        "topology": (unit if times else topology) or None,
        "copies": int(copies) if times and copies.isdigit() else None,
        "gpus_counted": own.whole("gpus"),
        "gpus_reserved": own.whole("gpus_reserved"),
        "basis": own.part("provenance").text("numbers"),
        "price_usd_per_hour": own.part("facts").number("price_usd_per_hour"),
        **{name: own.part("facts").content.get(name) for name in CONDITIONS},
    }
    return {name: value for name, value in facts.items() if value is not None}


def detect(source: SourceFile, *, version: str, section: str) -> bool:
    """Return whether a file is an llm-d benchmark report of this version (or a patch version of it) with the section
    that holds the results.
    """
    return (
        re.match(rf"{re.escape(version)}\b", str(source.mapping.get("version"))) is not None
        and section in source.mapping
    )


def row_v01(source: SourceFile, hints: Hints) -> Row:
    """Return the row of an llm-d benchmark report of version 0.1.

    Raises:
        UnreadableError: the report has no valid row.
    """
    report = SourceDocument(source.mapping)
    scenario, metrics = report.part("scenario"), report.part("metrics")
    requests, throughput, load = metrics.part("requests"), metrics.part("throughput"), scenario.part("load")
    rates = _rates(throughput)
    fields = {
        "origin": source.origin(load.part("metadata").text("tool") or load.text("name") or "llm-d-benchmark"),
        "model": scenario.part("model").text("name") or load.part("args", "server").text("model_name"),
        **_hosts(scenario.part("host")),
        **lengths(requests),
        "requests": requests.whole("total"),
        "failures": requests.whole("failures"),
        **rates,
        "duration_s": metrics.part("time").number("duration"),
        **latencies(metrics.part("latency")),
        **in_flight(metrics.part("latency"), rates["achieved_requests_per_s"]),
        **_load_v01(load),
    }
    return to_row({**fields, **own_facts(report.part("metadata", "llmd_oke"))}, hints)


def _hosts(host: SourceDocument) -> dict[str, Any]:
    """Return the accelerators of a report of version 0.1, which has one entry per server with its number of GPUs as
    `count`.
    """
    accelerators = host.parts("accelerator")
    roles: list[object] = list(host.content.get("type") or ())
    spreads = [_spread(accelerator.part("parallelism")) for accelerator in accelerators]
    counts = [accelerator.whole("count") for accelerator in accelerators]
    products = {accelerator.text("model") for accelerator in accelerators}
    return {
        "gpu": products.pop() if len(products) == 1 else None,
        "gpus_counted": sum(filter(None, counts)) if counts and None not in counts else None,
        "topology": topology_of((str(role), 1, spread) for role, spread in zip(roles, spreads, strict=False)),
    }


def _rates(throughput: SourceDocument) -> dict[str, float | None]:
    """Return the rates by field of a row. The format requires only the total rate; a missing input rate is total minus
    output.
    """
    rates = {name: throughput.number(rate.v01) for name, rate in RATES_IN_REPORTS.items()}
    total, output = throughput.number(TOTAL_TOKENS.v01), rates["output_tokens_per_s"]
    rest = None if total is None or output is None else total - output
    return {**rates, "input_tokens_per_s": rates["input_tokens_per_s"] or rest}


def _load_v01(load: SourceDocument) -> dict[str, Any]:
    """Return arrival process, rate and concurrency of the report's stage, from inference-perf's configuration."""
    config = load.part("args", "load")
    stages, number = config.parts("stages"), load.part("metadata").whole("stage") or 0
    stage = stages[number] if number < len(stages) else SourceDocument()
    load_fields = {
        "arrival": arrival_of(load.part("args")),
        "offered_requests_per_s": stage.number("rate"),
        "concurrency": stage.number("concurrency_level") or load.part("args").number("concurrency"),
    }
    return {name: value for name, value in load_fields.items() if value is not None}


def row_v02(source: SourceFile, hints: Hints) -> Row:
    """Return the row of an llm-d benchmark report of version 0.2.

    Raises:
        UnreadableError: the report has no valid row.
    """
    report = SourceDocument(source.mapping)
    aggregate = report.part("results", "request_performance", "aggregate")
    requests, throughput = aggregate.part("requests"), aggregate.part("throughput")
    load, own = report.part("scenario", "load"), report.part("results", "observability", "llmd_oke")
    rates = {name: throughput.part(rate.v02).number("mean") for name, rate in RATES_IN_REPORTS.items()}
    fields = {
        "origin": _origin(source, report, own),
        **_engines(report.part("scenario")),
        **lengths(requests),
        "requests": requests.whole("total"),
        "failures": requests.whole("failures"),
        **rates,
        "duration_s": _iso_seconds(report.part("run", "time").text("duration")),
        **latencies(aggregate.part("latency")),
        **in_flight(aggregate.part("latency"), rates["achieved_requests_per_s"]),
        **_load_v02(load),
    }
    return to_row({**fields, **own_facts(own)}, hints)


def _origin(source: SourceFile, report: SourceDocument, own: SourceDocument) -> Origin:
    run = report.part("run")
    tool = report.part("scenario", "load", "standardized").text("tool") or "llm-d-benchmark"
    fields = {
        "run": run.text("uid"),
        "started": run.part("time").text("start"),
        "config_hash": own.part("facts").text("config_hash"),
    }
    return source.origin(tool).model_copy(update=fields)


def _engines(scenario: SourceDocument) -> dict[str, Any]:
    """Return GPUs, model and topology of a report of version 0.2, in which `count` is the number of GPUs of one
    replica.
    """
    parts = [part.part("standardized") for part in scenario.parts("stack")]
    engines = [part for part in parts if part.text("kind") == "inference_engine"]
    if not engines:
        return {}
    products = {engine.part("accelerator").text("model") for engine in engines}
    counts = [(engine.whole("replicas") or 0) * (engine.part("accelerator").whole("count") or 0) for engine in engines]
    servers = [
        (engine.text("role"), engine.whole("replicas"), _spread(engine.part("accelerator", "parallelism")))
        for engine in engines
    ]
    return {
        "model": engines[0].part("model").text("name"),
        "image": engines[0].text("tool_version"),
        "gpu": products.pop() if len(products) == 1 else None,
        "gpus_counted": sum(counts) or None,
        "topology": topology_of(servers),
    }


def _load_v02(load: SourceDocument) -> dict[str, Any]:
    """Return arrival process, rate and concurrency; infinite concurrency is ignored. The arrival process is only known
    if the native configuration is inference-perf's or this kit's.
    """
    standardized, concurrency = load.part("standardized"), load.part("standardized").content.get("concurrency")
    if isinstance(concurrency, (int, float)) and concurrency != float("inf"):
        return {"concurrency": float(concurrency), "arrival": "closed"}
    fields = {
        "arrival": arrival_of(load.part("native", "config")),
        "offered_requests_per_s": standardized.number("rate_qps"),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _iso_seconds(duration: str | None) -> float | None:
    """Return the seconds of an ISO 8601 duration in the format's form (`PT12.5S`)."""
    if duration is None:
        return None
    if not duration.startswith("PT") or not duration.endswith("S"):
        raise UnreadableError(f"run.time.duration is {duration!r}, not like PT12.5S")
    try:
        return float(duration[2:-1])
    except ValueError as error:
        raise UnreadableError(f"run.time.duration is {duration!r}, not like PT12.5S") from error
