"""Logs of j-pareto's Jobs: single servers (`pd-config`) and whole deployments (`pareto`).

Each level of concurrency is one run of `vllm bench serve` between `BENCH_RUN` and `BENCH_RUN_END`; a `CONFIG:` line
says what ran. Calibration runs stand outside of these marks and are not read, nor is a run whose end is missing.
Source: tlrmchlsmth/j-pareto, pd-config/job.yaml and pareto/job.yaml.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmd_oke.results.readers.document import UnreadableError
from llmd_oke.results.readers.rows import to_row
from llmd_oke.results.readers.source import Source
from llmd_oke.results.reading import Hints, Read, Rejected
from llmd_oke.results.row import Quantiles, Row, Subject

TOOL = "vllm bench serve (j-pareto)"

FILLED = "KV cache filled by DecodeBenchConnector"
"""Note of decode runs: the fill costs time that output tokens/s contain and TPOT does not (vLLM PR 56473)."""

_START = re.compile(r"BENCH_RUN: concurrency=(\d+)")
_END = re.compile(r"BENCH_RUN_END: concurrency=(\d+)")
_CONFIG = re.compile(r"CONFIG: (.+)")
_SETTING = re.compile(r"(\w+)=(\S+)")
_LINE = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9 ]+?)(?: \(([a-z/]+)\))?:\s+(\S+)\s*$")
_MARKS = ("PD_CONFIG_START", "SWEEP_START")

_SUBJECTS: Mapping[str, Subject] = {
    "prefill": "prefill",
    "decode": "decode",
    "aggregated": "end-to-end",
    "agg": "end-to-end",
}


@dataclass
class _Run:
    """The lines of one run: what vLLM printed, by its name in lower case."""

    line: int
    concurrency: int
    printed: dict[str, str] = field(default_factory=dict[str, str])

    def number(self, name: str) -> float | None:
        text = self.printed.get(name)
        try:
            return None if text is None else float(text)
        except ValueError as error:
            raise UnreadableError(f"{name} is {text!r}, no number") from error


def detect(source: Source) -> bool:
    """Whether it has the marks of such a log."""
    return any(mark in source.text for mark in _MARKS) and "BENCH_RUN" in source.text


def read(source: Source, hints: Hints) -> Read:
    """A row for each run, and the runs that are none."""
    rows: list[Row] = []
    rejected: list[Rejected] = []
    config: dict[str, str] = {}
    for run, ended in _runs(source.text, config):
        try:
            if not ended:
                raise UnreadableError(f"the run with concurrency {run.concurrency} has no end")
            rows.append(_row(source, run, config, hints))
        except UnreadableError as error:
            rejected.append(source.rejected(str(error), run.line))
    return Read(tuple(rows), tuple(rejected))


def _runs(text: str, config: dict[str, str]) -> Iterator[tuple[_Run, bool]]:
    """Each run and whether it ended; `config` is filled on the way."""
    run: _Run | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if match := _CONFIG.search(line):
            config.update(_SETTING.findall(match.group(1)))
        elif match := _START.search(line):
            if run:
                yield run, False
            run = _Run(number, int(match.group(1)))
        elif _END.search(line) and run:
            yield run, True
            run = None
        elif run and (match := _LINE.search(line)):
            run.printed[match.group(1).lower()] = match.group(3)
    if run:
        yield run, False


def _row(source: Source, run: _Run, config: Mapping[str, str], hints: Hints) -> Row:
    output, total = run.number("output token throughput"), run.number("total token throughput")
    if output is None or total is None:
        raise UnreadableError(f"the run with concurrency {run.concurrency} has no token throughput")
    completed, failed = run.number("successful requests"), run.number("failed requests") or 0
    subject = _SUBJECTS.get(config.get("workload", ""), "end-to-end")
    found: dict[str, Any] = {
        "subject": subject,
        "origin": source.origin(TOOL, run.line),
        "model": config.get("model"),
        **_size(config, subject),
        "arrival": "closed",
        "concurrency": run.concurrency,
        "input_tokens": _mean(run, "total input tokens", completed) or config.get("isl"),
        "output_tokens": _mean(run, "total generated tokens", completed) or config.get("osl"),
        "input_tokens_per_s": round(total - output, 6),
        "output_tokens_per_s": output,
        "achieved_requests_per_s": run.number("request throughput"),
        "requests": None if completed is None else int(completed + failed),
        "failures": int(failed),
        "duration_s": run.number("benchmark duration"),
        **{f"{name}_ms": _quantiles(run, name) for name in ("ttft", "tpot", "itl")},
        "e2e_ms": _quantiles(run, "e2el"),
        "notes": (FILLED,) if subject == "decode" else (),
    }
    return to_row(found, hints)


def _size(config: Mapping[str, str], subject: Subject) -> dict[str, Any]:
    """GPUs, and the topology or the server's TP; a `gpu_count` of 0 means that the script could not find out."""
    gpus, size = _whole(config.get("gpu_count")), _whole(config.get("tp"))
    if subject != "end-to-end":
        return {"gpus_counted": gpus, "tensor_parallel_size": size}
    target = config.get("target", "").removeprefix("disagg-")
    if size:
        target = f"agg-tp{size}"
    if target.startswith("agg-tp"):
        server = _whole(target.removeprefix("agg-tp"))
        target = f"{target}-{gpus // server}r" if gpus and server and gpus % server == 0 else ""
    return {"gpus_counted": gpus, "topology": target or None}


def _whole(text: str | None) -> int | None:
    return int(text) or None if text and text.isdigit() else None


def _mean(run: _Run, name: str, completed: float | None) -> float | None:
    total = run.number(name)
    return total / completed if total and completed else None


def _quantiles(run: _Run, name: str) -> Quantiles:
    names = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
    return Quantiles(**{own: run.number(f"{printed} {name}") for own, printed in names.items()})
