import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pulumi
import pulumi_kubernetes as k8s
import pytest
from google.protobuf import empty_pb2, json_format
from llmd_oke import AggregatedUnit
from llmd_rehearsal.programs import locate
from pulumi import automation
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc
from pulumi_engine import home_without_logs, new_stack

pytestmark = pytest.mark.engine

DEPLOYMENT = "kubernetes:apps/v1:Deployment"


class RecordingPlugin(provider_pb2_grpc.ResourceProviderServicer):
    """A plug-in that accepts every object; differences are field by field, and nothing is replaced by itself."""

    remembered = DEPLOYMENT

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def Handshake(self, request, context):  # noqa: N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "")

    def Attach(self, request, context):  # noqa: N802
        return empty_pb2.Empty()

    def GetPluginInfo(self, request, context):  # noqa: N802
        return plugin_pb2.PluginInfo(version="4.30.0")

    def CheckConfig(self, request, context):  # noqa: N802
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request, context):  # noqa: N802
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request, context):  # noqa: N802
        return provider_pb2.ConfigureResponse(acceptSecrets=True, acceptResources=True, supportsPreview=True)

    def Check(self, request, context):  # noqa: N802
        return provider_pb2.CheckResponse(inputs=request.news)

    def Diff(self, request, context):  # noqa: N802
        old, new = json_format.MessageToDict(request.old_inputs), json_format.MessageToDict(request.news)
        paths = list(differences(old, new))
        update = provider_pb2.PropertyDiff(kind=provider_pb2.PropertyDiff.UPDATE)
        changes = provider_pb2.DiffResponse.DIFF_SOME if paths else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(
            changes=changes, detailedDiff=dict.fromkeys(paths, update), hasDetailedDiff=True
        )

    def Create(self, request, context):  # noqa: N802
        self._remember("create", request)
        return provider_pb2.CreateResponse(id=request.name, properties=request.properties)

    def Update(self, request, context):  # noqa: N802
        self._remember("update", request)
        return provider_pb2.UpdateResponse(properties=request.news)

    def Delete(self, request, context):  # noqa: N802
        self._remember("delete", request)
        return empty_pb2.Empty()

    def Cancel(self, request, context):  # noqa: N802
        return empty_pb2.Empty()

    def _remember(self, step: str, request: Any) -> None:
        if request.type == self.remembered:
            self.calls.append((step, request.name))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = ""):
    """Paths as the Kubernetes plug-in writes them: `metadata.labels["a/b"]`."""
    for key in sorted({*old, *new}):
        here = f"{path}.{key}".removeprefix(".") if key.isidentifier() else f'{path}["{key}"]'
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, here)
        elif before != after:
            yield here


@contextmanager
def serving(plugin: RecordingPlugin):
    """The address of the plug-in, as long as it is served."""
    server = grpc.server(ThreadPoolExecutor(8))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(plugin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"kubernetes:{port}"
    server.stop(None).wait(10)


def engine_options(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, logs: bool = False
) -> automation.LocalWorkspaceOptions:
    """An engine with a state of its own and one plug-in; it keeps logs of its operations only if `logs` says so."""
    engine = locate("pulumi")
    if engine is None:
        pytest.skip("there is no `pulumi` in LLMD_OKE_PROGRAMS, in the cache or on PATH")
    monkeypatch.setenv("PATH", f"{Path(engine.path).parent}{os.pathsep}{os.environ['PATH']}")
    settings = {
        "PULUMI_BACKEND_URL": f"file://{tmp_path}",
        "PULUMI_HOME": str(tmp_path / "home") if logs else home_without_logs(tmp_path / "home"),
        "PULUMI_CONFIG_PASSPHRASE": "none",
        "PULUMI_DEBUG_PROVIDERS": address,
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }
    work = tmp_path / "work"
    work.mkdir()
    return automation.LocalWorkspaceOptions(work_dir=str(work), env_vars=settings)


@pytest.fixture
def update(tmp_path, monkeypatch):
    """Bring the stack to a number and size of servers; return what happened to their Deployment."""
    plugin, wanted = RecordingPlugin(), {}

    def program():
        cluster = k8s.Provider("cluster", cluster_identifier="test")
        AggregatedUnit("m", unit(**wanted), pulumi.ResourceOptions(provider=cluster))

    def bring(replicas, size):
        plugin.calls.clear()
        wanted.update(replicas=replicas, size=size)
        stack.up()
        return [step for step, _ in plugin.calls]

    with serving(plugin) as address:
        options = engine_options(address, tmp_path, monkeypatch)
        stack = new_stack(program, options)
        yield bring


def unit(replicas, size):
    return {
        "release": "llm-d-0.9.0",
        "model": "gpt-oss-120b",
        "shape": "BM.GPU.MI300X.8",
        "namespace": "n",
        "service_account": "s",
        "servers": {"replicas": replicas, "tensor_parallel_size": size},
    }


def test_a_changed_gpu_count_of_servers_replaces_their_deployment_deleting_it_first(update):
    assert update(4, 1) == ["create"]
    assert update(6, 1) == ["update"]
    assert update(2, 4) == ["delete", "create"]
