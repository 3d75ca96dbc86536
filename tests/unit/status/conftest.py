"""A stack in a project, and its cluster as an API server tells it."""

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import stack_files
from llmd_oke.cli.main import app
from llmd_oke.operations.status import load
from stack_cluster import StackCluster, cluster_of, served, small_plan, small_stack
from typer.testing import CliRunner, Result


def _sleep_not(_seconds: float) -> None:
    """Each look at the clock is half a minute after the one before."""


@pytest.fixture
def cluster() -> StackCluster:
    """A cluster where all is well, until a test changes it."""
    return cluster_of(small_plan())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose stack `s` is that of the cluster."""
    shutil.copyfile(stack_files.PROJECT / "Pulumi.yaml", tmp_path / "Pulumi.yaml")
    stack_files.write(tmp_path, "s", small_stack())
    return tmp_path


@pytest.fixture
def run(cluster: StackCluster, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run a command on the stack in a terminal of 80 columns."""
    with served(cluster, project) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(load, "sleep", _sleep_not)
        monkeypatch.setattr(load, "monotonic", count(0.0, 30.0).__next__)

        def command(*words: str) -> Result:
            name, *options = words
            every = ["--every", "1"] if name == "status" else []
            return CliRunner().invoke(app, [name, "--stack", "s", "--project", str(project), *every, *options])

        yield command
