"""The component package at the real engine: it constructs the components that programs in other languages declare."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llmd_oke
import pulumi
import pulumi_kubernetes as k8s
import pytest
from engine_servers import DEPLOYMENT, RecordingPlugin
from google.protobuf import json_format
from llmd_oke import objects
from llmd_oke.config.deprecated_keys import DeprecatedArgument
from pulumi.automation.events import EngineEvent
from pulumi_engine import KeptStack

pytestmark = pytest.mark.engine

COMPONENTS = Path(__file__).resolve().parents[2] / "components"
PLUGIN = '#!/bin/sh\nexec "{python}" "{components}" "$@"\n'


class Remote(pulumi.ComponentResource):
    """A component as SDKs of other languages declare it: the engine has its package construct it."""

    url: pulumi.Output[str]
    name: pulumi.Output[str]
    serviceAccount: pulumi.Output[str]  # noqa: N815

    def __init__(self, kind: str, name: str, arguments: dict[str, Any], opts: pulumi.ResourceOptions) -> None:
        outputs = dict.fromkeys(("name", "serviceAccount", "url"))
        super().__init__(f"llmd-oke:index:{kind}", name, {**outputs, **arguments}, opts, remote=True)


class DeclaredObjects(RecordingPlugin):
    """A plug-in that keeps the inputs of each object."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}

    def Create(self, request, context):  # noqa: N802
        self.objects[request.type, request.name] = json_format.MessageToDict(request.properties)
        return super().Create(request, context)


@pytest.fixture
def objects_of(stack_with: Callable[..., KeptStack], tmp_path: Path):
    """A function that deploys a program, and returns its objects and outputs."""
    installed = tmp_path / "home" / "plugins" / f"resource-llmd-oke-v{llmd_oke.__version__}"
    installed.mkdir(parents=True)
    script = installed / "pulumi-resource-llmd-oke"
    script.write_text(PLUGIN.format(python=sys.executable, components=COMPONENTS))
    script.chmod(0o755)

    def deploy(name: str, program: Callable[[], None]) -> tuple[dict[tuple[str, str], dict[str, Any]], str]:
        plugin = DeclaredObjects()
        done = stack_with(plugin, program, name).up()
        return plugin.objects, done.outputs["url"].value

    return deploy


def test_components_declared_in_another_language_become_the_same_kubernetes_objects(objects_of):
    settings = {"release": "llm-d-0.9.0", "model": "gpt-oss-120b", "shape": "BM.GPU.MI300X.8", "rdma": False}

    def other_language() -> None:
        cluster = k8s.Provider("cluster", cluster_identifier="test")
        opts = pulumi.ResourceOptions(providers={"kubernetes": cluster})
        place = Remote("ServingNamespace", "chat", {"namespace": "chat", "tensorParallelSizes": [1]}, opts)
        servers = {"replicas": 2, "tensorParallelSize": 1}
        where = {"namespace": place.name, "serviceAccount": place.serviceAccount}
        Remote("AggregatedUnit", "m", {**settings, **where, "servers": servers}, opts)
        endpoint = {"namespace": "chat", "model": "gpt-oss-120b", "readyTimeoutS": 60}
        pulumi.export("url", Remote("ModelEndpoint", "e", endpoint, opts).url)

    def python() -> None:
        opts = pulumi.ResourceOptions(provider=k8s.Provider("cluster", cluster_identifier="test"))
        place = llmd_oke.ServingNamespace("chat", {"namespace": "chat", "tensor_parallel_sizes": [1]}, opts)
        servers = {"replicas": 2, "tensor_parallel_size": 1}
        where = {"namespace": place.name, "service_account": place.service_account}
        llmd_oke.AggregatedUnit("m", {**settings, **where, "servers": servers}, opts)
        endpoint = {"namespace": "chat", "model": "gpt-oss-120b", "ready_timeout_s": 60}
        pulumi.export("url", llmd_oke.ModelEndpoint("e", endpoint, opts).url)

    declared, url = objects_of("python", python)
    assert objects_of("other", other_language) == (declared, url)
    assert url == "http://gpt-oss-120b.chat.svc.cluster.local"
    assert (DEPLOYMENT, "m-aggregated") in declared


def test_the_pulumi_engine_shows_the_warning_of_a_deprecated_argument(
    stack_with: Callable[..., KeptStack], monkeypatch: pytest.MonkeyPatch
):
    row = {"types": ("ServingNamespaceArgs",), "argument": "tensor_parallel_sizes", "by_hand": "what pods ask for"}
    entry = DeprecatedArgument(**row, since="0.1.0", removed_in="9.0.0")
    monkeypatch.setattr(objects, "deprecated_arguments", lambda: (entry,))
    told: list[str] = []

    def program() -> None:
        opts = pulumi.ResourceOptions(provider=k8s.Provider("cluster", cluster_identifier="test"))
        llmd_oke.ServingNamespace("chat", {"namespace": "chat", "tensor_parallel_sizes": [1]}, opts)

    def hear(event: EngineEvent) -> None:
        if event.diagnostic_event and event.diagnostic_event.severity == "warning":
            told.append(event.diagnostic_event.message)

    stack_with(DeclaredObjects(), program).preview(on_event=hear)
    assert any("ServingNamespace: tensor_parallel_sizes is deprecated since 0.1.0" in text for text in told), told
