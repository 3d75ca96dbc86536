"""Plug-ins of the real endpoint picker of llm-d 0.6.0: those that the catalogue names, and those of later profiles."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_oke.catalogue.endpoint_pickers import ReportingServers, endpoint_picker
from llmd_rehearsal.programs import locate

pytestmark = pytest.mark.rehearsal

VERSION, LATER = "v0.7.1", "v0.10.0"
KNOWN = endpoint_picker(VERSION)
PROFILES = [name for name in endpoint_picker(LATER).profiles if name not in KNOWN.profiles]
KUBECONFIG = """
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
current-context: none
users: [{name: none, user: {}}]
"""
"""Configs are read before a cluster is asked for anything."""


def said(folder: Path, plugins: list[dict[str, Any]]) -> str:
    """Return what the picker says of a config with these plug-ins, which ends it."""
    program = locate("epp", VERSION)
    if program is None:
        pytest.skip(f"no endpoint picker {VERSION} on this machine")
    config = {"apiVersion": KNOWN.api_versions[0], "kind": "EndpointPickerConfig", "plugins": plugins}
    for name, text in (("config.yaml", yaml.safe_dump(config)), ("kubeconfig", KUBECONFIG)):
        (folder / name).write_text(text)
    pool = ("--pool-name", "none", "--pool-namespace", "none")
    done = subprocess.run(
        [program.path, "--config-file", folder / "config.yaml", *pool, "--tracing=false"],
        env={"KUBECONFIG": str(folder / "kubeconfig")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", PROFILES)
def test_a_picker_exits_at_the_first_plugin_that_only_later_releases_have(name: str, tmp_path: Path) -> None:
    servers = ReportingServers("m", "http://m-render:8000", 16, 5556)
    written: Any = endpoint_picker(LATER).config(
        name,
        disaggregated=False,
        decider="prefix",
        non_cached_tokens=16,
        peak_prefill_tokens_per_s=None,
        servers=servers,
    )
    unknown = next(plugin["type"] for plugin in written["plugins"] if plugin["type"] not in KNOWN.plugins)
    text = said(tmp_path, written["plugins"])
    print(f"{name}: plugin type '{unknown}' is not registered")
    assert f"plugin type '{unknown}' is not registered" in text


@pytest.mark.parametrize("kind", KNOWN.plugins)
def test_each_plugin_of_the_catalogue_is_registered_in_the_picker(kind: str, tmp_path: Path) -> None:
    """The picker gets as far as the next plug-in, or wants parameters."""
    text = said(tmp_path, [{"type": kind}, {"type": "none-such"}])
    assert f"plugin type '{kind}' is not registered" not in text
    assert "plugin type 'none-such' is not registered" in text or f"failed to create plugin '{kind}'" in text
