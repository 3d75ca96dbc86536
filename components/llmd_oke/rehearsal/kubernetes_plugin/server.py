"""The plug-in's gRPC server."""
# The generated interface gives the methods their names, arguments and meaning.
# ruff: noqa: N802, ARG002, D102

import functools
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import grpc

from llmd_oke.rehearsal.kubernetes_plugin import inputs, plans, reads, settings, writes
from llmd_oke.rehearsal.kubernetes_plugin.conditions import Limits
from llmd_oke.rehearsal.kubernetes_plugin.differences import Change, Difference
from llmd_oke.rehearsal.kubernetes_plugin.errors import InitFailed, Refusal
from llmd_oke.rehearsal.kubernetes_plugin.kinds import kind_of
from llmd_oke.rehearsal.kubernetes_plugin.protocol import (
    Empty,
    Servicer,
    Status,
    add_servicer,
    decode,
    encode,
    plugin,
    provider,
)
from llmd_oke.rehearsal.kubernetes_plugin.sessions import Session, Sessions

VERSION: Final = "4.30.0"
WORKERS: Final = 256
"""As many waits can be under way at once; each holds a thread."""
MESSAGE_LIMIT_BYTES: Final = 400 * 1024 * 1024

Message: TypeAlias = Any
"""A generated message, or a gRPC context: neither has types."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Server:
    """A running plug-in."""

    port: int
    _grpc: Any
    _sessions: Sessions

    def stop(self) -> None:
        """Stops to serve, and ends the waits that are under way."""
        self._sessions.cancel_all()
        self._grpc.stop(grace=0).wait()


def start(port: int = 0, limits: Limits | None = None) -> Server:
    """Serves on a port of 127.0.0.1, by default a free one."""
    options = [
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(ThreadPoolExecutor(WORKERS, thread_name_prefix="call"), options=options)
    sessions = Sessions(limits or Limits())
    add_servicer(KubernetesPlugin(sessions), server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return Server(bound, server, sessions)


class _Failure(NamedTuple):
    """What gRPC takes as the end of a failed call."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


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


def _answering(method: Callable[..., Any]) -> Callable[..., Any]:
    """Logs a call, and tells the engine of an error in the form that it expects."""

    @functools.wraps(method)
    def answer(self: Any, request: Message, context: Message) -> Message:
        began, outcome = time.monotonic(), "ok"
        try:
            return method(self, request, context)
        except Exception as error:
            outcome = f"failed: {error}"
            if not isinstance(error, Refusal | InitFailed):
                _log.exception("%s", method.__name__)
            context.abort_with_status(_failure(error))
        finally:
            name = getattr(request, "urn", "")
            _log.info("%s %s %.3f s %s", method.__name__, name, time.monotonic() - began, outcome)

    return answer


class KubernetesPlugin(Servicer):
    """The methods that the engine calls; each only translates. Those that aren't here are unimplemented."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def _session(self, context: Message) -> Session:
        return self._sessions.of(context.peer())

    def Handshake(self, request: Message, context: Message) -> None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "method Handshake not implemented")

    @_answering
    def GetPluginInfo(self, request: Message, context: Message) -> Message:
        return plugin.PluginInfo(version=VERSION)

    @_answering
    def Attach(self, request: Message, context: Message) -> Message:
        return Empty()

    @_answering
    def Cancel(self, request: Message, context: Message) -> Message:
        self._sessions.cancel(context.peer())
        return Empty()

    @_answering
    def GetSchema(self, request: Message, context: Message) -> Message:
        return provider.GetSchemaResponse(schema=json.dumps({"name": "kubernetes", "version": VERSION}))

    @_answering
    def CheckConfig(self, request: Message, context: Message) -> Message:
        return provider.CheckResponse(inputs=request.news)

    @_answering
    def DiffConfig(self, request: Message, context: Message) -> Message:
        change = settings.compare(decode(request.olds), decode(request.news))
        return provider.DiffResponse(
            changes=_changes(bool(change.changed)), diffs=change.changed, replaces=change.replaces
        )

    @_answering
    def Configure(self, request: Message, context: Message) -> Message:
        self._sessions.configure(context.peer(), settings.Settings.parse(decode(request.args)))
        return provider.ConfigureResponse(
            acceptSecrets=True, supportsPreview=True, supports_autonaming_configuration=True
        )

    @_answering
    def Check(self, request: Message, context: Message) -> Message:
        naming = _naming(request)
        olds, news = decode(request.olds), decode(request.news)
        checked = plans.check(self._session(context), kind_of(request.type), olds, news, naming)
        return provider.CheckResponse(inputs=encode(checked))

    @_answering
    def Diff(self, request: Message, context: Message) -> Message:
        olds, news = decode(request.olds), decode(request.news)
        diff = plans.diff(self._session(context), kind_of(request.type), olds, news, request.ignoreChanges)
        return provider.DiffResponse(
            changes=_changes(diff.changes),
            detailedDiff={difference.name: _property_diff(difference) for difference in diff.found},
            hasDetailedDiff=True,
            replaces=diff.replaces,
            deleteBeforeReplace=diff.delete_first,
        )

    @_answering
    def Create(self, request: Message, context: Message) -> Message:
        written = writes.create(self._session(context), _order(request, request.properties))
        return provider.CreateResponse(id=written.id, properties=encode(written.state))

    @_answering
    def Update(self, request: Message, context: Message) -> Message:
        order = _order(request, request.news)
        written = writes.update(self._session(context), order, decode(request.olds), request.ignoreChanges)
        return provider.UpdateResponse(properties=encode(written.state))

    @_answering
    def Delete(self, request: Message, context: Message) -> Message:
        state = decode(request.properties)
        writes.delete(self._session(context), kind_of(request.type), request.id, state, request.timeout)
        return Empty()

    @_answering
    def Read(self, request: Message, context: Message) -> Message:
        state, asked = decode(request.properties), decode(request.inputs)
        found = reads.read(self._session(context), kind_of(request.type), request.id, state, asked)
        if found is None:
            return provider.ReadResponse()
        return provider.ReadResponse(id=found.id, properties=encode(found.state), inputs=encode(found.inputs))

    @_answering
    def Invoke(self, request: Message, context: Message) -> Message:
        answer = reads.invoke(request.tok, decode(request.args))
        return provider.InvokeResponse(**{"return": encode(answer)})


def _order(request: Message, properties: Message) -> writes.Order:
    return writes.Order(request.urn, kind_of(request.type), decode(properties), request.preview, request.timeout)


def _naming(request: Message) -> inputs.Naming:
    allowed = request.autonaming.mode != provider.CheckRequest.AutonamingOptions.DISABLE
    return inputs.Naming(request.name, request.randomSeed, request.autonaming.proposed_name, allowed)


def _changes(some: bool) -> Message:
    return provider.DiffResponse.DIFF_SOME if some else provider.DiffResponse.DIFF_NONE


def _property_diff(difference: Difference) -> Message:
    kind = f"{difference.change.name}_REPLACE" if difference.replaces else difference.change.name
    return provider.PropertyDiff(
        kind=provider.PropertyDiff.Kind.Value(kind), inputDiff=difference.change is Change.DELETE
    )
