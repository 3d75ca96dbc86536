"""Where reports are kept: `<root>/<stack>/<time>/`, with `<root>/<stack>/latest` pointing at the newest."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from llmd_oke.bench.records import RequestRecord
from llmd_oke.bench.report import build_report
from llmd_oke.bench.report_files import to_yaml
from llmd_oke.bench.report_row import smoke_row
from llmd_oke.bench.report_v01 import to_v01
from llmd_oke.bench.smoke import SmokeResult
from llmd_oke.bench.summary import summarize_result
from llmd_oke.results.files import write_rows

REPORT_FILE = "benchmark_report_v0.2,_smoke.yaml"
"""Named as llm-d-benchmark names its reports."""

REPORT_FILE_V01 = "benchmark_report,_smoke.yaml"

ROWS_FILE = "rows.jsonl"
"""What comparisons and the history read; a folder of results is recognised by it."""

LATEST = "latest"


@dataclass(frozen=True)
class Stored:
    """The files of one result."""

    folder: Path
    report: Path
    requests: Path
    summary: Path
    rows: Path


def store(
    result: SmokeResult, root: Path, stack: str, *, started: datetime | None = None, part: str | None = None
) -> Stored:
    """Write both reports, requests, row and summary of `result`, then point `latest` at them.

    A report of version 0.1 can't be without latencies; it is left out where no request was answered.

    Results that belong together (the models of one stack) are stored with the same `started` and a `part` each, which
    becomes a folder of its own.
    """
    moment = (started or result.started).strftime("%Y%m%dT%H%M%SZ")
    run_folder = root / stack / moment
    folder = run_folder / part if part else run_folder
    folder.mkdir(parents=True, exist_ok=True)
    stored = Stored(
        folder, folder / REPORT_FILE, folder / "requests.jsonl", folder / "summary.json", folder / ROWS_FILE
    )
    report = build_report(result)
    stored.report.write_text(to_yaml(report), encoding="utf-8")
    if older := to_v01(report):
        (folder / REPORT_FILE_V01).write_text(to_yaml(older), encoding="utf-8")
    write_rows([smoke_row(result)], stored.rows)
    stored.requests.write_text("".join(request_lines(result.records)), encoding="utf-8")
    stored.summary.write_text(json.dumps(summarize_result(result), indent=2) + "\n", encoding="utf-8")
    _point(run_folder.parent / LATEST, moment)
    return stored


def request_lines(records: Iterable[RequestRecord]) -> Iterable[str]:
    """The requests of a run as JSON Lines, in model time; `gaps_us` are those between successive stream events."""
    for record in records:
        yield json.dumps(_describe(record)) + "\n"


def _describe(record: RequestRecord) -> dict[str, object]:
    return {
        "index": record.index,
        "due_s": record.due_s,
        "started_s": record.started_s,
        "ttft_s": record.ttft_s,
        "tpot_s": record.tpot_s,
        "e2e_s": record.latency_s,
        "gaps_us": [round(1e6 * gap) for gap in record.gaps_s],
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "events": len(record.event_times_s),
        "status": record.status,
        "retry_after_s": record.retry_after_s,
        "failure": record.failure,
        "error": record.error,
    }


def _point(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target` in one step, so that a reader never finds it missing."""
    new = link.with_name(f".{link.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)
