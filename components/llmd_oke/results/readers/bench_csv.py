"""CSV files that j-pareto collects: blocks of one configuration each, one column for each concurrency.

`{prefill,decode,aggregated}_scaling.csv` have single servers, `<configuration>.csv` whole deployments. Rates in them
are rounded to whole numbers and latencies to 0.1 ms; each row says so. Model and GPU product are in none of them.
Source: tlrmchlsmth/j-pareto, pd-config/collect.py and pareto/collect.py.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from llmd_oke.results.readers.bench_log import FILLED
from llmd_oke.results.readers.document import UnreadableError
from llmd_oke.results.readers.rows import to_row
from llmd_oke.results.readers.source import Source
from llmd_oke.results.reading import Hints, Read, Rejected
from llmd_oke.results.row import Quantiles, Row, Subject

TOOL = "vllm bench serve (j-pareto)"

ROUNDED = "rates rounded to whole tokens/s, latencies to 0.1 ms"

_SUBJECTS: Mapping[str, Subject] = {"Prefill": "prefill", "Decode": "decode", "Aggregated": "end-to-end"}
_LENGTH = re.compile(r"(ISL|OSL|GPUs): (\d+)")
_SERVER = re.compile(r"TP=(\d+)(?:xDP=(\d+)|\+EP)?")
_OWN = {"mean": "mean", "median": "p50", "p99": "p99"}


@dataclass
class _Block:
    """One configuration: its rows by name, each with its line, and the cells of its columns."""

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


def detect(source: Source) -> bool:
    """Whether it is CSV with a row of concurrencies and one of tokens per second and GPU."""
    return source.path.suffix == ".csv" and ",Concurrency," in source.text and ",TPSG," in source.text


def read(source: Source, hints: Hints) -> Read:
    """A row for each column of each block, and the columns that are none."""
    rows: list[Row] = []
    rejected: list[Rejected] = []
    for block in _blocks(source.text):
        for column, text in enumerate(block.concurrencies[1]):
            try:
                if text.strip():
                    rows.append(_row(source, block, column, hints))
            except UnreadableError as error:
                line = error.line if isinstance(error, _CellError) else block.concurrencies[0]
                rejected.append(source.rejected(str(error), line))
    return Read(tuple(rows), tuple(rejected))


def _blocks(text: str) -> Iterator[_Block]:
    reader = csv.reader(StringIO(text, newline=""))
    title, head, block = "", dict[str, str](), None
    for cells in reader:
        filled = [cell for cell in cells if cell]
        if "Concurrency" in cells:
            if block:
                yield block
            block = _Block(title, head, (reader.line_num, cells[cells.index("Concurrency") + 1 :]))
        elif filled and any(_LENGTH.fullmatch(cell) for cell in filled):
            title, head = filled[0], _head(filled)
        elif block and filled:
            _add(block, reader.line_num, cells)
    if block:
        yield block


def _head(cells: Sequence[str]) -> dict[str, str]:
    found = (_LENGTH.fullmatch(cell) for cell in cells)
    return {match.group(1): match.group(2) for match in found if match}


def _add(block: _Block, line: int, cells: Sequence[str]) -> None:
    """A row of a block: its name stands where `Concurrency` stands, in the second column or the third."""
    place = 1 if block.title not in _SUBJECTS else 2
    name = cells[place] if place < len(cells) else ""
    if name == "TPSG" and place == 2:
        block.gpus = cells[1]
    block.named[name] = (line, cells[place + 1 :])


def _row(source: Source, block: _Block, column: int, hints: Hints) -> Row:
    line, concurrencies = block.concurrencies
    if not concurrencies[column].strip().isdigit():
        raise UnreadableError(f"concurrency is {concurrencies[column]!r}, no whole number")
    subject = _SUBJECTS.get(block.title, "end-to-end")
    found: dict[str, Any] = {
        "subject": subject,
        "origin": source.origin(TOOL, line),
        "input_tokens": block.head.get("ISL"),
        "output_tokens": block.head.get("OSL"),
        "arrival": "closed",
        "concurrency": int(concurrencies[column]),
        **_size(block),
        **_rates(block, column, subject, hints),
        **{f"{name.lower()}_ms": _quantiles(block, name, column) for name in ("TTFT", "TPOT", "ITL")},
        "notes": (ROUNDED, FILLED) if subject == "decode" else (ROUNDED,),
    }
    return to_row(found, hints)


def _size(block: _Block) -> dict[str, Any]:
    gpus = block.gpus or block.head.get("GPUs", "")
    server = next((found for name in block.named if (found := _SERVER.fullmatch(name))), None)
    if block.title in {"Prefill", "Decode"}:
        return {"gpus_counted": gpus or None, "tensor_parallel_size": server.group(1) if server else None}
    single = f"agg-tp{server.group(1)}-1r" if server and gpus == server.group(1) else None
    target = block.title.removeprefix("disagg-") if block.title not in _SUBJECTS else single
    return {"gpus_counted": gpus if gpus not in {"", "0"} else None, "topology": target}


def _rates(block: _Block, column: int, subject: Subject, hints: Hints) -> dict[str, Any]:
    """Prefill is counted in total tokens, of which the prompt's share is ISL / (ISL + OSL)."""
    name = next((name for name in block.named if name == "Output tok/s" or _SERVER.fullmatch(name)), "")
    rate = block.number(name, column)
    if rate is None:
        raise UnreadableError(f"there is no throughput at concurrency {block.concurrencies[1][column]}")
    if subject != "prefill":
        return {"output_tokens_per_s": rate}
    prompt, answer = float(block.head.get("ISL") or hints.input_tokens or 1), float(block.head.get("OSL") or 0)
    share = prompt / (prompt + answer)
    return {"input_tokens_per_s": rate * share, "output_tokens_per_s": rate * (1 - share)}


def _quantiles(block: _Block, latency: str, column: int) -> Quantiles:
    return Quantiles(**{own: block.number(f"{latency} {name} (ms)", column) for name, own in _OWN.items()})
