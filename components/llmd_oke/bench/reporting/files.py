"""The text of report files."""

import yaml

from llmd_oke.bench.reporting.format import BenchmarkReport
from llmd_oke.bench.reporting.format_v01 import BenchmarkReportV01


def to_yaml(report: BenchmarkReport | BenchmarkReportV01) -> str:
    """The report as the YAML text of a report file, without empty fields."""
    return yaml.safe_dump(report.model_dump(mode="json", exclude_none=True), sort_keys=False, width=120)
