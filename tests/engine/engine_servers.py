"""Servers that an engine talks to: a plug-in that accepts every object, and the program of a stack."""

from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.automation import PulumiFn
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc

DEPLOYMENT = "kubernetes:apps/v1:Deployment"


class RecordingPlugin(provider_pb2_grpc.ResourceProviderServicer):
    """A plug-in that accepts every object; differences are field by field, and nothing is replaced by itself."""

    remembered = DEPLOYMENT

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def Handshake(self, request: Any, context: Any) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "")

    def Attach(self, request: Any, context: Any) -> Any:  # noqa: N802
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return plugin_pb2.PluginInfo(version="4.30.0")

    def CheckConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request: Any, context: Any) -> Any:  # noqa: N802
        return provider_pb2.ConfigureResponse(acceptSecrets=True, acceptResources=True, supportsPreview=True)

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        return provider_pb2.CheckResponse(inputs=request.news)

    def Diff(self, request: Any, context: Any) -> Any:  # noqa: N802
        old, new = json_format.MessageToDict(request.old_inputs), json_format.MessageToDict(request.news)
        paths = list(differences(old, new))
        update = provider_pb2.PropertyDiff(kind=provider_pb2.PropertyDiff.UPDATE)
        changes = provider_pb2.DiffResponse.DIFF_SOME if paths else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(
            changes=changes, detailedDiff=dict.fromkeys(paths, update), hasDetailedDiff=True
        )

    def Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._remember("create", request)
        return provider_pb2.CreateResponse(id=request.name, properties=request.properties)

    def Update(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._remember("update", request)
        return provider_pb2.UpdateResponse(properties=request.news)

    def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._remember("delete", request)
        return empty_pb2.Empty()

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: N802
        return empty_pb2.Empty()

    def _remember(self, step: str, request: Any) -> None:
        if request.type == self.remembered:
            self.calls.append((step, request.name))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths as the Kubernetes plug-in writes them: `metadata.labels["a/b"]`."""
    for key in sorted({*old, *new}):
        here = f"{path}.{key}".removeprefix(".") if key.isidentifier() else f'{path}["{key}"]'
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(old[key], new[key], here)
        elif before != after:
            yield here


@contextmanager
def serving(plugin: RecordingPlugin) -> Generator[int]:
    """The port of the plug-in, as long as it is served."""
    server = grpc.server(ThreadPoolExecutor(8))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(plugin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait(10)


@contextmanager
def language_server(program: PulumiFn) -> Generator[str]:
    """The address at which the CLI finds a program that runs in this process."""
    server = grpc.server(ThreadPoolExecutor(4))
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageServer(program), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait(10)
