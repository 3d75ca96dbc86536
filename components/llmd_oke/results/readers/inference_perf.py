"""Results of inference-perf: `stage_N_lifecycle_metrics.json` and `summary_lifecycle_metrics.json`.

A row is one stage. Model, lengths and the kind of arrival are taken from `config.yaml` beside it, which inference-perf
writes too. Source: kubernetes-sigs/inference-perf, docs/reports.md; all its times are seconds.
"""

import re
from pathlib import Path
from typing import Any

from llmd_oke.results.readers.document import Document
from llmd_oke.results.readers.report_parts import ARRIVALS
from llmd_oke.results.readers.rows import one_row, to_row
from llmd_oke.results.readers.source import Source
from llmd_oke.results.reading import Hints, Read
from llmd_oke.results.row import Quantiles, Row

TOOL = "inference-perf"

_LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "time_per_output_token",
    "itl_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
}
_KEYS = {"p50": "median", "p99p9": "p99.9"}
"""Its names where they differ from those of a row."""

_STAGE = re.compile(r"stage_(\d+)_lifecycle_metrics\.json$")


def detect(source: Source) -> bool:
    """Whether it has inference-perf's summary of the load, and what became of it."""
    return {"load_summary", "successes"} <= set(source.mapping)


def is_summary(path: Path) -> bool:
    """Whether a file sums up stages, which have files of their own."""
    return _STAGE.search(path.name) is None


def read(source: Source, hints: Hints) -> Read:
    """Its row, or why there is none."""
    return one_row(source, lambda: _row(source, hints))


def _row(source: Source, hints: Hints) -> Row:
    result, config = Document(source.mapping), Document(Source(source.path.with_name("config.yaml")).optional_mapping)
    load, good = result.part("load_summary"), result.part("successes")
    latency, throughput = good.part("latency"), good.part("throughput")
    requests_per_s = throughput.number("requests_per_sec")
    found = {
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
        **{name: _quantiles(latency.part(key)) for name, key in _LATENCIES.items()},
        **_load(source, load, config),
        "goodput_share": _share(good.part("goodput_metrics").number("goodput_percentage")),
    }
    if "concurrency" not in found and requests_per_s is not None:
        mean_s = latency.part("request_latency").number("mean")
        found["concurrency"] = None if mean_s is None else requests_per_s * mean_s
    return to_row(found, hints)


def _mean(good: Document, *names: str) -> float | None:
    """The mean length, under its new name or the one that releases before 0.6 had."""
    return next((mean for name in names if (mean := good.part(name).number("mean")) is not None), None)


def _quantiles(statistics: Document) -> Quantiles:
    values = {name: statistics.number(_KEYS.get(name, name)) for name in Quantiles.model_fields}
    return Quantiles(**{name: None if value is None else 1000 * value for name, value in values.items()})


def _load(source: Source, load: Document, config: Document) -> dict[str, Any]:
    """Arrival, rate and concurrency: as the result says them, else as the stage was configured."""
    settings = config.part("load")
    stages, named = settings.parts("stages"), _STAGE.search(source.path.name)
    number = int(named.group(1)) if named else 0
    stage = stages[number] if number < len(stages) and (named or len(stages) == 1) else Document()
    closed = load.number("concurrency") or stage.number("concurrency_level")
    arrival = ARRIVALS.get(settings.text("type") or "")
    if arrival == "closed" or (arrival is None and closed):
        return {"arrival": "closed", "concurrency": closed}
    rate = load.number("requested_rate") or stage.number("rate")
    return {"arrival": arrival, "offered_requests_per_s": rate}


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
