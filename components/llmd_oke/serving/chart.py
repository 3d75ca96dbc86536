"""The router's chart, rendered by Helm on this machine."""

import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmd_oke.catalogue.artifacts import chart_folder
from llmd_oke.catalogue.files import read_yaml, yaml_documents
from llmd_oke.catalogue.releases import Chart
from llmd_oke.errors import KitError

HELM_TIMEOUT_S = 120


def render_chart(chart: Chart, name: str, namespace: str, values: str) -> list[dict[str, Any]]:
    """The manifests that the chart renders for a Helm release of that name.

    Args:
        chart: read from its Go module's folder where that is on the machine, otherwise from its OCI artifact.
        name: name of the Helm release; the chart names its objects after it.
        namespace: namespace of the objects.
        values: YAML text of the chart's values.

    Raises:
        KitError: Helm is missing or refuses the values.
    """
    helm = find_helm()
    with _source(chart) as source, tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(values)
        file.flush()
        command = [helm, "template", name, *source, "--namespace", namespace, "--values", file.name]
        output = _run(command, f"{chart.oci} {chart.version}")
    return yaml_documents(output)


def find_helm() -> str:
    """The path of Helm.

    Raises:
        KitError: it is not on PATH.
    """
    helm = shutil.which("helm")
    if helm is None:
        raise KitError(
            "`helm` is not on PATH; the router's chart is rendered with it.", "Install Helm 3: https://helm.sh"
        )
    return helm


@contextmanager
def _source(chart: Chart) -> Generator[list[str]]:
    """What `helm template` gets as its chart. In the module, the library chart lies beside the one that needs it."""
    folder = chart_folder(chart)
    if folder is None:
        yield [chart.oci, "--version", chart.version]
        return
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / folder.name
        _copy(folder, copy)
        for dependency in read_yaml(folder / "Chart.yaml").get("dependencies", ()):
            local = folder / dependency["repository"].removeprefix("file://")
            _copy(local, copy / "charts" / dependency["name"])
        yield [str(copy)]


def _copy(folder: Path, to: Path) -> None:
    """Copies content without permissions: a module's folders are read-only, and this copy is added to and deleted."""
    for file in folder.rglob("*"):
        if file.is_file():
            target = to / file.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HELM_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise KitError(f"`helm template` of {what} took more than {HELM_TIMEOUT_S} s.") from error
    if done.returncode:
        raise KitError(f"Helm can't render {what}: {done.stderr.strip()}")
    return done.stdout
