"""llm-d benchmark reports of version 0.1 (llm-d-benchmark, docs/benchmark_report.md): one report is one row."""

from collections.abc import Iterator
from typing import Any

from llmd_oke.results.readers import report_parts
from llmd_oke.results.readers.document import Document
from llmd_oke.results.readers.rows import gpu_product, one_row, to_row
from llmd_oke.results.readers.source import Source
from llmd_oke.results.reading import Hints, Read
from llmd_oke.results.row import Row


def detect(source: Source) -> bool:
    """Whether it is a mapping whose version is 0.1."""
    return str(source.mapping.get("version")) == "0.1" and "metrics" in source.mapping


def read(source: Source, hints: Hints) -> Read:
    """Its row, or why there is none."""
    return one_row(source, lambda: _row(source, hints))


def _row(source: Source, hints: Hints) -> Row:
    report = Document(source.mapping)
    scenario, metrics = report.part("scenario"), report.part("metrics")
    requests, throughput, load = metrics.part("requests"), metrics.part("throughput"), scenario.part("load")
    requests_per_s = throughput.number("requests_per_sec")
    found = {
        "origin": source.origin(load.part("metadata").text("tool") or load.text("name") or "llm-d-benchmark"),
        "model": scenario.part("model").text("name") or load.part("args", "server").text("model_name"),
        **_hosts(scenario.part("host")),
        **report_parts.lengths(requests),
        "requests": requests.whole("total"),
        "failures": requests.whole("failures"),
        "achieved_requests_per_s": requests_per_s,
        **_token_rates(throughput),
        "duration_s": metrics.part("time").number("duration"),
        **report_parts.latencies(metrics.part("latency")),
        **report_parts.in_flight(metrics.part("latency"), requests_per_s),
        **_load(load),
    }
    return to_row({**found, **report_parts.own_facts(report.part("metadata", "llmd_oke"))}, hints)


def _hosts(host: Document) -> dict[str, Any]:
    """Accelerators of version 0.1: one entry for each server, whose `count` is its GPUs."""
    accelerators = host.parts("accelerator")
    counts = [each.whole("count") for each in accelerators]
    products = {each.text("model") for each in accelerators}
    return {
        "gpu": gpu_product(products.pop()) if len(products) == 1 else None,
        "gpus_counted": sum(filter(None, counts)) if counts and None not in counts else None,
        "topology": report_parts.topology_of(_servers(host)),
    }


def _servers(host: Document) -> Iterator[tuple[str | None, int | None, int | None]]:
    roles: list[object] = list(host.content.get("type") or ())
    for role, accelerator in zip(roles, host.parts("accelerator"), strict=False):
        yield str(role), 1, accelerator.part("parallelism").whole("tp")


def _token_rates(throughput: Document) -> dict[str, Any]:
    """The format needs the total only; input is what it has above the output."""
    total, output = throughput.number("total_tokens_per_sec"), throughput.number("output_tokens_per_sec")
    rest = None if total is None or output is None else total - output
    return {
        "input_tokens_per_s": throughput.number("input_tokens_per_sec") or rest,
        "output_tokens_per_s": output,
    }


def _load(load: Document) -> dict[str, Any]:
    """Arrival, rate and concurrency of the stage that the report is about, as inference-perf is configured."""
    config = load.part("args", "load")
    stages, number = config.parts("stages"), load.part("metadata").whole("stage") or 0
    stage = stages[number] if number < len(stages) else Document()
    told = {
        "arrival": report_parts.arrival_of(load.part("args")),
        "offered_requests_per_s": stage.number("rate"),
        "concurrency": stage.number("concurrency_level") or load.part("args").number("concurrency"),
    }
    return {name: value for name, value in told.items() if value is not None}
