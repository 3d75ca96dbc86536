"""Configuration files and results of inference-perf.

Results are `stage_N_lifecycle_metrics.json` and `summary_lifecycle_metrics.json`; each stage is a row. Model, lengths
and arrival process come from `config.yaml` in the same directory, which inference-perf writes too. Source:
kubernetes-sigs/inference-perf, docs/reports.md; all times are in seconds.

The configuration has the keys of inference-perf's config.yml. Releases up to 0.6 ignore unknown keys, 0.7 refuses them,
so only keys of all releases are written. A fixed length is written twice, as `type: fixed` and as a normal distribution
without deviation, for releases that don't know `type`.
"""

import re
from dataclasses import dataclass
from typing import Any

from llmd_base.errors import KitError
from llmd_base.row import Row

from llmd_bench.files import Hints
from llmd_bench.load.workload import ClosedLoop, ConstantRate, Fixed, Length, LoadShape, PoissonRate
from llmd_bench.readers.llm_d_report import ARRIVALS, latencies
from llmd_bench.readers.source import SourceDocument, SourceFile, to_row

TOOL = "inference-perf"

_KEYS = {"p50": "median", "p99p9": "p99.9"}
"""Names of quantiles in inference-perf, by name in `Quantiles`, if they differ."""

STAGE = re.compile(r"stage_(\d+)_lifecycle_metrics\.json$")
"""Pattern of the names of the files that inference-perf writes for each stage, beside the summary file of all stages.
"""


def detect(source: SourceFile) -> bool:
    """Return whether a file contains inference-perf's summary of the load and of the successful requests."""
    return {"load_summary", "successes"} <= set(source.mapping)


def stage_row(source: SourceFile, hints: Hints) -> Row:
    """Return the row of a stage of load from inference-perf's result file of the stage.

    Raises:
        UnreadableError: the file is no valid result of a stage.
    """
    configured = SourceFile(source.path.with_name("config.yaml"))
    result = SourceDocument(source.mapping)
    config = SourceDocument(configured.mapping if configured.path.is_file() else {})
    load, good = result.part("load_summary"), result.part("successes")
    latency, throughput = good.part("latency"), good.part("throughput")
    requests_per_s = throughput.number("requests_per_sec")
    goodput_percent = good.part("goodput_metrics").number("goodput_percentage")
    fields = {
        "origin": source.origin(TOOL),
        "model": config.part("server").text("model_name"),
        "input_tokens": _mean(good, "prompt_tokens", "prompt_len"),
        "output_tokens": _mean(good, "output_tokens", "output_len"),
        "requests": load.whole("count"),
        "failures": result.part("failures").whole("count"),
        "achieved_requests_per_s": requests_per_s,
        "input_tokens_per_s": throughput.number("input_tokens_per_sec"),
        "output_tokens_per_s": throughput.number("output_tokens_per_sec"),
        "duration_s": result.number("benchmark_time_seconds") or load.number("send_duration"),
        **latencies(latency, _KEYS),
        **_load(source, load, config),
        "goodput_share": None if goodput_percent is None else goodput_percent / 100,
    }
    if "concurrency" not in fields and requests_per_s is not None:
        mean_s = latency.part("request_latency").number("mean")
        fields["concurrency"] = None if mean_s is None else requests_per_s * mean_s
    return to_row(fields, hints)


def _mean(good: SourceDocument, *names: str) -> float | None:
    """Return the mean length; releases before 0.6 use the second of the names."""
    return next((mean for name in names if (mean := good.part(name).number("mean")) is not None), None)


def _load(source: SourceFile, load: SourceDocument, config: SourceDocument) -> dict[str, Any]:
    """Return arrival process, rate and concurrency from the result, else from the stage's configuration."""
    settings = config.part("load")
    stages, named = settings.parts("stages"), STAGE.search(source.path.name)
    number = int(named.group(1)) if named else 0
    stage = stages[number] if number < len(stages) and (named or len(stages) == 1) else SourceDocument()
    closed = load.number("concurrency") or stage.number("concurrency_level")
    arrival = ARRIVALS.get(settings.text("type") or "")
    if arrival == "closed" or (arrival is None and closed):
        return {"arrival": "closed", "concurrency": closed}
    rate = load.number("requested_rate") or stage.number("rate")
    return {"arrival": arrival, "offered_requests_per_s": rate}


SPARE = 1.1
"""Ratio of the number of prompts that inference-perf generates to the number that rate and duration need (1.1 is 10 %
more).
"""


@dataclass(frozen=True)
class ToolLoad:
    """One stage of load that another load generator sends. A load at a rate has `duration_s`, in wall seconds; a closed
    loop has `requests`.
    """

    base_url: str
    model: str
    shape: LoadShape
    input_tokens: Length
    output_tokens: Length
    duration_s: float | None = None
    requests: int | None = None
    seed: int = 0


def config(load: ToolLoad, *, results: str, tokenizer: str, workers: int, worker_concurrency: int) -> dict[str, Any]:
    """Return the content of inference-perf's configuration file; inference-perf writes its results into the directory
    `results`.

    Raises:
        KitError: the load can't be expressed in inference-perf's configuration.
    """
    count = _requests(load) if isinstance(load.shape, ClosedLoop) else 0
    if isinstance(load.shape, ConstantRate | PoissonRate):
        count = round(SPARE * load.shape.requests_per_s * _duration(load)) + 1
    return {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": _distribution(load.input_tokens, count),
            "output_distribution": _distribution(load.output_tokens, count),
        },
        "load": {
            **_load_config(load),
            "num_workers": workers,
            "worker_max_concurrency": worker_concurrency,
            "base_seed": load.seed,
        },
        "server": {"type": "vllm", "model_name": load.model, "base_url": load.base_url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": tokenizer},
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": False}},
        "storage": {"local_storage": {"path": results}},
    }


def _load_config(load: ToolLoad) -> dict[str, Any]:
    match load.shape:
        case ConstantRate(rate):
            return {"type": "constant", "stages": [{"rate": rate, "duration": _duration(load)}]}
        case PoissonRate(rate, _):
            return {"type": "poisson", "stages": [{"rate": rate, "duration": _duration(load)}]}
        case ClosedLoop(users):
            return {"type": "concurrent", "stages": [{"concurrency_level": users, "num_requests": _requests(load)}]}
        case _:
            raise KitError(f"inference-perf is not given {load.shape} here.", "Give closed:…, constant:… or poisson:….")


def _duration(load: ToolLoad) -> int:
    if load.duration_s is None:
        raise KitError("inference-perf's rates run for a time.", "Give --duration.")
    return round(load.duration_s)


def _requests(load: ToolLoad) -> int:
    if load.requests is None:
        raise KitError("inference-perf's closed loops end after a number of requests.", "Give --requests.")
    return load.requests


def _distribution(length: Length, count: int) -> dict[str, Any]:
    if not isinstance(length, Fixed):
        raise KitError("inference-perf is given fixed lengths here.", "Give a number of tokens.")
    tokens = length.tokens
    return {"type": "fixed", "min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": count}
