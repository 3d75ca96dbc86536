"""Directories of reports: `<root>/<stack>/<time>/`, with the symbolic link `<root>/<stack>/latest` to the newest.

Each report of version 0.2 is accompanied by one of version 0.1, for tools that read only that version.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from llmd_base.metrics import RATES_IN_REPORTS, TOTAL_TOKENS
from pydantic import BaseModel, ConfigDict

from llmd_bench import report_format as v02
from llmd_bench.files import REQUESTS_FILE, point, write_rows
from llmd_bench.history import ROWS_FILE, stack_folder
from llmd_bench.load.records import write_file
from llmd_bench.performance import Statistics
from llmd_bench.report import build_report, summarize_result, to_yaml
from llmd_bench.rows import smoke_row
from llmd_bench.smoke import SmokeResult


class _Lenient(BaseModel):
    """Base class of sections of version 0.1 that the kit writes or reads; unknown fields are kept, since published
    reports contain some.
    """

    model_config = ConfigDict(extra="allow", frozen=True)


class LatencyV01(_Lenient):
    """Latencies of all requests of a run, in a report of version 0.1."""

    time_to_first_token: Statistics
    normalized_time_per_output_token: Statistics | None = None
    time_per_output_token: Statistics | None = None
    inter_token_latency: Statistics | None = None
    request_latency: Statistics | None = None


class RequestsV01(_Lenient):
    """Numbers of requests and their lengths in tokens, in a report of version 0.1."""

    total: int
    failures: int | None = None
    incomplete: int | None = None
    input_length: Statistics
    output_length: Statistics


class ThroughputV01(_Lenient):
    """Throughput of the whole stack under test, in a report of version 0.1."""

    total_tokens_per_sec: float
    input_tokens_per_sec: float | None = None
    output_tokens_per_sec: float | None = None
    requests_per_sec: float | None = None


class TimeV01(_Lenient):
    """Times of a run in a report of version 0.1: `duration` in seconds, `start` and `stop` in seconds since the Unix
    epoch.
    """

    duration: float
    start: float | None = None
    stop: float | None = None


class MetricsV01(_Lenient):
    """Metrics of a benchmark run, as in version 0.1 of llm-d's benchmark report."""

    time: TimeV01
    requests: RequestsV01
    latency: LatencyV01
    throughput: ThroughputV01


class BenchmarkReportV01(_Lenient):
    """llm-d benchmark report of version 0.1."""

    version: Literal["0.1"]
    scenario: dict[str, Any]
    metrics: MetricsV01


_ACCELERATOR = {"model": True, "count": True, "parallelism": {"dp", "tp", "pp", "ep"}}
"""Fields of an accelerator that version 0.1 has too."""

GENERATOR = "nop"
"""Name of the load generator in version 0.1, whose closed list lacks this kit; the metadata contain the kit's name."""


def to_v01(report: v02.BenchmarkReport) -> BenchmarkReportV01 | None:
    """Return an llm-d benchmark report of version 0.2 in version 0.1; None if a required field is missing, for example
    because no request was answered.
    """
    performance = report.results.request_performance
    aggregate = performance.aggregate if performance else None
    if aggregate is None or report.scenario is None or report.scenario.load is None:
        return None
    metrics = _metrics(report, aggregate)
    if metrics is None:
        return None
    observability = report.results.observability or v02.Observability()
    # figures of this kit that the format has no fields for, as in version 0.2
    metadata = report.run.model_dump(include={"uid"}) | observability.model_dump(include={"llmd_oke"})
    content = {
        "version": "0.1",
        "scenario": _scenario(report, report.scenario, report.scenario.load),
        "metrics": metrics,
        "metadata": metadata,
    }
    return BenchmarkReportV01.model_validate(content)


def _metrics(report: v02.BenchmarkReport, aggregate: v02.Aggregate) -> v02.Json | None:
    requests, latency, throughput = aggregate.requests, aggregate.latency, aggregate.throughput
    if requests is None or latency is None or throughput is None or throughput.total_token_rate is None:
        return None
    if requests.input_length is None or requests.output_length is None or latency.time_to_first_token is None:
        return None
    rates: dict[str, Statistics | None] = {
        rate.v01: getattr(throughput, rate.v02) for rate in (*RATES_IN_REPORTS.values(), TOTAL_TOKENS)
    }
    return {
        "time": _time(report.run),
        "requests": requests.model_dump(exclude_none=True),
        "latency": latency.model_dump(exclude_none=True),
        "throughput": {name: rate.mean for name, rate in rates.items() if rate},
    }


def _time(run: v02.ReportedRun) -> v02.Json:
    """Return the run's duration in seconds, and its start and stop in seconds since the Unix epoch."""
    time = run.time or v02.RunTime()
    known = {
        "duration": float(time.duration.removeprefix("PT").removesuffix("S")) if time.duration else 0.0,
        "start": time.start.timestamp() if time.start else None,
        "stop": time.end.timestamp() if time.end else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _scenario(report: v02.BenchmarkReport, scenario: v02.Scenario, load: v02.LoadSection) -> v02.Json:
    """Return the scenario of version 0.1, which has an entry for each server instead of for each role."""
    engines = [
        (part.standardized, part.native)
        for part in scenario.stack or ()
        if isinstance(part.standardized, v02.InferenceEngine)
        for _ in range(part.standardized.replicas)
    ]
    content: v02.Json = {
        "description": report.run.description,
        "model": {"name": engines[0][0].model.name if engines else "unknown"},
        "load": {
            "name": GENERATOR,
            "type": "random",
            "args": load.native.config,
            "metadata": load.standardized.model_dump(include={"stage", "tool"}),
        },
    }
    if engines:
        content["host"] = {
            "accelerator": [engine.accelerator.model_dump(include=_ACCELERATOR) for engine, _ in engines],
            "type": [engine.role for engine, _ in engines],
        }
        content["platform"] = {
            "engine": [
                {"name": engine.tool, "version": engine.tool_version, "args": native.args or {}}
                for engine, native in engines
            ]
        }
    return content


REPORT_FILE = "benchmark_report_v0.2,_smoke.yaml"
"""File name of a smoke benchmark's report, in llm-d-benchmark's naming scheme."""

REPORT_FILE_V01 = "benchmark_report,_smoke.yaml"

LATEST = "latest"


@dataclass(frozen=True)
class StoredReport:
    """Paths of the files that store one result of a benchmark."""

    folder: Path
    report: Path
    requests: Path
    summary: Path
    rows: Path


def store(
    result: SmokeResult,
    root: Path,
    stack: str,
    *,
    model: str,
    started: datetime | None = None,
    part: str | None = None,
) -> StoredReport:
    """Write both reports, requests, row and summary of `result`, then point the link `latest` at them. `model` is the
    model's name in the row.

    The report of version 0.1, which requires latencies, is left out if no request was answered.

    Results of one run (the models of one stack) have the same `started` and different values of `part`, the name of a
    subdirectory.
    """
    moment = (started or result.started).strftime("%Y%m%dT%H%M%SZ")
    run_folder = root / stack_folder(stack) / moment
    folder = run_folder / part if part else run_folder
    folder.mkdir(parents=True, exist_ok=True)
    stored = StoredReport(
        folder, folder / REPORT_FILE, folder / REQUESTS_FILE, folder / "summary.json", folder / ROWS_FILE
    )
    report = build_report(result)
    stored.report.write_text(to_yaml(report), encoding="utf-8")
    if older := to_v01(report):
        (folder / REPORT_FILE_V01).write_text(to_yaml(older), encoding="utf-8")
    write_rows([smoke_row(result, model=model)], stored.rows)
    write_file(stored.requests, result.records)
    stored.summary.write_text(json.dumps(summarize_result(result), indent=2) + "\n", encoding="utf-8")
    point(run_folder.parent / LATEST, moment)
    return stored
