"""Logs and CSV files of j-pareto: single servers (`pd-config`) and whole deployments (`pareto`).

In a log each concurrency is one run of `vllm bench serve` between the marks `BENCH_RUN` and `BENCH_RUN_END`; a
`CONFIG:` line describes the deployment. Calibration runs outside of these marks and runs without an end mark are not
read. Source: tlrmchlsmth/j-pareto, pd-config/job.yaml and pareto/job.yaml.

A CSV file has blocks of one configuration each, with one column per concurrency:
`{prefill,decode,aggregated}_scaling.csv` for single servers, `<configuration>.csv` for whole deployments. Rates are
rounded to whole numbers and latencies to 0.1 ms, which each row notes. Model and GPU product are missing. Source:
pd-config/collect.py and pareto/collect.py.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from llmd_base.row import Quantiles, Row, Scope

from llmd_bench.files import Hints, ReadResults, Rejection
from llmd_bench.readers.source import SourceFile, UnreadableError, to_row

TOOL = "vllm bench serve (j-pareto)"

FILLED = "KV cache filled by DecodeBenchConnector"
"""Text of the note in rows of decode runs: filling the KV cache takes time that is part of output tokens/s but not of
TPOT (vLLM PR 56473).
"""

_START = re.compile(r"BENCH_RUN: concurrency=(\d+)")
_END = re.compile(r"BENCH_RUN_END: concurrency=(\d+)")
_CONFIG = re.compile(r"CONFIG: (.+)")
_SETTING = re.compile(r"(\w+)=(\S+)")
_LINE = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9 ]+?)(?: \(([a-z/]+)\))?:\s+(\S+)\s*$")
_MARKS = ("PD_CONFIG_START", "SWEEP_START")

_SUBJECTS: Mapping[str, Scope] = {
    "prefill": "prefill",
    "decode": "decode",
    "aggregated": "end-to-end",
    "agg": "end-to-end",
}


@dataclass
class _Run:
    """One run in a log: values that vLLM printed, by their labels in lower case."""

    line: int
    concurrency: int
    printed: dict[str, str] = field(default_factory=dict[str, str])

    def number(self, name: str) -> float | None:
        text = self.printed.get(name)
        try:
            return None if text is None else float(text)
        except ValueError as error:
            raise UnreadableError(f"{name} is {text!r}, no number") from error


def detect_log(source: SourceFile) -> bool:
    """Return whether a file contains the marks of a j-pareto log."""
    return any(mark in source.text for mark in _MARKS) and "BENCH_RUN" in source.text


def read_log(source: SourceFile, hints: Hints) -> ReadResults:
    """Read a row for each run of `vllm bench serve` in a j-pareto log, and collect the invalid runs."""
    rows: list[Row] = []
    rejected: list[Rejection] = []
    config: dict[str, str] = {}
    for run, ended in _runs(source.text, config):
        try:
            if not ended:
                raise UnreadableError(f"the run with concurrency {run.concurrency} has no end")
            rows.append(_row(source, run, config, hints))
        except UnreadableError as error:
            rejected.append(source.rejected(str(error), run.line))
    return ReadResults(tuple(rows), tuple(rejected))


def _runs(text: str, config: dict[str, str]) -> Iterator[tuple[_Run, bool]]:
    """Yield each run with whether its end mark was found; settings of `CONFIG:` lines are added to `config`."""
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


def _row(source: SourceFile, run: _Run, config: Mapping[str, str], hints: Hints) -> Row:
    output, total = run.number("output token throughput"), run.number("total token throughput")
    if output is None or total is None:
        raise UnreadableError(f"the run with concurrency {run.concurrency} has no token throughput")
    completed, failed = run.number("successful requests"), run.number("failed requests") or 0
    subject = _SUBJECTS.get(config.get("workload", ""), "end-to-end")
    fields: dict[str, Any] = {
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
    return to_row(fields, hints)


def _size(config: Mapping[str, str], subject: Scope) -> dict[str, Any]:
    """Return the number of GPUs, and the topology or the server's tensor parallel size; a `gpu_count` of 0 in the log
    means unknown.
    """
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


ROUNDED = "rates rounded to whole tokens/s, latencies to 0.1 ms"

_SUBJECTS_BY_TITLE: Mapping[str, Scope] = {"Prefill": "prefill", "Decode": "decode", "Aggregated": "end-to-end"}
_LENGTH = re.compile(r"(ISL|OSL|GPUs): (\d+)")
_SERVER = re.compile(r"TP=(\d+)(?:xDP=(\d+)|\+EP)?")
_OWN = {"mean": "mean", "median": "p50", "p99": "p99"}


@dataclass
class _Block:
    """One configuration of a CSV file: cells of each row by row name, with the line number."""

    title: str
    head: Mapping[str, str]
    concurrencies: tuple[int, Sequence[str]]
    named: dict[str, tuple[int, Sequence[str]]] = field(default_factory=dict[str, tuple[int, Sequence[str]]])
    gpus: str = ""

    def number(self, name: str, column: int) -> float | None:
        line, cells = self.named.get(name, (0, ()))
        text = cells[column].strip() if column < len(cells) else ""
        try:
            return float(text) if text else None
        except ValueError as error:
            raise _CellError(
                f"{name} at concurrency {self.concurrencies[1][column]} is {text!r}, no number", line
            ) from error


class _CellError(UnreadableError):
    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.line = line


def detect_csv(source: SourceFile) -> bool:
    """Return whether a file is CSV with a row of concurrencies and a row of tokens per second and GPU."""
    return source.path.suffix == ".csv" and ",Concurrency," in source.text and ",TPSG," in source.text


def read_csv(source: SourceFile, hints: Hints) -> ReadResults:
    """Read a row for each column of a j-pareto CSV file's blocks (a block is a configuration, a column a concurrency),
    and collect the invalid columns.
    """
    rows: list[Row] = []
    rejected: list[Rejection] = []
    for block in _blocks(source.text):
        for column, text in enumerate(block.concurrencies[1]):
            try:
                if text.strip():
                    rows.append(_block_row(source, block, column, hints))
            except UnreadableError as error:
                line = error.line if isinstance(error, _CellError) else block.concurrencies[0]
                rejected.append(source.rejected(str(error), line))
    return ReadResults(tuple(rows), tuple(rejected))


def _blocks(text: str) -> Iterator[_Block]:
    reader = csv.reader(StringIO(text, newline=""))
    title, head, block = "", dict[str, str](), None
    for cells in reader:
        filled = [cell for cell in cells if cell]
        lengths = {match[1]: match[2] for cell in filled if (match := _LENGTH.fullmatch(cell))}
        if "Concurrency" in cells:
            if block:
                yield block
            block = _Block(title, head, (reader.line_num, cells[cells.index("Concurrency") + 1 :]))
        elif lengths:
            title, head = filled[0], lengths
        elif block and filled:
            # the name of a row is in the column of `Concurrency`: the second or the third
            place = 1 if block.title not in _SUBJECTS_BY_TITLE else 2
            name = cells[place] if place < len(cells) else ""
            if name == "TPSG" and place == 2:
                block.gpus = cells[1]
            block.named[name] = (reader.line_num, cells[place + 1 :])
    if block:
        yield block


def _block_row(source: SourceFile, block: _Block, column: int, hints: Hints) -> Row:
    line, concurrencies = block.concurrencies
    if not concurrencies[column].strip().isdigit():
        raise UnreadableError(f"concurrency is {concurrencies[column]!r}, no whole number")
    subject = _SUBJECTS_BY_TITLE.get(block.title, "end-to-end")
    gpus = block.gpus or block.head.get("GPUs", "")
    server = next((match[1] for name in block.named if (match := _SERVER.fullmatch(name))), None)
    size: dict[str, Any] = {"gpus_counted": gpus or None, "tensor_parallel_size": server}
    if subject == "end-to-end":
        single = f"agg-tp{server}-1r" if server and gpus == server else None
        target = block.title.removeprefix("disagg-") if block.title not in _SUBJECTS_BY_TITLE else single
        size = {"gpus_counted": gpus if gpus not in {"", "0"} else None, "topology": target}
    latencies = {
        f"{name.lower()}_ms": Quantiles(
            **{own: block.number(f"{name} {printed} (ms)", column) for printed, own in _OWN.items()}
        )
        for name in ("TTFT", "TPOT", "ITL")
    }
    fields: dict[str, Any] = {
        "subject": subject,
        "origin": source.origin(TOOL, line),
        "input_tokens": block.head.get("ISL"),
        "output_tokens": block.head.get("OSL"),
        "arrival": "closed",
        "concurrency": int(concurrencies[column]),
        **size,
        **_rates(block, column, subject, hints),
        **latencies,
        "notes": (ROUNDED, FILLED) if subject == "decode" else (ROUNDED,),
    }
    return to_row(fields, hints)


def _rates(block: _Block, column: int, subject: Scope, hints: Hints) -> dict[str, Any]:
    """Return input and output token rates; prefill blocks have the total rate, of which input is the share ISL / (ISL +
    OSL).
    """
    name = next((name for name in block.named if name == "Output tok/s" or _SERVER.fullmatch(name)), "")
    rate = block.number(name, column)
    if rate is None:
        raise UnreadableError(f"there is no throughput at concurrency {block.concurrencies[1][column]}")
    if subject != "prefill":
        return {"output_tokens_per_s": rate}
    prompt, answer = float(block.head.get("ISL") or hints.input_tokens or 1), float(block.head.get("OSL") or 0)
    share = prompt / (prompt + answer)
    return {"input_tokens_per_s": rate * share, "output_tokens_per_s": rate * (1 - share)}
