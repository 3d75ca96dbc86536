"""Writing and reading report files."""

from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError

from llmd_oke.bench.reporting.format import BenchmarkReport
from llmd_oke.bench.reporting.format_v01 import BenchmarkReportV01
from llmd_oke.errors import KitError


def to_yaml(report: BenchmarkReport | BenchmarkReportV01) -> str:
    """The report as the YAML text of a report file, without empty fields."""
    return yaml.safe_dump(report.model_dump(mode="json", exclude_none=True), sort_keys=False, width=120)


def read_report(path: Path) -> BenchmarkReport | BenchmarkReportV01:
    """Read a report file of version 0.1 or 0.2.

    Raises `KitError` if there is no such file, it isn't YAML, or it isn't a report of these versions.
    """
    try:
        content: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KitError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise KitError(f"{path} is not YAML: {error}") from error
    return _parse(path, cast("dict[str, object]", content) if isinstance(content, dict) else {})


def _parse(path: Path, content: dict[str, object]) -> BenchmarkReport | BenchmarkReportV01:
    formats = {"0.1": BenchmarkReportV01, "0.2": BenchmarkReport}
    version = str(content.get("version"))
    if version not in formats:
        raise KitError(f"{path} is no benchmark report: version is {version}", f"Readable are {', '.join(formats)}.")
    try:
        return formats[version].model_validate(content)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise KitError(f"{path} does not keep to the report format {version}: {wrong}") from error
