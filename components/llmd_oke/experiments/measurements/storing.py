"""One measurement as files: its row, both reports, its requests."""

import json
from pathlib import Path

from llmd_oke.bench.records.lines import write_file
from llmd_oke.bench.reporting.converting import to_v01
from llmd_oke.bench.reporting.files import to_yaml
from llmd_oke.bench.reporting.format import BenchmarkReport
from llmd_oke.bench.reporting.report import build_report
from llmd_oke.bench.reporting.summary import summarize_result
from llmd_oke.bench.smoke.smoke import SmokeResult
from llmd_oke.experiments.measurements.rows import row_of
from llmd_oke.experiments.recipes.schedule import Stage
from llmd_oke.experiments.runs.assignment import Assignment
from llmd_oke.results.requests import FILE as REQUESTS_FILE

REPORT_FILE = "benchmark_report_v0.2,_{stage}.yaml"
OLDER_REPORT_FILE = "benchmark_report,_{stage}.yaml"
"""Named as llm-d-benchmark names its reports of version 0.2 and 0.1."""


def store_stage(result: SmokeResult, stage: Stage, assignment: Assignment, folder: Path) -> None:
    """Writes a measurement into its folder."""
    row = row_of(result, stage, assignment)
    report = of_stage(build_report(result, experiment=assignment.folder.name), stage, assignment)
    (folder / "row.json").write_text(row.model_dump_json(exclude_defaults=True, indent=2) + "\n", encoding="utf-8")
    (folder / REPORT_FILE.format(stage=stage.name)).write_text(to_yaml(report), encoding="utf-8")
    if older := to_v01(report):
        (folder / OLDER_REPORT_FILE.format(stage=stage.name)).write_text(to_yaml(older), encoding="utf-8")
    write_file(folder / REQUESTS_FILE, result.records)
    (folder / "summary.json").write_text(json.dumps(summarize_result(result), indent=2) + "\n", encoding="utf-8")


def of_stage(report: BenchmarkReport, stage: Stage, assignment: Assignment) -> BenchmarkReport:
    """The report with what the smoke benchmark doesn't know: an open loop, and which experiment it belongs to."""
    scenario = report.scenario
    assert scenario is not None  # noqa: S101 - build_report gives one
    assert scenario.load is not None  # noqa: S101 - build_report gives one
    open_loop = {"concurrency": None, "rate_qps": stage.level} if stage.concurrency is None else {}
    standardized = scenario.load.standardized.model_copy(update=open_loop)
    config: dict[str, object] = {**(scenario.load.native.config or {}), "shape": stage.arrival, "level": stage.level}
    load = scenario.load.model_copy(
        update={"standardized": standardized, "native": scenario.load.native.model_copy(update={"config": config})}
    )
    description = (
        f"Experiment {assignment.recipe}: {assignment.deployment} under {stage.name}, {stage.requests} requests."
    )
    words = (report.run.description or "").split(". ", 1)[-1]
    keywords = ["experiment" if word == "smoke" else word for word in report.run.keywords or ()]
    run = report.run.model_copy(update={"description": f"{description} {words}", "keywords": keywords})
    return report.model_copy(update={"run": run, "scenario": scenario.model_copy(update={"load": load})})
