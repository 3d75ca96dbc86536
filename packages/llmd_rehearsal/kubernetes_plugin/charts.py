"""Helm charts on this machine, found by the chart references that a Pulumi program uses."""

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
"""Name of the chart file in projects that insert the version only when they publish the chart."""


class ChartModule(Entry):
    """Folder of a Go module that contains a chart or CustomResourceDefinitions."""

    name: str
    version: str
    folder: str

    def path(self) -> Path:
        """Return the path of the folder with the chart or definitions, which may not exist."""
        return module_folder(self.name, self.version) / self.folder


class ChartSource(Entry):
    """Published chart, and its local replacement: a folder of a Go module, or a folder of `values/rehearsal/charts`
    (`stand_in`).

    `definitions` are CustomResourceDefinitions that are published elsewhere and belong to the chart.
    """

    reference: str
    version: str
    repository: str = ""
    module: ChartModule | None = None
    stand_in: str = ""
    definitions: ChartModule | None = None

    @property
    def published(self) -> str:
        """Reference of the published chart without its scheme, to which a private registry's copy adds a prefix."""
        return (
            f"{self.repository.partition('://')[2]}/{self.reference}"
            if self.repository
            else self.reference.removeprefix("oci://")
        )

    def folder(self) -> Path:
        """Return the path of the chart's folder on this machine, which may not exist."""
        return self.module.path() if self.module else values_folder() / "rehearsal" / "charts" / self.stand_in

    def modules(self) -> list[ChartModule]:
        """Return the Go modules that contain the chart and its CustomResourceDefinitions."""
        return [module for module in (self.module, self.definitions) if module]


@cache
def sources() -> tuple[ChartSource, ...]:
    """Return all charts that rehearsals have, from `values/rehearsal/charts.yaml`."""
    rows: list[Any] = read_yaml(values_folder() / "rehearsal" / "charts.yaml")["charts"]
    return tuple(ChartSource.model_validate(row) for row in rows)


@contextmanager
def chart(reference: str, repository: str, version: str) -> Generator[Path]:
    """Yield a temporary folder with the chart that a program refers to, its definitions and its version.

    The reference may also be a folder on this machine, which is yielded itself.

    Raises:
        OperationRefusal: rehearsals have no such chart, and the message lists those they have; or its folder is
            missing.
    """
    if not repository and Path(reference).is_dir():
        yield Path(reference)
        return
    source = find(reference, repository, version)
    for needed in (source.folder(), *(module.path() for module in source.modules())):
        if not needed.is_dir():
            raise OperationRefusal(f"the chart {reference} {version} is not on this machine: {needed} is missing")
    with tempfile.TemporaryDirectory(prefix="chart-") as temporary:
        copy = Path(temporary) / "chart"
        golang.copy_files(source.folder(), copy)
        if source.definitions:
            golang.copy_files(source.definitions.path(), copy / "crds")
        chart_file, template = copy / _OWN, copy / _TEMPLATE
        facts: dict[str, Any] = read_yaml(chart_file if chart_file.is_file() else template)
        if not chart_file.is_file():
            facts["appVersion"] = source.version
        chart_file.write_text(yaml.safe_dump({**facts, "version": source.version}))
        yield copy


def find(reference: str, repository: str, version: str) -> ChartSource:
    """Return the chart that rehearsals have for the chart reference of a program, also if the reference is to a copy in
    a private registry. The chart's folder may not exist.

    Raises:
        OperationRefusal: rehearsals have no such chart; the message lists those they have.
    """
    name = reference.partition("@")[0]  # the digest is ignored, as local folders have none
    for source in sources():
        is_copy = not repository and name.endswith(f"/{source.published}")
        is_it = is_copy or (name, repository) == (source.reference, source.repository)
        if is_it and version in {source.version, ""}:
            return source
    available = ", ".join(f"{source.reference} {source.version}" for source in sources())
    raise OperationRefusal(
        f"the chart {reference} {version} is not in this rehearsal; its Helm releases are of {available}"
    )
