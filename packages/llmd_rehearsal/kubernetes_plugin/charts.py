"""Helm charts that are on this machine, by the reference that a program has for them."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from llmd_oke.values import Entry, module_folder, read_yaml, values_folder

from llmd_rehearsal import golang
from llmd_rehearsal.plugin_values import OperationRefusal

_OWN = "Chart.yaml"
_TEMPLATE = "Chart.template.yaml"
"""File of a chart in projects that write the version into it only when they publish the chart."""


class ChartModule(Entry):
    """A folder of a Go module."""

    name: str
    version: str
    folder: str

    def path(self) -> Path:
        """The folder; it may be missing."""
        return module_folder(self.name, self.version) / self.folder


class ChartSource(Entry):
    """A published chart, and where it is instead: in a module, or in a folder of `values/rehearsal/charts`.

    `definitions` are custom resource definitions from elsewhere that belong to it.
    """

    reference: str
    version: str
    repository: str = ""
    module: ChartModule | None = None
    stand_in: str = ""
    definitions: ChartModule | None = None

    @property
    def published(self) -> str:
        """The chart's name behind the prefix of a private registry that has a copy."""
        return (
            f"{self.repository.partition('://')[2]}/{self.reference}"
            if self.repository
            else self.reference.removeprefix("oci://")
        )

    def folder(self) -> Path:
        """The folder; it may be missing."""
        return self.module.path() if self.module else values_folder() / "rehearsal" / "charts" / self.stand_in

    def modules(self) -> list[ChartModule]:
        """The Go modules that it is made of."""
        return [module for module in (self.module, self.definitions) if module]


@cache
def sources() -> tuple[ChartSource, ...]:
    """All charts that rehearsals have."""
    rows: list[Any] = read_yaml(values_folder() / "rehearsal" / "charts.yaml")["charts"]
    return tuple(ChartSource.model_validate(row) for row in rows)


@contextmanager
def chart(reference: str, repository: str, version: str) -> Generator[Path]:
    """A folder with the chart, whole and with its version; it is gone afterwards.

    A reference may also be a folder on this machine, whose version stays what it is.

    Raises:
        Refusal: there is no such chart here; says which there are.
    """
    if not repository and Path(reference).is_dir():
        yield Path(reference)
        return
    source = _source(reference, repository, version)
    with tempfile.TemporaryDirectory(prefix="chart-") as temporary:
        copy = Path(temporary) / "chart"
        golang.copy_files(source.folder(), copy)
        if source.definitions:
            golang.copy_files(source.definitions.path(), copy / "crds")
        _write_version(copy, source.version)
        yield copy


def chart_version(reference: str, repository: str, version: str) -> str:
    """The version that the chart says it has. Raises Refusal where there is no such chart."""
    with chart(reference, repository, version) as folder:
        return str(yaml.safe_load((folder / _OWN).read_text())["version"])


def find(reference: str, repository: str, version: str) -> ChartSource:
    """The chart of a reference, or of its copy in a private registry; its folder may be missing.

    Raises:
        Refusal: there is no such chart; says which there are.
    """
    name = reference.partition("@")[0]  # a folder has no digest to be held to
    for source in sources():
        is_copy = not repository and name.endswith(f"/{source.published}")
        is_it = is_copy or (name, repository) == (source.reference, source.repository)
        if is_it and version in {source.version, ""}:
            return source
    available = ", ".join(f"{source.reference} {source.version}" for source in sources())
    raise OperationRefusal(
        f"the chart {reference} {version} is not in this rehearsal; its Helm releases are of {available}"
    )


def _source(reference: str, repository: str, version: str) -> ChartSource:
    source = find(reference, repository, version)
    for folder in (source.folder(), *(module.path() for module in source.modules())):
        if not folder.is_dir():
            raise OperationRefusal(f"the chart {reference} {version} is not on this machine: {folder} is missing")
    return source


def _write_version(folder: Path, version: str) -> None:
    chart_file, template = folder / _OWN, folder / _TEMPLATE
    facts: dict[str, Any] = yaml.safe_load((chart_file if chart_file.is_file() else template).read_text())
    if not chart_file.is_file():
        facts["appVersion"] = version
    chart_file.write_text(yaml.safe_dump({**facts, "version": version}))
