"""gRPC server of the stand-in Kubernetes plug-in."""
# The generated gRPC interface defines the methods' names, arguments and meanings.
# ruff: noqa: N802, ARG002, D102

from collections.abc import Sequence
from typing import Final

from llmd_rehearsal.kubernetes_plugin import operations
from llmd_rehearsal.kubernetes_plugin.differences import ObjectPropertyChange
from llmd_rehearsal.kubernetes_plugin.helm import TOKEN as RELEASE
from llmd_rehearsal.kubernetes_plugin.helm import Releases
from llmd_rehearsal.kubernetes_plugin.objects import kind_of
from llmd_rehearsal.kubernetes_plugin.readiness import WaitLimits
from llmd_rehearsal.kubernetes_plugin.sessions import (
    SETTING_TYPES,
    KubernetesSession,
    ProviderSettings,
    Sessions,
    compare,
)
from llmd_rehearsal.plugin_protocol import (
    Empty,
    Message,
    PluginServer,
    PluginServicer,
    decode,
    diff_changes,
    encode,
    logged_call,
    naming_of,
    property_diff,
    provider,
    serve,
)
from llmd_rehearsal.plugin_values import PropertyChangeKind

VERSION: Final = "4.30.0"


def start(port: int = 0, limits: WaitLimits | None = None, helm: str = "") -> PluginServer:
    """Start the gRPC server of the stand-in Kubernetes plug-in on a port of 127.0.0.1 (0: a free port) and return it.

    `helm` is the path of the program Helm; if empty, Helm is taken from PATH.
    """
    sessions = Sessions(limits or WaitLimits())
    return serve(KubernetesServicer(sessions, Releases(helm)), port, sessions.cancel_all)


class KubernetesServicer(PluginServicer):
    """gRPC methods of the stand-in Kubernetes plug-in, which translate between the engine's messages and operations on
    objects. All other methods are unimplemented.
    """

    package = "kubernetes"
    version = VERSION
    setting_types = SETTING_TYPES

    def __init__(self, sessions: Sessions, releases: Releases) -> None:
        self._sessions = sessions
        self._releases = releases

    def _session(self, context: Message) -> KubernetesSession:
        return self._sessions.of(context.peer())

    @logged_call
    def Cancel(self, request: Message, context: Message) -> Message:
        self._sessions.cancel(context.peer())
        return Empty()

    @logged_call
    def DiffConfig(self, request: Message, context: Message) -> Message:
        change = compare(decode(request.olds), decode(request.news))
        return provider.DiffResponse(
            changes=diff_changes(bool(change.changed)), diffs=change.changed, replaces=change.replaces
        )

    @logged_call
    def Configure(self, request: Message, context: Message) -> Message:
        self._sessions.configure(context.peer(), ProviderSettings.parse(decode(request.args)))
        return provider.ConfigureResponse(
            acceptSecrets=True, supportsPreview=True, supports_autonaming_configuration=True
        )

    @logged_call
    def Check(self, request: Message, context: Message) -> Message:
        olds, news = decode(request.olds), decode(request.news)
        session = self._session(context)
        if request.type == RELEASE:
            return provider.CheckResponse(inputs=encode(self._releases.check(session, news)))
        checked = operations.check(session, kind_of(request.type), olds, news, naming_of(request))
        return provider.CheckResponse(inputs=encode(checked))

    @logged_call
    def Diff(self, request: Message, context: Message) -> Message:
        olds, news = decode(request.olds), decode(request.news)
        if request.type == RELEASE:
            return _release_diff(self._releases.diff(olds, news, request.ignoreChanges))
        diff = operations.diff(self._session(context), kind_of(request.type), olds, news, request.ignoreChanges)
        return provider.DiffResponse(
            changes=diff_changes(bool(diff.differences or diff.replaces)),
            detailedDiff=_detailed(diff.differences),
            hasDetailedDiff=True,
            replaces=diff.replaces,
            deleteBeforeReplace=diff.delete_first,
        )

    @logged_call
    def Create(self, request: Message, context: Message) -> Message:
        session = self._session(context)
        if request.type == RELEASE:
            id_, state = self._releases.create(session, decode(request.properties), preview=request.preview)
            return provider.CreateResponse(id=id_, properties=encode(state))
        result = operations.create(session, _write_request(request, request.properties))
        return provider.CreateResponse(id=result.id, properties=encode(result.state))

    @logged_call
    def Update(self, request: Message, context: Message) -> Message:
        session = self._session(context)
        if request.type == RELEASE:
            state = self._releases.update(session, decode(request.news), preview=request.preview)
            return provider.UpdateResponse(properties=encode(state))
        write = _write_request(request, request.news)
        result = operations.update(session, write, decode(request.olds), request.ignoreChanges)
        return provider.UpdateResponse(properties=encode(result.state))

    @logged_call
    def Delete(self, request: Message, context: Message) -> Message:
        state = decode(request.properties)
        if request.type == RELEASE:
            self._releases.delete(self._session(context), state)
            return Empty()
        operations.delete(self._session(context), kind_of(request.type), request.id, state, request.timeout)
        return Empty()

    @logged_call
    def Read(self, request: Message, context: Message) -> Message:
        state, inputs, session = decode(request.properties), decode(request.inputs), self._session(context)
        if request.type == RELEASE:
            release = self._releases.read(session, state, inputs)
            if release is None:
                return provider.ReadResponse()
            return provider.ReadResponse(id=request.id, properties=encode(release), inputs=request.inputs)
        result = operations.read(session, kind_of(request.type), request.id, state, inputs)
        if result is None:
            return provider.ReadResponse()
        return provider.ReadResponse(id=request.id, properties=encode(result[0]), inputs=encode(result[1]))

    @logged_call
    def Invoke(self, request: Message, context: Message) -> Message:
        return provider.InvokeResponse(**{"return": encode(operations.invoke(request.tok, decode(request.args)))})


def _write_request(request: Message, properties: Message) -> operations.WriteRequest:
    kind = kind_of(request.type)
    return operations.WriteRequest(request.urn, kind, decode(properties), request.preview, request.timeout)


def _detailed(changes: Sequence[ObjectPropertyChange]) -> dict[str, Message]:
    """Return the changes of properties as gRPC messages, by path."""
    return {
        item.name: property_diff(
            item.change, replaces=item.replaces, of_inputs=item.change is PropertyChangeKind.DELETE
        )
        for item in changes
    }


def _release_diff(changes: Sequence[ObjectPropertyChange]) -> Message:
    """Return the gRPC answer for a release's changes. Like the real plug-in it also names the changed top-level
    properties, and has nothing but `changes` if there are none.
    """
    if not changes:
        return provider.DiffResponse(changes=diff_changes(False))
    return provider.DiffResponse(
        changes=diff_changes(True),
        diffs=list(dict.fromkeys(str(item.path[0]) for item in changes)),
        detailedDiff=_detailed(changes),
        hasDetailedDiff=True,
        replaces=[item.name for item in changes if item.replaces],
    )
