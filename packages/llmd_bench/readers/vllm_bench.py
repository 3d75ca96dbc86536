"""Reader of results of `vllm bench serve --save-result`: one JSON object, or one per line with `--append-result`.

Values of `--metadata KEY=VALUE` whose keys are names of hints (`gpus`, `gpu`, `topology`, `tensor_parallel_size`, …)
become fields of the row. Source: vLLM, vllm/benchmarks/serve.py.
"""

from collections.abc import Mapping
from typing import Any

from llmd_base.row import CONDITIONS, Quantiles, Row

from llmd_bench.files import Hints, ReadResults, Rejection, json_object
from llmd_bench.readers.source import SourceDocument, SourceFile, UnreadableError, to_row

TOOL = "vllm bench serve"

_KEYS = {
    "mean": "mean",
    "p25": "p25",
    "p50": "median",
    "p75": "p75",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p99p9": "p99.9",
}
_METADATA = (
    *("gpu", "gpus_reserved", "tensor_parallel_size", "topology", "copies", "subject", "max_num_seqs"),
    *CONDITIONS,
)
_MARKS = ("request_throughput", "output_throughput", "completed")

FAR_BELOW = 0.9
"""Share of the offered rate (0.9 is 90 %) below which the achieved rate was limited by `max_concurrency`: the load
counts as a closed loop.
"""


def detect(source: SourceFile) -> bool:
    """Return whether a file contains vLLM's names of rates and counts."""
    return source.path.suffix in {".json", ".jsonl"} and all(f'"{mark}"' in source.text for mark in _MARKS)


def read(source: SourceFile, hints: Hints) -> ReadResults:
    """Read a row for each result of `vllm bench serve` in a file, and collect the invalid lines."""
    rows: list[Row] = []
    rejected: list[Rejection] = []
    lines = [(number, line) for number, line in enumerate(source.text.splitlines(), 1) if line.strip()]
    results: list[tuple[int | None, Mapping[str, Any] | None]] = [(number, json_object(line)) for number, line in lines]
    for line, content in [(None, source.mapping)] if source.mapping else results:
        try:
            rows.append(_row(source, line, content, hints))
        except UnreadableError as error:
            rejected.append(source.rejected(str(error), line))
    return ReadResults(tuple(rows), tuple(rejected))


def _row(source: SourceFile, line: int | None, content: Mapping[str, Any] | None, hints: Hints) -> Row:
    if content is None:
        raise UnreadableError("is no JSON object")
    result = SourceDocument(content)
    completed, failed = result.whole("completed"), result.whole("failed")
    if not completed:
        raise UnreadableError("no request was answered")
    total_input, total_output = result.number("total_input_tokens"), result.number("total_output_tokens")
    duration_s = result.number("duration")
    good, answered = result.number("request_goodput"), result.number("request_throughput")
    fields = {
        **{name: content[name] for name in _METADATA if name in content},
        "gpus_counted": content.get("gpus"),
        "origin": source.origin(TOOL, line),
        "model": result.text("model_id"),
        "input_tokens": None if total_input is None else total_input / completed,
        "output_tokens": None if total_output is None else total_output / completed,
        "requests": completed + (failed or _unanswered(result, completed)),
        "failures": failed or _unanswered(result, completed),
        "achieved_requests_per_s": answered,
        "input_tokens_per_s": total_input / duration_s if total_input and duration_s else None,
        "output_tokens_per_s": result.number("output_throughput"),
        "duration_s": duration_s,
        **{
            f"{name}_ms": Quantiles(**{own: result.number(f"{key}_{vllm}_ms") for own, key in _KEYS.items()})
            for name, vllm in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el"))
        },
        **_load(result),
        "goodput_share": good / answered if good is not None and answered else None,
    }
    return to_row(fields, hints)


def _unanswered(result: SourceDocument, completed: int) -> int:
    """Return the number of requests without an answer, for releases that don't count failures."""
    return (result.whole("num_prompts") or completed) - completed


def _load(result: SourceDocument) -> dict[str, Any]:
    """Return arrival process, rate and concurrency. Without a rate, or with a concurrency limit that held the rate
    down, the load is a closed loop; a rate with burstiness 1 is Poisson.
    """
    rate, limit = result.content.get("request_rate"), result.number("max_concurrency")
    at_once = rate is None or str(rate) == "inf"
    if at_once:
        return {"arrival": "closed", "concurrency": limit or result.number("num_prompts")}
    offered, achieved = result.number("request_rate"), result.number("request_throughput")
    if limit is not None and offered is not None and (achieved or 0.0) < FAR_BELOW * offered:
        return {"arrival": "closed", "concurrency": limit}
    mean_ms = result.number("mean_e2el_ms")
    in_flight = None if mean_ms is None or achieved is None else mean_ms / 1000 * achieved  # Little's law
    poisson = result.number("burstiness") in {None, 1.0}
    return {"arrival": "poisson" if poisson else None, "offered_requests_per_s": offered, "concurrency": in_flight}
