"""gRPC protocol between the Pulumi engine and resource plug-ins.

Only this module imports the generated code, which has no types; its exports are therefore `Any`.
"""
# The generated gRPC interface defines the methods' names, arguments and meanings.
# ruff: noqa: N802, ARG002, D102

import functools
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import grpc
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from llmd_rehearsal.plugin_values import UNKNOWN, InitFailed, Naming, OperationRefusal, PropertyChangeKind, Secret, Tree

provider: Any = provider_pb2
plugin: Any = plugin_pb2
Status: Any = status_pb2.Status
Empty: Any = empty_pb2.Empty
Struct: Any = struct_pb2.Struct
Servicer: Any = provider_pb2_grpc.ResourceProviderServicer
add_servicer: Any = provider_pb2_grpc.add_ResourceProviderServicer_to_server  # pyright: ignore[reportUnknownVariableType]
Stub: Any = provider_pb2_grpc.ResourceProviderStub
Message: TypeAlias = Any
"""Type of protobuf messages of generated code, and of gRPC contexts."""

# Constants of the protocol: sdk/go/common/resource/properties.go and plugin/rpc.go of pulumi/pulumi.
SIGNATURE_KEY: Final = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - the protocol's marker of secrets
UNKNOWN_TEXT: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"

WORKERS: Final = 256
"""Number of threads in which a plug-in answers gRPC calls; each wait in progress occupies one."""
MESSAGE_LIMIT_BYTES: Final = 400 * 1024 * 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PluginServer:
    """Running gRPC server of a plug-in on a port of 127.0.0.1. `_cancel` ends the waits in progress."""

    port: int
    _grpc: Any
    _cancel: Callable[[], None]

    def stop(self) -> None:
        """Stop the plug-in's gRPC server and end the waits in progress."""
        self._cancel()
        self._grpc.stop(grace=0).wait()


def serve(servicer: object, port: int, cancel: Callable[[], None]) -> PluginServer:
    """Start a plug-in's gRPC server on a port of 127.0.0.1 (0: a free port) and return it; `cancel` is the function
    that ends the plug-in's waits.
    """
    options = [
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(ThreadPoolExecutor(WORKERS, thread_name_prefix="call"), options=options)
    add_servicer(servicer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return PluginServer(bound, server, cancel)


def serve_until_signal(start: Callable[[], PluginServer]) -> None:
    """Start a plug-in that logs every call to standard error, and stop it on SIGINT or SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = start()
    signal.sigwait(ends)
    server.stop()


class _Failure(NamedTuple):
    """Status with which gRPC ends a failed call."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def logged_call(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the handler of a gRPC call: log each call, and translate exceptions to the engine's error format."""

    @functools.wraps(method)
    def call(self: Any, request: Message, context: Message) -> Message:
        started_s, outcome = time.monotonic(), "ok"
        try:
            return method(self, request, context)
        except Exception as error:
            outcome = f"failed: {error}"
            if not isinstance(error, OperationRefusal | InitFailed):
                _log.exception("%s", method.__name__)
            context.abort_with_status(_failure(error))
        finally:
            name = getattr(request, "urn", "") or getattr(request, "tok", "")
            _log.info("%s %s %.3f s %s", method.__name__, name, time.monotonic() - started_s, outcome)

    return call


class PluginServicer(Servicer):
    """gRPC methods that all stand-in plug-ins share: the plug-in's version, and a configuration check that accepts
    everything.
    """

    package: str
    version: str
    """Version of the plug-in in its schema; `engine_version` is the version that the engine is told."""
    setting_types: Mapping[str, str] = {}
    """Types of a provider's settings by name in the plug-in's schema, to which programs in YAML are held."""

    @property
    def engine_version(self) -> str:
        """Version that the plug-in reports; the engine compares it with the version of the program's library."""
        return self.version

    def Handshake(self, request: Message, context: Message) -> None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "method Handshake not implemented")

    @logged_call
    def GetPluginInfo(self, request: Message, context: Message) -> Message:
        return plugin.PluginInfo(version=self.engine_version)

    @logged_call
    def Attach(self, request: Message, context: Message) -> Message:
        return Empty()

    @logged_call
    def GetSchema(self, request: Message, context: Message) -> Message:
        settings = {name: {"type": kind} for name, kind in self.setting_types.items()}
        schema = {"name": self.package, "version": self.version, "provider": {"inputProperties": settings}}
        return provider.GetSchemaResponse(schema=json.dumps(schema))

    @logged_call
    def CheckConfig(self, request: Message, context: Message) -> Message:
        return provider.CheckResponse(inputs=request.news)


def _failure(error: Exception) -> _Failure:
    status = Status(code=grpc.StatusCode.UNKNOWN.value[0], message=str(error))
    if isinstance(error, InitFailed):
        detail = provider.ErrorResourceInitFailed(
            id=error.id,
            properties=encode(error.properties),
            reasons=error.reasons,
            inputs=None if error.inputs is None else encode(error.inputs),
        )
        status.details.add().Pack(detail)
    return _Failure(grpc.StatusCode.UNKNOWN, str(error), (("grpc-status-details-bin", status.SerializeToString()),))


def diff_changes(some: bool) -> Message:
    """Return the constant of Pulumi's plug-in protocol that says whether a Diff has changes (`some`)."""
    return provider.DiffResponse.DIFF_SOME if some else provider.DiffResponse.DIFF_NONE


def property_diff(change: PropertyChangeKind, *, replaces: bool, of_inputs: bool = False) -> Message:
    """Return the protocol's message about one property's change. `of_inputs`: old and new inputs were compared, not
    state and inputs.
    """
    kind = f"{change.name}_REPLACE" if replaces else change.name
    return provider.PropertyDiff(kind=provider.PropertyDiff.Kind.Value(kind), inputDiff=of_inputs)


def naming_of(request: Message) -> Naming:
    """Return the parts of an automatic name for a resource that a Check request of the engine contains."""
    allowed = request.autonaming.mode != provider.CheckRequest.AutonamingOptions.DISABLE
    return Naming(request.name, request.randomSeed, request.autonaming.proposed_name, allowed)


def decode(message: Any) -> dict[str, Tree]:
    """Return the property tree in a protobuf Struct, with whole numbers as int, because services distinguish them from
    other numbers.
    """
    return {key: _decode_value(value) for key, value in message.fields.items()}


def _decode_value(value: Any) -> Tree:
    match value.WhichOneof("kind"):
        case "string_value":
            return UNKNOWN if value.string_value == UNKNOWN_TEXT else value.string_value
        case "number_value":
            return int(value.number_value) if value.number_value.is_integer() else value.number_value
        case "bool_value":
            return value.bool_value
        case "list_value":
            return [_decode_value(item) for item in value.list_value.values]
        case "struct_value":
            fields = value.struct_value.fields
            if SIGNATURE_KEY in fields and fields[SIGNATURE_KEY].string_value == SECRET_SIGNATURE:
                return Secret(_decode_value(fields["value"]))
            return {**decode(value.struct_value)}
        case _:
            return None


def encode(tree: dict[str, Tree]) -> Any:
    """Return a property tree as a protobuf Struct."""
    message = Struct()
    _fill_struct(message, tree)
    return message


def _fill_struct(message: Any, tree: dict[str, Tree]) -> None:
    message.SetInParent()
    for key, value in tree.items():
        _fill_value(message.fields[key], value)


def _fill_value(message: Any, value: Tree) -> None:
    match value:
        case None:
            message.null_value = 0
        case bool():
            message.bool_value = value
        case int() | float():
            message.number_value = value
        case str():
            message.string_value = value
        case Secret(inner):
            _fill_struct(message.struct_value, {SIGNATURE_KEY: SECRET_SIGNATURE, "value": inner})
        case list():
            message.list_value.SetInParent()
            for item in value:
                _fill_value(message.list_value.values.add(), item)
        case dict():
            _fill_struct(message.struct_value, value)
        case _:
            message.string_value = UNKNOWN_TEXT
