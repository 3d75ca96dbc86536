"""The plug-in's gRPC server."""
# The generated interface gives the methods their names, arguments and meaning.
# ruff: noqa: N802, ARG002, D102

import json
from collections.abc import Sequence
from typing import Final

import grpc

from llmd_oke.rehearsal.kubernetes_plugin import inputs, plans, reads, settings, writes
from llmd_oke.rehearsal.kubernetes_plugin.conditions import Limits
from llmd_oke.rehearsal.kubernetes_plugin.differences import Difference
from llmd_oke.rehearsal.kubernetes_plugin.kinds import kind_of
from llmd_oke.rehearsal.kubernetes_plugin.releases import TOKEN as RELEASE
from llmd_oke.rehearsal.kubernetes_plugin.releases import Releases
from llmd_oke.rehearsal.kubernetes_plugin.sessions import Session, Sessions
from llmd_oke.rehearsal.plugin_protocol.changes import Change
from llmd_oke.rehearsal.plugin_protocol.messages import (
    Empty,
    Servicer,
    decode,
    encode,
    plugin,
    provider,
)
from llmd_oke.rehearsal.plugin_protocol.serving import Message, Server, answering, serve

VERSION: Final = "4.30.0"


def start(port: int = 0, limits: Limits | None = None, helm: str = "") -> Server:
    """Serves on a port of 127.0.0.1, by default a free one. `helm` is its path; from PATH if empty."""
    sessions = Sessions(limits or Limits())
    return serve(KubernetesPlugin(sessions, Releases(helm)), port, sessions.cancel_all)


class KubernetesPlugin(Servicer):
    """The methods that the engine calls; each only translates. Those that aren't here are unimplemented."""

    def __init__(self, sessions: Sessions, releases: Releases | None = None) -> None:
        self._sessions = sessions
        self._releases = releases or Releases()

    def _session(self, context: Message) -> Session:
        return self._sessions.of(context.peer())

    def Handshake(self, request: Message, context: Message) -> None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "method Handshake not implemented")

    @answering
    def GetPluginInfo(self, request: Message, context: Message) -> Message:
        return plugin.PluginInfo(version=VERSION)

    @answering
    def Attach(self, request: Message, context: Message) -> Message:
        return Empty()

    @answering
    def Cancel(self, request: Message, context: Message) -> Message:
        self._sessions.cancel(context.peer())
        return Empty()

    @answering
    def GetSchema(self, request: Message, context: Message) -> Message:
        return provider.GetSchemaResponse(schema=json.dumps({"name": "kubernetes", "version": VERSION}))

    @answering
    def CheckConfig(self, request: Message, context: Message) -> Message:
        return provider.CheckResponse(inputs=request.news)

    @answering
    def DiffConfig(self, request: Message, context: Message) -> Message:
        change = settings.compare(decode(request.olds), decode(request.news))
        return provider.DiffResponse(
            changes=_changes(bool(change.changed)), diffs=change.changed, replaces=change.replaces
        )

    @answering
    def Configure(self, request: Message, context: Message) -> Message:
        self._sessions.configure(context.peer(), settings.Settings.parse(decode(request.args)))
        return provider.ConfigureResponse(
            acceptSecrets=True, supportsPreview=True, supports_autonaming_configuration=True
        )

    @answering
    def Check(self, request: Message, context: Message) -> Message:
        naming = _naming(request)
        olds, news = decode(request.olds), decode(request.news)
        if request.type == RELEASE:
            return provider.CheckResponse(inputs=encode(self._releases.check(self._session(context), news)))
        checked = plans.check(self._session(context), kind_of(request.type), olds, news, naming)
        return provider.CheckResponse(inputs=encode(checked))

    @answering
    def Diff(self, request: Message, context: Message) -> Message:
        olds, news = decode(request.olds), decode(request.news)
        if request.type == RELEASE:
            return _release_diff(self._releases.diff(olds, news, request.ignoreChanges))
        diff = plans.diff(self._session(context), kind_of(request.type), olds, news, request.ignoreChanges)
        return provider.DiffResponse(
            changes=_changes(diff.changes),
            detailedDiff={difference.name: _property_diff(difference) for difference in diff.found},
            hasDetailedDiff=True,
            replaces=diff.replaces,
            deleteBeforeReplace=diff.delete_first,
        )

    @answering
    def Create(self, request: Message, context: Message) -> Message:
        if request.type == RELEASE:
            inputs_ = decode(request.properties)
            id_, state = self._releases.create(self._session(context), inputs_, preview=request.preview)
            return provider.CreateResponse(id=id_, properties=encode(state))
        written = writes.create(self._session(context), _order(request, request.properties))
        return provider.CreateResponse(id=written.id, properties=encode(written.state))

    @answering
    def Update(self, request: Message, context: Message) -> Message:
        if request.type == RELEASE:
            state = self._releases.update(self._session(context), decode(request.news), preview=request.preview)
            return provider.UpdateResponse(properties=encode(state))
        order = _order(request, request.news)
        written = writes.update(self._session(context), order, decode(request.olds), request.ignoreChanges)
        return provider.UpdateResponse(properties=encode(written.state))

    @answering
    def Delete(self, request: Message, context: Message) -> Message:
        state = decode(request.properties)
        if request.type == RELEASE:
            self._releases.delete(self._session(context), state)
            return Empty()
        writes.delete(self._session(context), kind_of(request.type), request.id, state, request.timeout)
        return Empty()

    @answering
    def Read(self, request: Message, context: Message) -> Message:
        state, asked = decode(request.properties), decode(request.inputs)
        if request.type == RELEASE:
            now = self._releases.read(self._session(context), state, asked)
            if now is None:
                return provider.ReadResponse()
            return provider.ReadResponse(id=request.id, properties=encode(now), inputs=request.inputs)
        found = reads.read(self._session(context), kind_of(request.type), request.id, state, asked)
        if found is None:
            return provider.ReadResponse()
        return provider.ReadResponse(id=found.id, properties=encode(found.state), inputs=encode(found.inputs))

    @answering
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


def _release_diff(found: Sequence[Difference]) -> Message:
    """The real plug-in also names the properties at the top that change, and says nothing more where none do."""
    if not found:
        return provider.DiffResponse(changes=provider.DiffResponse.DIFF_NONE)
    return provider.DiffResponse(
        changes=provider.DiffResponse.DIFF_SOME,
        diffs=list(dict.fromkeys(str(difference.path[0]) for difference in found)),
        detailedDiff={difference.name: _property_diff(difference) for difference in found},
        hasDetailedDiff=True,
        replaces=[difference.name for difference in found if difference.replaces],
    )


def _property_diff(difference: Difference) -> Message:
    kind = f"{difference.change.name}_REPLACE" if difference.replaces else difference.change.name
    return provider.PropertyDiff(
        kind=provider.PropertyDiff.Kind.Value(kind), inputDiff=difference.change is Change.DELETE
    )
