"""The examples of an existing cluster and of a second model there, at the real engine: two stacks in one backend."""

import runpy
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine_servers import RecordingPlugin, serving
from google.protobuf import json_format
from llmd_rehearsal.engine import Workspace
from pulumi import automation
from pulumi_engine import KeptStack, pulumi_command, stack_in, use_pulumi
from stack_files import PROJECT

pytestmark = pytest.mark.engine

KUBECONFIG = "apiVersion: v1\nkind: Config\n"
SECRET = "1b47061264138c4ac30d75fd1eb44270"
"""What the engine marks secrets with (sdk/go/common/resource/sig)."""


class ConfiguredPlugin(RecordingPlugin):
    """A plug-in that keeps the settings of its providers."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: list[dict[str, Any]] = []

    def Configure(self, request, context):  # noqa: N802
        self.settings.append(json_format.MessageToDict(request.args))
        return super().Configure(request, context)


@pytest.fixture
def plugin() -> ConfiguredPlugin:
    return ConfiguredPlugin()


@pytest.fixture
def stack_of(
    plugin: ConfiguredPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], KeptStack]]:
    """A function that returns a new stack of an example; all have the name `dev` and the same backend."""
    with serving(plugin) as port:
        use_pulumi(monkeypatch, tmp_path, PULUMI_DEBUG_PROVIDERS=f"kubernetes:{port}")

        def stack(name: str) -> KeptStack:
            folder = tmp_path / name
            shutil.copytree(PROJECT / "examples" / name, folder)
            program = partial(runpy.run_path, str(folder / "__main__.py"), run_name="__main__")
            return stack_in(Workspace(str(folder), program=program, pulumi_command=pulumi_command()), "dev")

        yield stack


def test_a_second_models_stack_deploys_into_the_cluster_that_the_first_stack_exports(
    plugin: ConfiguredPlugin, stack_of: Callable[[str], KeptStack]
):
    first = stack_of("existing-cluster")
    first.set_config("serving:kubeconfig", automation.ConfigValue(KUBECONFIG, secret=True))
    assert first.up().outputs["url"].value == "http://gpt-oss-120b.llm-d.svc.cluster.local"
    assert {"gpt-oss-120b-prefill", "gpt-oss-120b-decode"} <= {name for _, name in plugin.calls}
    plugin.calls.clear()
    plugin.settings.clear()
    second = stack_of("second-model")
    assert second.up().outputs["url"].value == "http://llama.llm-d.svc.cluster.local"
    assert [name for _, name in plugin.calls] == ["llama-aggregated"]
    (access,) = [item["kubeconfig"] for item in plugin.settings if "kubeconfig" in item]
    assert access["value"] == KUBECONFIG
    assert SECRET in access.values()
    assert "kind: Config" not in second.checkpoint.read_text()


def test_a_second_models_stack_without_the_first_stack_is_refused_with_its_name(
    stack_of: Callable[[str], KeptStack],
):
    with pytest.raises(automation.CommandError, match="organization/serving/dev"):
        stack_of("second-model").up()
