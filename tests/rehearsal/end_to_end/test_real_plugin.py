"""A rehearsal with a plug-in that the engine starts itself: Pulumi's own where it is installed, and for every machine
an executable in Pulumi's plug-in folder that is the stand-in.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_base.progress import SilentProgress
from llmd_oke.sdk_modules import plugin_version
from llmd_rehearsal import engine_operations, rehearsal
from llmd_rehearsal.cluster_plan import SIMULATED_PLUGIN
from llmd_rehearsal.plugins import EXECUTABLE, installed
from llmd_rehearsal.rehearsal_settings import PluginChoice, running_settings
from user_project import Ended, Project

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "attached"
VERSION = plugin_version("pulumi_kubernetes")


@dataclass(frozen=True)
class Life:
    """Operations of the stack: made, left alone, refreshed."""

    path: Path
    made: Ended
    left_alone: Ended
    refreshed: dict[str, Any]


@pytest.fixture(scope="module", params=[pytest.param("shaped like one", marks=pytest.mark.nightly), "installed"])
def life(request: pytest.FixtureRequest, project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    with pytest.MonkeyPatch.context() as environment:
        if request.param == "installed":
            path = installed(VERSION)
            if path is None:
                pytest.skip(f"Pulumi's Kubernetes plug-in v{VERSION} is neither in its plug-in folder nor on PATH")
        else:
            home = tmp_path_factory.mktemp("pulumi-home")
            path = shaped_like_a_plugin(home / "plugins" / f"resource-kubernetes-v{VERSION}" / EXECUTABLE)
            environment.setenv("PULUMI_HOME", str(home))
        project.write(STACK, smoke={"where": "none"})
        created, left_alone = rehearse(project, "real"), rehearse(project, "auto")
        settings = running_settings(project.folder, STACK)
        assert settings.plugin is PluginChoice.REAL
        prepared = rehearsal.prepare(project.folder, STACK, settings, SilentProgress())
        refreshed = engine_operations.run_engine(prepared, "refresh", SilentProgress())
        yield Life(path, created, left_alone, refreshed)
        project.command("rehearse", "down", "--stack", STACK)


def rehearse(project: Project, plugin: str) -> Ended:
    return project.command("rehearse", "--stack", STACK, "--plugin", plugin, "--no-benchmark", "--json")


def shaped_like_a_plugin(path: Path) -> Path:
    """The stand-in as an executable that notes beside itself each time it is started."""
    path.parent.mkdir(parents=True)
    search = os.pathsep.join(sys.path)
    lines = [
        "#!/bin/sh",
        f'echo "$1" >> {path.parent}/started',
        f'PYTHONPATH="{search}" exec {sys.executable} -m llmd_rehearsal.kubernetes_plugin "$@"',
    ]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


def test_pulumis_kubernetes_plug_in_creates_a_stack_and_a_second_update_changes_none(life: Life) -> None:
    assert life.made.status == 0, life.made.errors
    assert life.made.document["update"]["changes"]["create"] > 20
    assert life.left_alone.status == 0, life.left_alone.errors
    assert set(life.left_alone.document["update"]["changes"]) == {"same"}
    assert set(life.refreshed["changes"]) == {"same"}


def test_pulumi_attaches_to_the_oci_stand_in_and_starts_the_kubernetes_plug_in(life: Life) -> None:
    assert life.made.document["update"]["plugins"].keys() == {"oci"}
    started = life.path.parent / "started"
    assert not started.exists() or len(started.read_text().splitlines()) >= 3


def test_the_summary_of_a_rehearsal_names_its_kubernetes_plug_in(life: Life) -> None:
    assert life.made.document["kubernetes_plugin"] == {"real": True, "version": VERSION, "path": str(life.path)}
    assert SIMULATED_PLUGIN not in life.made.document["simulated"]
