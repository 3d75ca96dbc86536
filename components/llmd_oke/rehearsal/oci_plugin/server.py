"""The plug-in's gRPC server."""
# The generated interface gives the methods their names, arguments and meaning.
# ruff: noqa: N802, ARG002, D102

import json
import threading
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import yaml

from llmd_oke.rehearsal.add_ons import AddOns
from llmd_oke.rehearsal.oci_plugin import differences, functions, inputs
from llmd_oke.rehearsal.oci_plugin.add_on_control import AddOnControl, ClusterAddOns, NoAddOns
from llmd_oke.rehearsal.oci_plugin.clocks import DEFAULT_TIME_SCALE, Clock
from llmd_oke.rehearsal.oci_plugin.cluster_store import ClusterStore, EtcdStore, NoStore, etcd_client
from llmd_oke.rehearsal.oci_plugin.faults import Faults
from llmd_oke.rehearsal.oci_plugin.fleets import Fleets
from llmd_oke.rehearsal.oci_plugin.node_control import NoCluster, NodeControl
from llmd_oke.rehearsal.oci_plugin.operations import Operations, Order
from llmd_oke.rehearsal.oci_plugin.records import Records
from llmd_oke.rehearsal.oci_plugin.region import DEFAULT_REGION
from llmd_oke.rehearsal.oci_plugin.rest import RestApi, serve_rest
from llmd_oke.rehearsal.oci_plugin.schemas import resource_of
from llmd_oke.rehearsal.plugin_protocol.messages import Empty, Servicer, decode, encode, plugin, provider
from llmd_oke.rehearsal.plugin_protocol.serving import Message, Server, answering, serve
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, without_secrets

VERSION: Final = "4.20.0"
"""What it answers as; the engine is told the version of the library that a program uses, or else it warns."""


REMEMBERED: Final = 64
"""How many instances are kept; an engine seldom has more than a few, and each run has its own."""


@dataclass(frozen=True)
class Setting:
    """Where the plug-in stands. `kubeconfig` is what clusters lead to, `journal` keeps what there is.

    `helm` is the path of what add-ons are installed with; without it they are known to OCI only. `etcd` is the address
    of what holds the cluster's objects, which go with it. On `rest_port` OCI's own API answers too.
    """

    kubeconfig: Path | None = None
    journal: Path | None = None
    faults: Path | None = None
    nodes: NodeControl | None = None
    time_scale: float = DEFAULT_TIME_SCALE
    helm: str = ""
    etcd: str = ""
    rest_port: int | None = None

    def add_ons(self, clock: Clock) -> AddOnControl:
        """What brings add-ons into the cluster, if there is one."""
        return ClusterAddOns(AddOns(self.kubeconfig, self.helm), clock) if self.kubeconfig and self.helm else NoAddOns()

    def store(self) -> ClusterStore:
        """What holds the cluster's objects, if there is one."""
        return EtcdStore(etcd_client(self.etcd)) if self.etcd else NoStore()

    def api_server(self) -> str:
        """The API server of the kubeconfig, as host:port."""
        if self.kubeconfig is None or not self.kubeconfig.exists():
            return ""
        config: Any = yaml.safe_load(self.kubeconfig.read_text())
        server: str = config["clusters"][0]["cluster"]["server"]
        return urlsplit(server).netloc


def start(port: int = 0, setting: Setting | None = None) -> Server:
    """Serves on a port of 127.0.0.1, by default a free one."""
    servicer = OciPlugin(setting or Setting())
    return serve(servicer, port, servicer.end)


@dataclass(frozen=True)
class Session:
    """One provider instance: its region, and whether the engine is done with it."""

    region: str = DEFAULT_REGION
    cancelled: threading.Event = field(default_factory=threading.Event)


class OciPlugin(Servicer):
    """The methods that the engine calls; each only translates. Those that aren't here are unimplemented."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._clock = Clock(setting.time_scale)
        self._records = Records(setting.journal)
        fleets = Fleets(self._records, setting.nodes or NoCluster())
        faults = Faults(setting.faults)
        api = RestApi(self._records, fleets, faults, self._clock)
        self._rest = None if setting.rest_port is None else serve_rest(api, setting.rest_port)
        self._operations = Operations(
            self._records,
            fleets,
            faults,
            self._clock,
            setting.api_server,
            setting.add_ons(self._clock),
            setting.store(),
        )
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def end(self) -> None:
        """Ends what is under way."""
        if self._rest is not None:
            self._rest.shutdown()
            self._rest.server_close()
        self._clock.cancel()
        with self._lock:
            for session in self._sessions.values():
                session.cancelled.set()
        self._records.close()

    def _session(self, context: Message) -> Session:
        """The provider instance behind a connection; the latest for a connection made anew."""
        with self._lock:
            latest = next(reversed(self._sessions.values()), Session())
            return self._sessions.get(context.peer(), latest)

    def Handshake(self, request: Message, context: Message) -> None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "method Handshake not implemented")

    @answering
    def GetPluginInfo(self, request: Message, context: Message) -> Message:
        return plugin.PluginInfo(version=_library_version())

    @answering
    def Attach(self, request: Message, context: Message) -> Message:
        return Empty()

    @answering
    def Cancel(self, request: Message, context: Message) -> Message:
        self._session(context).cancelled.set()
        return Empty()

    @answering
    def GetSchema(self, request: Message, context: Message) -> Message:
        return provider.GetSchemaResponse(schema=json.dumps({"name": "oci", "version": VERSION}))

    @answering
    def CheckConfig(self, request: Message, context: Message) -> Message:
        return provider.CheckResponse(inputs=request.news)

    @answering
    def DiffConfig(self, request: Message, context: Message) -> Message:
        olds, news = _plain(request.olds), _plain(request.news)
        changed = sorted(key for key in olds.keys() | news.keys() if olds.get(key) != news.get(key))
        replaces = [key for key in changed if key == "region" and key in olds]
        return provider.DiffResponse(changes=_changes(bool(changed)), diffs=changed, replaces=replaces)

    @answering
    def Configure(self, request: Message, context: Message) -> Message:
        region = _plain(request.args).get("region") or DEFAULT_REGION
        with self._lock:
            self._sessions[context.peer()] = Session(str(region))
            while len(self._sessions) > REMEMBERED:
                self._sessions.pop(next(iter(self._sessions)))
        return provider.ConfigureResponse(supportsPreview=True, supports_autonaming_configuration=True)

    @answering
    def Check(self, request: Message, context: Message) -> Message:
        checked = inputs.check(resource_of(request.type), _plain(request.olds), _plain(request.news), _naming(request))
        failures = [provider.CheckFailure(reason=reason) for reason in checked.failures]
        return provider.CheckResponse(inputs=encode(checked.inputs), failures=failures)

    @answering
    def Diff(self, request: Message, context: Message) -> Message:
        ignored = frozenset(request.ignoreChanges)
        news = _plain(request.news)
        found = differences.compare(resource_of(request.type), _plain(request.olds), news, ignored)
        return provider.DiffResponse(
            changes=_changes(bool(found.found)),
            diffs=found.changed,
            replaces=found.replaces,
            deleteBeforeReplace=found.delete_first,
            detailedDiff={each.path: _property_diff(each) for each in found.found},
            hasDetailedDiff=True,
        )

    @answering
    def Create(self, request: Message, context: Message) -> Message:
        state = self._operations.create(self._order(request, request.properties, context))
        return provider.CreateResponse(id="" if request.preview else state["id"], properties=encode(state))

    @answering
    def Update(self, request: Message, context: Message) -> Message:
        order = self._order(request, request.news, context)
        return provider.UpdateResponse(
            properties=encode(self._operations.update(request.id, _plain(request.olds), order))
        )

    @answering
    def Delete(self, request: Message, context: Message) -> Message:
        self._operations.delete(request.id, self._order(request, request.properties, context))
        return Empty()

    @answering
    def Read(self, request: Message, context: Message) -> Message:
        found = self._operations.read(request.id, _plain(request.inputs))
        if found is None:
            return provider.ReadResponse()
        state, given = found
        return provider.ReadResponse(id=request.id, properties=encode(state), inputs=encode(given))

    @answering
    def Invoke(self, request: Message, context: Message) -> Message:
        arguments = {key: value for key, value in _plain(request.args).items() if value is not None}
        question = functions.Question(arguments, self._session(context).region, self._records, self._setting.kubeconfig)
        return provider.InvokeResponse(**{"return": encode(functions.invoke(request.tok, question))})

    def _order(self, request: Message, properties: Message, context: Message) -> Order:
        urn: str = request.urn
        session = self._session(context)
        type_ = urn.split("::")[2].rpartition("$")[2]
        return Order(
            resource=resource_of(request.type or type_),
            name=urn.rpartition("::")[2],
            region=session.region,
            inputs=_plain(properties),
            preview=getattr(request, "preview", False),
            timeout_s=request.timeout,
            cancelled=session.cancelled,
        )


def _library_version() -> str:
    try:
        return metadata.version("pulumi-oci")
    except metadata.PackageNotFoundError:
        return VERSION


def _plain(message: Message) -> JsonObject:
    tree: JsonObject = without_secrets({**decode(message)})
    return tree


def _naming(request: Message) -> inputs.Naming:
    allowed = request.autonaming.mode != provider.CheckRequest.AutonamingOptions.DISABLE
    return inputs.Naming(request.name, request.randomSeed, request.autonaming.proposed_name, allowed)


def _changes(some: bool) -> Message:
    return provider.DiffResponse.DIFF_SOME if some else provider.DiffResponse.DIFF_NONE


def _property_diff(difference: differences.Difference) -> Message:
    kind = f"{difference.change.name}_REPLACE" if difference.replaces else difference.change.name
    return provider.PropertyDiff(kind=provider.PropertyDiff.Kind.Value(kind))
