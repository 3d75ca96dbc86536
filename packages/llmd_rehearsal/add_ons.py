"""OKE's cluster add-ons in a rehearsed cluster: what they install there, by the real Helm."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from llmd_oke.values import Entry, read_yaml, values_folder
from llmd_pods.errors import KitError
from pydantic import Field

from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.kubernetes_plugin.client import find_access, load
from llmd_rehearsal.kubernetes_plugin.helm import Helm, HelmError

DELETE_S = 60


class AddOnChart(Entry):
    """A chart of `values/rehearsal/charts.yaml`."""

    reference: str
    version: str
    repository: str = ""


class AddOnContent(Entry):
    """What an add-on installs. `delay_s` is how long after it counts as active it begins, in seconds."""

    chart: AddOnChart
    namespace: str
    values: dict[str, Any] = Field(default_factory=dict[str, Any])
    delay_s: float = 0


@cache
def contents() -> dict[str, AddOnContent]:
    """All add-ons that put something into the cluster."""
    rows: dict[str, Any] = read_yaml(values_folder() / "rehearsal" / "add_ons.yaml")["add_ons"]
    return {name: AddOnContent.model_validate(row) for name, row in rows.items()}


@dataclass(frozen=True)
class AddOns:
    """The add-ons of one cluster. `helm` is its path; from PATH if empty."""

    kubeconfig: Path
    helm: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event)

    def delay_s(self, name: str) -> float:
        """How long after an add-on counts as active it begins to install, in seconds."""
        content = contents().get(name)
        return content.delay_s if content else 0

    def install(self, name: str, configurations: Mapping[str, str]) -> None:
        """Installs an add-on, or brings it to another configuration; like OKE, doesn't wait for its pods.

        Raises:
            KitError: Helm refuses it.
        """
        content = contents().get(name)
        if content is None:
            return
        helm, release, chart = self._helm(), _release_name(name), content.chart
        values = _merged(content.values, _nested(configurations))
        try:
            with charts.chart(chart.reference, chart.repository, chart.version) as folder:
                if helm.metadata(release, content.namespace) is None:
                    helm.install(release, content.namespace, folder, values, ["--create-namespace"])
                else:
                    helm.upgrade(release, content.namespace, folder, values, [])
        except HelmError as error:
            raise KitError(f"The add-on {name} can't be installed: {error}") from error

    def remove(self, name: str) -> None:
        """Takes away what an add-on installed, but for its definitions; one that isn't there is no error.

        Raises:
            KitError: Helm can't delete it.
        """
        content = contents().get(name)
        if content is None:
            return
        try:
            self._helm().uninstall(_release_name(name), content.namespace, DELETE_S)
        except HelmError as error:
            raise KitError(f"The add-on {name} can't be removed: {error}") from error

    def _helm(self) -> Helm:
        access = find_access(load(str(self.kubeconfig)))
        if access is None:
            raise KitError(f"{self.kubeconfig} names no cluster")
        return Helm(access, self.cancelled, self.helm)


def _release_name(name: str) -> str:
    return f"oke-{name.lower()}"


def _nested(configurations: Mapping[str, str]) -> dict[str, Any]:
    """Chart values from an add-on's configuration: `{"worker.tolerations": "[...]"}` is `{"worker": {...}}`."""
    values: dict[str, Any] = {}
    for key, text in configurations.items():
        *path, last = key.split(".")
        part = values
        for step in path:
            part = part.setdefault(step, {})
        part[last] = _parsed(text)
    return values


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {**below, **above}
    inner = [
        key for key in below.keys() & above.keys() if isinstance(below[key], dict) and isinstance(above[key], dict)
    ]
    return {**both, **{key: _merged(below[key], above[key]) for key in inner}}
