"""A report of version 0.2 as one of version 0.1, for tools that read only that."""

from llmd_oke.bench.reporting import format as v02
from llmd_oke.bench.reporting.format_v01 import BenchmarkReportV01

GENERATOR = "nop"
"""Version 0.1 has a closed list of load generators, which this kit's is not on; its name stands in the metadata."""


def to_v01(report: v02.BenchmarkReport) -> BenchmarkReportV01 | None:
    """The report in the older format; None where it lacks what that can't be without, for example because no request
    was answered.
    """
    aggregate = _aggregate(report)
    if aggregate is None or report.scenario is None or report.scenario.load is None:
        return None
    metrics = _metrics(report, aggregate)
    if metrics is None:
        return None
    content = {
        "version": "0.1",
        "scenario": _scenario(report, report.scenario, report.scenario.load),
        "metrics": metrics,
        "metadata": _metadata(report),
    }
    return BenchmarkReportV01.model_validate(content)


def _aggregate(report: v02.BenchmarkReport) -> v02.Aggregate | None:
    performance = report.results.request_performance
    return performance.aggregate if performance else None


def _metrics(report: v02.BenchmarkReport, aggregate: v02.Aggregate) -> v02.Json | None:
    requests, latency, throughput = aggregate.requests, aggregate.latency, aggregate.throughput
    if requests is None or latency is None or throughput is None or throughput.total_token_rate is None:
        return None
    if requests.input_length is None or requests.output_length is None or latency.time_to_first_token is None:
        return None
    rates = {
        "input_tokens_per_sec": throughput.input_token_rate,
        "output_tokens_per_sec": throughput.output_token_rate,
        "total_tokens_per_sec": throughput.total_token_rate,
        "requests_per_sec": throughput.request_rate,
    }
    return {
        "time": _time(report.run),
        "requests": requests.model_dump(exclude_none=True),
        "latency": latency.model_dump(exclude_none=True),
        "throughput": {name: rate.mean for name, rate in rates.items() if rate},
    }


def _time(run: v02.Run) -> v02.Json:
    """Version 0.1 counts in seconds, from 1970 on."""
    time = run.time or v02.RunTime()
    known = {
        "duration": float(time.duration.removeprefix("PT").removesuffix("S")) if time.duration else 0.0,
        "start": time.start.timestamp() if time.start else None,
        "stop": time.end.timestamp() if time.end else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _scenario(report: v02.BenchmarkReport, scenario: v02.Scenario, load: v02.LoadSection) -> v02.Json:
    """Version 0.1 has an entry for each server, not for each role."""
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
            "metadata": {"stage": load.standardized.stage, "tool": load.standardized.tool},
        },
    }
    if engines:
        content["host"] = {
            "accelerator": [_accelerator(engine.accelerator) for engine, _ in engines],
            "type": [engine.role for engine, _ in engines],
        }
        content["platform"] = {
            "engine": [
                {"name": engine.tool, "version": engine.tool_version, "args": native.args or {}}
                for engine, native in engines
            ]
        }
    return content


def _accelerator(accelerator: v02.Accelerator) -> v02.Json:
    parallelism = accelerator.parallelism.model_dump(include={"dp", "tp", "pp", "ep"})
    return {"model": accelerator.model, "count": accelerator.count, "parallelism": parallelism}


def _metadata(report: v02.BenchmarkReport) -> v02.Json:
    """What this kit says beyond the format, as in version 0.2."""
    observability = report.results.observability
    return {"uid": report.run.uid, "llmd_oke": observability.llmd_oke if observability else None}
