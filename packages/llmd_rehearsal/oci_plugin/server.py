"""gRPC server of the stand-in OCI plug-in."""
# The generated gRPC interface defines the methods' names, arguments and meanings.
# ruff: noqa: N802, ARG002, D102

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from llmd_oke.values import read_yaml

from llmd_rehearsal.kubernetes_plugin.client import Cluster, Unreachable, find_access, load
from llmd_rehearsal.oci_plugin import bridge, functions
from llmd_rehearsal.oci_plugin.cluster_autoscaler import ADD_ON, ApiClusterView, ClusterAutoscalerAddOn
from llmd_rehearsal.oci_plugin.facts import DEFAULT_REGION, resource_of
from llmd_rehearsal.oci_plugin.faults import Faults
from llmd_rehearsal.oci_plugin.local_cluster import (
    ClusterAddOns,
    EtcdStore,
    LocalAddOns,
    LocalNodeControl,
    configurations_of,
    etcd_client,
)
from llmd_rehearsal.oci_plugin.nodes import Machines
from llmd_rehearsal.oci_plugin.operations import Operations, ResourceRequest
from llmd_rehearsal.oci_plugin.region import DEFAULT_TIME_SCALE, Records, RegionClock
from llmd_rehearsal.oci_plugin.rest import RestApi, serve_rest
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
from llmd_rehearsal.plugin_values import InitFailed, JsonObject, OperationRefusal, without_secrets

VERSION: Final = "4.20.0"
"""Version of pulumi-oci that the stand-in OCI plug-in simulates."""
SESSIONS: Final = 64
"""Limit of remembered provider instances of one plug-in process; an engine rarely has more than a few, and each run
creates its own.
"""


@dataclass(frozen=True)
class PluginOptions:
    """Options of the stand-in OCI plug-in.

    `kubeconfig` is the local cluster's kubeconfig file; the local cluster's API server stands for that of every OKE
    cluster. `journal` is the file in which the region's resources are recorded, `faults` the fault file. `nodes` adds
    and removes the local cluster's nodes. `helm` is the path of Helm, which installs add-ons; if empty, add-ons exist
    only at OCI. `etcd` is the base URL of the local cluster's etcd, whose objects are deleted with an OKE cluster.
    `rest_port` is the port of OCI's REST API. `time_scale` is wall seconds for one second that OCI takes, and
    `autoscaler_time_scale` those for one second of the cluster autoscaler's durations.
    """

    kubeconfig: Path | None = None
    journal: Path | None = None
    faults: Path | None = None
    nodes: LocalNodeControl | None = None
    time_scale: float = DEFAULT_TIME_SCALE
    helm: str = ""
    etcd: str = ""
    rest_port: int | None = None
    autoscaler_time_scale: float = 1.0

    def cluster(self) -> Cluster:
        """Return a client of the local cluster's API server.

        Raises:
            Unreachable: the kubeconfig has no server.
        """
        access = find_access(load(str(self.kubeconfig)))
        if access is None:
            raise Unreachable(str(self.kubeconfig), "it names no cluster")
        return Cluster(access)

    def api_server(self) -> str:
        """Return the address of the kubeconfig's API server as host:port; empty without a kubeconfig."""
        if self.kubeconfig is None or not self.kubeconfig.exists():
            return ""
        config: Any = read_yaml(self.kubeconfig)
        server: str = config["clusters"][0]["cluster"]["server"]
        return urlsplit(server).netloc


def start(port: int = 0, options: PluginOptions | None = None) -> PluginServer:
    """Start the gRPC server of the stand-in OCI plug-in on a port of 127.0.0.1 (0: a free port) and return it."""
    servicer = OciServicer(options or PluginOptions())
    return serve(servicer, port, servicer.end)


@dataclass(frozen=True)
class OciSession:
    """Configured instance of the OCI provider: its region, and an event that is set when the engine cancels the
    instance's operations.
    """

    region: str = DEFAULT_REGION
    cancelled: threading.Event = field(default_factory=threading.Event)


class OciServicer(PluginServicer):
    """gRPC methods of the stand-in OCI plug-in, which translate between the engine's messages and operations on
    resources. All other methods are unimplemented.
    """

    package = "oci"
    version = VERSION

    def __init__(self, options: PluginOptions) -> None:
        self._options = options
        self._clock = RegionClock(options.time_scale)
        self._records = Records(options.journal)
        machines = Machines(self._records, options.nodes)
        faults = Faults(options.faults)
        add_ons = LocalAddOns(options.kubeconfig, options.helm) if options.kubeconfig and options.helm else None
        view = ApiClusterView(options.cluster)
        self._autoscaler = ClusterAutoscalerAddOn(self._records, machines, view, options.autoscaler_time_scale)
        controllers = {ADD_ON: self._autoscaler}
        self._operations = Operations(
            self._records,
            machines,
            faults,
            self._clock,
            options.api_server,
            ClusterAddOns(add_ons, self._clock, controllers) if add_ons else None,
            EtcdStore(etcd_client(options.etcd)) if options.etcd else None,
        )
        api = RestApi(self._records, machines, faults, self._clock, self._operations.remove)
        self._rest = None if options.rest_port is None else serve_rest(api, options.rest_port)
        for record in self._records.all_of("Addon"):  # after a restart of the plug-in, the journal has existing add-ons
            if add_ons and record.state.get("addonName") == ADD_ON:
                self._autoscaler.configure(configurations_of(record.state))
        self._lock = threading.Lock()
        self._sessions: dict[str, OciSession] = {}

    @property
    def engine_version(self) -> str:
        """Version of the installed Python library for OCI, which the plug-in reports as its own; the engine warns about
        any other version.
        """
        try:
            return metadata.version("pulumi-oci")
        except metadata.PackageNotFoundError:
            return VERSION

    def end(self) -> None:
        """Cancel all operations in progress, and stop serving OCI's REST API."""
        if self._rest is not None:
            self._rest.shutdown()
            self._rest.server_close()
        self._clock.cancel()
        self._autoscaler.end()
        with self._lock:
            for session in self._sessions.values():
                session.cancelled.set()
        self._records.close()

    def _session(self, context: Message) -> OciSession:
        """Return the provider instance of a gRPC connection; for an unknown connection, the latest instance."""
        with self._lock:
            latest = next(reversed(self._sessions.values()), OciSession())
            return self._sessions.get(context.peer(), latest)

    @logged_call
    def Cancel(self, request: Message, context: Message) -> Message:
        self._session(context).cancelled.set()
        return Empty()

    @logged_call
    def DiffConfig(self, request: Message, context: Message) -> Message:
        olds, news = _plain(request.olds), _plain(request.news)
        changed = sorted(key for key in olds.keys() | news.keys() if olds.get(key) != news.get(key))
        replaces = [key for key in changed if key == "region" and key in olds]
        return provider.DiffResponse(changes=diff_changes(bool(changed)), diffs=changed, replaces=replaces)

    @logged_call
    def Configure(self, request: Message, context: Message) -> Message:
        region = _plain(request.args).get("region") or DEFAULT_REGION
        with self._lock:
            self._sessions[context.peer()] = OciSession(str(region))
            while len(self._sessions) > SESSIONS:
                self._sessions.pop(next(iter(self._sessions)))
        return provider.ConfigureResponse(supportsPreview=True, supports_autonaming_configuration=True)

    @logged_call
    def Check(self, request: Message, context: Message) -> Message:
        olds, news = _plain(request.olds), _plain(request.news)
        checked = bridge.check(resource_of(request.type), olds, news, naming_of(request))
        failures = [provider.CheckFailure(reason=reason) for reason in checked.failures]
        return provider.CheckResponse(inputs=encode(checked.inputs), failures=failures)

    @logged_call
    def Diff(self, request: Message, context: Message) -> Message:
        olds, news, ignored = _plain(request.olds), _plain(request.news), frozenset(request.ignoreChanges)
        diff = bridge.compare(resource_of(request.type), olds, news, ignored)
        return provider.DiffResponse(
            changes=diff_changes(bool(diff.differences)),
            diffs=diff.changed,
            replaces=diff.replaces,
            deleteBeforeReplace=diff.delete_first,
            detailedDiff={item.path: property_diff(item.change, replaces=item.replaces) for item in diff.differences},
            hasDetailedDiff=True,
        )

    @logged_call
    def Create(self, request: Message, context: Message) -> Message:
        with _failures_of("creating", request.urn):
            state = self._operations.create(self._request(request, request.properties, context))
        return provider.CreateResponse(id="" if request.preview else state["id"], properties=encode(state))

    @logged_call
    def Update(self, request: Message, context: Message) -> Message:
        update, before = self._request(request, request.news, context), _plain(request.olds)
        with _failures_of("updating", request.urn):
            try:
                state = self._operations.update(request.id, before, update)
            except OperationRefusal as error:
                raise InitFailed(request.id, before, [str(error)]) from None
        return provider.UpdateResponse(properties=encode(state))

    @logged_call
    def Delete(self, request: Message, context: Message) -> Message:
        self._operations.delete(request.id, self._request(request, request.properties, context))
        return Empty()

    @logged_call
    def Read(self, request: Message, context: Message) -> Message:
        result = self._operations.read(request.id, _plain(request.inputs))
        if result is None:
            return provider.ReadResponse()
        state, inputs = result
        return provider.ReadResponse(id=request.id, properties=encode(state), inputs=encode(inputs))

    @logged_call
    def Invoke(self, request: Message, context: Message) -> Message:
        arguments = {key: value for key, value in _plain(request.args).items() if value is not None}
        call = functions.FunctionCall(arguments, self._session(context).region, self._records, self._options.kubeconfig)
        return provider.InvokeResponse(**{"return": encode(functions.invoke(request.tok, call))})

    def _request(self, request: Message, properties: Message, context: Message) -> ResourceRequest:
        urn: str = request.urn
        session = self._session(context)
        type_ = urn.split("::")[2].rpartition("$")[2]
        return ResourceRequest(
            resource=resource_of(request.type or type_),
            name=urn.rpartition("::")[2],
            region=session.region,
            inputs=_plain(properties),
            preview=getattr(request, "preview", False),
            timeout_s=request.timeout,
            cancelled=session.cancelled,
        )


@contextmanager
def _failures_of(operation: str, urn: str) -> Generator[None]:
    """Add operation and resource to each InitFailed that the block raises, as the Terraform bridge does
    (pulumi-terraform-bridge, pkg/tfbridge/provider.go, `Create` and `Update`).
    """
    try:
        yield
    except InitFailed as error:
        reasons = [f"{operation} {urn}: 1 error occurred:\n\t* {reason}\n\n" for reason in error.reasons]
        raise InitFailed(error.id, error.properties, reasons, error.inputs) from None


def _plain(message: Message) -> JsonObject:
    tree: JsonObject = without_secrets({**decode(message)})
    return tree
