"""llm-d benchmark reports of version 0.2 (llm-d-benchmark, docs/benchmark_report.md): one report is one row."""

from typing import Any

from llmd_oke.results.readers import report_parts
from llmd_oke.results.readers.document import Document, UnreadableError
from llmd_oke.results.readers.rows import gpu_product, one_row, to_row
from llmd_oke.results.readers.source import Source
from llmd_oke.results.reading import Hints, Read
from llmd_oke.results.row import Origin, Row


def detect(source: Source) -> bool:
    """Whether it is a mapping whose version is 0.2 or a patch of it."""
    return str(source.mapping.get("version")).startswith("0.2") and "results" in source.mapping


def read(source: Source, hints: Hints) -> Read:
    """Its row, or why there is none."""
    return one_row(source, lambda: _row(source, hints))


def _row(source: Source, hints: Hints) -> Row:
    report = Document(source.mapping)
    aggregate = report.part("results", "request_performance", "aggregate")
    requests, throughput = aggregate.part("requests"), aggregate.part("throughput")
    load, own = report.part("scenario", "load"), report.part("results", "observability", "llmd_oke")
    requests_per_s = throughput.part("request_rate").number("mean")
    found = {
        "origin": _origin(source, report, own),
        **_engines(report.part("scenario")),
        **report_parts.lengths(requests),
        "requests": requests.whole("total"),
        "failures": requests.whole("failures"),
        "achieved_requests_per_s": requests_per_s,
        "input_tokens_per_s": throughput.part("input_token_rate").number("mean"),
        "output_tokens_per_s": throughput.part("output_token_rate").number("mean"),
        "duration_s": _iso_seconds(report.part("run", "time").text("duration")),
        **report_parts.latencies(aggregate.part("latency")),
        **report_parts.in_flight(aggregate.part("latency"), requests_per_s),
        **_load(load),
    }
    return to_row({**found, **report_parts.own_facts(own)}, hints)


def _origin(source: Source, report: Document, own: Document) -> Origin:
    run = report.part("run")
    tool = report.part("scenario", "load", "standardized").text("tool") or "llm-d-benchmark"
    told = {
        "run": run.text("uid"),
        "started": run.part("time").text("start"),
        "config_hash": own.part("facts").text("config_hash"),
    }
    return source.origin(tool).model_copy(update=told)


def _engines(scenario: Document) -> dict[str, Any]:
    """GPUs, model and topology of version 0.2: `count` is the GPUs of one replica."""
    servers = [part.part("standardized") for part in scenario.parts("stack")]
    engines = [each for each in servers if each.text("kind") == "inference_engine"]
    if not engines:
        return {}
    products = {each.part("accelerator").text("model") for each in engines}
    counts = [(each.whole("replicas") or 0) * (each.part("accelerator").whole("count") or 0) for each in engines]
    return {
        "model": engines[0].part("model").text("name"),
        "image": engines[0].text("tool_version"),
        "gpu": gpu_product(products.pop()) if len(products) == 1 else None,
        "gpus_counted": sum(counts) or None,
        "topology": report_parts.topology_of(map(_servers, engines)),
    }


def _servers(engine: Document) -> tuple[str | None, int | None, int | None]:
    """Role, replicas, and GPUs of each."""
    return engine.text("role"), engine.whole("replicas"), engine.part("accelerator", "parallelism").whole("tp")


def _load(load: Document) -> dict[str, Any]:
    """Arrival, rate and concurrency; an infinite concurrency is none. How requests come is known of inference-perf."""
    standardized, concurrency = load.part("standardized"), load.part("standardized").content.get("concurrency")
    if isinstance(concurrency, (int, float)) and concurrency != float("inf"):
        return {"concurrency": float(concurrency), "arrival": "closed"}
    told = {
        "arrival": report_parts.arrival_of(load.part("native", "config")),
        "offered_requests_per_s": standardized.number("rate_qps"),
    }
    return {name: value for name, value in told.items() if value is not None}


def _iso_seconds(duration: str | None) -> float | None:
    """Seconds of an ISO 8601 duration in the form that the format uses (`PT12.5S`)."""
    if duration is None:
        return None
    if not duration.startswith("PT") or not duration.endswith("S"):
        raise UnreadableError(f"run.time.duration is {duration!r}, not like PT12.5S")
    try:
        return float(duration[2:-1])
    except ValueError as error:
        raise UnreadableError(f"run.time.duration is {duration!r}, not like PT12.5S") from error
