"""Where reports are kept: `<root>/<stack>/<time>/`, with `<root>/<stack>/latest` pointing at the newest."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from llmd_oke.bench.records.lines import write_file
from llmd_oke.bench.reporting.converting import to_v01
from llmd_oke.bench.reporting.files import to_yaml
from llmd_oke.bench.reporting.report import build_report
from llmd_oke.bench.reporting.rows import smoke_row
from llmd_oke.bench.reporting.summary import summarize_result
from llmd_oke.bench.smoke.smoke import SmokeResult
from llmd_oke.results.files import point, write_rows
from llmd_oke.results.history import ROWS_FILE, stack_folder
from llmd_oke.results.requests import FILE as REQUESTS_FILE

REPORT_FILE = "benchmark_report_v0.2,_smoke.yaml"
"""Named as llm-d-benchmark names its reports."""

REPORT_FILE_V01 = "benchmark_report,_smoke.yaml"

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
    run_folder = root / stack_folder(stack) / moment
    folder = run_folder / part if part else run_folder
    folder.mkdir(parents=True, exist_ok=True)
    stored = Stored(folder, folder / REPORT_FILE, folder / REQUESTS_FILE, folder / "summary.json", folder / ROWS_FILE)
    report = build_report(result)
    stored.report.write_text(to_yaml(report), encoding="utf-8")
    if older := to_v01(report):
        (folder / REPORT_FILE_V01).write_text(to_yaml(older), encoding="utf-8")
    write_rows([smoke_row(result)], stored.rows)
    write_file(stored.requests, result.records)
    stored.summary.write_text(json.dumps(summarize_result(result), indent=2) + "\n", encoding="utf-8")
    point(run_folder.parent / LATEST, moment)
    return stored
