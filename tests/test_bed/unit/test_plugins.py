import os
import sys
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke import config, planning
from llmd_oke.sdk_modules import plugin_version
from llmd_rehearsal.cluster_plan import SIMULATED_PLUGIN, simulated
from llmd_rehearsal.plugins import EXECUTABLE, KubernetesPlugin, choose_plugin
from llmd_rehearsal.rehearsal_settings import PluginChoice
from stack_files import created_stack, plan

VERSION = plugin_version("pulumi_kubernetes")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pulumi's home, with no plug-in, and none on PATH."""
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "home"


def nothing(version: str) -> None:
    """A network without Pulumi's plug-ins."""


def executable(path: Path, script: str = "exit 1") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def in_folder(home: Path, version: str = VERSION) -> Path:
    return executable(home / "plugins" / f"resource-kubernetes-v{version}" / EXECUTABLE)


def test_the_stand_in_is_used_if_no_real_kubernetes_plug_in_is_installed():
    assert choose_plugin(PluginChoice.AUTO, plan(), nothing) == KubernetesPlugin(VERSION)


def test_requiring_a_missing_kubernetes_plug_in_is_refused_with_the_install_command():
    with pytest.raises(KitError) as refused:
        choose_plugin(PluginChoice.REAL, plan(), nothing)
    assert refused.value.remedy == f"Install it: pulumi plugin install resource kubernetes v{VERSION}"


def test_an_installed_kubernetes_plug_in_is_used_unless_the_stand_in_is_chosen(home: Path):
    existing = in_folder(home)
    assert choose_plugin(PluginChoice.AUTO, plan(), nothing).path == existing
    assert choose_plugin(PluginChoice.REAL, plan(), nothing).path == existing
    assert not choose_plugin(PluginChoice.STAND_IN, plan(), nothing).is_real


def test_kubernetes_plug_ins_of_other_versions_or_partly_installed_are_not_used(home: Path):
    in_folder(home, "4.1.0")
    folder = in_folder(home).parent
    folder.with_name(f"{folder.name}.partial").touch()
    assert not choose_plugin(PluginChoice.AUTO, plan(), nothing).is_real


def test_a_kubernetes_plug_in_on_path_is_used_if_it_reports_the_right_version(tmp_path: Path):
    existing = executable(tmp_path / "bin" / EXECUTABLE)
    assert not choose_plugin(PluginChoice.AUTO, plan(), nothing).is_real
    path = os.pathsep.join(sys.path)
    executable(existing, f'PYTHONPATH="{path}" exec {sys.executable} -m llmd_rehearsal.kubernetes_plugin "$@"')
    assert choose_plugin(PluginChoice.AUTO, plan(), nothing) == KubernetesPlugin(VERSION, existing)


def test_stacks_with_helm_releases_use_the_stand_in_as_real_plug_ins_fetch_charts(home: Path):
    in_folder(home)
    created = planning.plan(config.validate(created_stack()))
    assert not choose_plugin(PluginChoice.AUTO, created, nothing).is_real
    with pytest.raises(KitError, match="no way out"):
        choose_plugin(PluginChoice.REAL, created, nothing)


def test_a_rehearsals_pulumi_home_links_to_a_real_plug_in_until_a_stand_in_is_used(home: Path, tmp_path: Path):
    real = KubernetesPlugin(VERSION, in_folder(home))
    real.install(tmp_path / "engine")
    (result,) = (tmp_path / "engine").rglob(EXECUTABLE)
    assert (result.parent.name, result.resolve()) == (f"resource-kubernetes-v{VERSION}", real.path)
    KubernetesPlugin(VERSION).install(tmp_path / "engine")
    assert not result.exists()


def test_the_kubernetes_plug_in_is_reported_as_simulated_only_if_a_stand_in_runs():
    assert SIMULATED_PLUGIN in simulated(plan(), KubernetesPlugin(VERSION))
    assert SIMULATED_PLUGIN not in simulated(plan(), KubernetesPlugin(VERSION, Path("/there")))
