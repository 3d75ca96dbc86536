"""OCI's own REST API, as far as the kit asks it: lists of what there is, and cluster networks while a stack is up (API
reference of Compute Management: GetClusterNetwork, GetInstancePool, ListInstancePoolInstances,
DetachInstancePoolInstance). The plug-in's resources are what it tells of; nobody looks at signatures.
"""

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from llmd_oke.catalogue.oci_resources import oci_resources
from llmd_oke.rehearsal.oci_plugin.clocks import Clock
from llmd_oke.rehearsal.oci_plugin.errors import (
    NeverJoined,
    ServiceError,
    WaitEnded,
    WorkRequestFailed,
    invalid,
    not_found,
)
from llmd_oke.rehearsal.oci_plugin.faults import Faults
from llmd_oke.rehearsal.oci_plugin.fleets import Fleets
from llmd_oke.rehearsal.oci_plugin.records import Record, Records
from llmd_oke.rehearsal.oci_plugin.region import DEFAULT_REGION
from llmd_oke.rehearsal.oci_plugin.schemas import resource_of
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject

VERSION: Final = "20160918"
_LIFECYCLE = "lifecycleState"


class RestApi:
    """Answers requests. What a cluster network misses after a detachment is launched after a while."""

    def __init__(self, records: Records, fleets: Fleets, faults: Faults, clock: Clock) -> None:
        self._records = records
        self._fleets = fleets
        self._faults = faults
        self._clock = clock

    def answer(self, method: str, path: str, query: Mapping[str, str], body: JsonObject) -> Any:
        """The document at a path, such as `/20160918/instancePools/ocid1...`; lists have what the query is true of.

        Raises:
            ServiceError: OCI refuses.
        """
        match method, path.strip("/").split("/")[1:]:
            case "GET", ["clusterNetworks", id_]:
                return _network(self._of_id(id_))
            case "GET", ["instancePools", id_]:
                return _pool(self._of_pool(id_))
            case "GET", ["instancePools", id_, "instances"]:
                return [_instance(self._of_pool(id_), machine) for machine in self._of_pool(id_).machines]
            case "POST", ["instancePools", id_, "actions", "detachInstance"]:
                return self._detach(self._of_pool(id_), body)
            case "GET", [collection]:
                return self._list(collection, query)
            case _:
                raise not_found(path)

    def _list(self, collection: str, query: Mapping[str, str]) -> Any:
        listed = {kind.path: (type_, kind) for type_, kind in oci_resources().resources.items()}
        if f"/{collection}" not in listed:
            raise not_found(collection)
        type_, kind = listed[f"/{collection}"]
        records = self._records.all_of(resource_of(type_).name)
        found = [
            {**record.state, "id": record.id, _LIFECYCLE: record.state.get("state")}
            for record in records
            if all(record.state.get(name) == value for name, value in query.items())
        ]
        return {kind.items: found} if kind.items else found

    def _of_id(self, id_: str) -> Record:
        record = self._records.get(id_)
        if record is None or record.resource.name != "ClusterNetwork":
            raise not_found(id_)
        return record

    def _of_pool(self, id_: str) -> Record:
        networks = self._records.all_of("ClusterNetwork")
        found = next((each for each in networks if each.state["instancePools"][0]["id"] == id_), None)
        if found is None:
            raise not_found(id_)
        return found

    def _detach(self, record: Record, body: JsonObject) -> JsonObject:
        machine = next((each for each in record.machines if each["id"] == body.get("instanceId")), None)
        if machine is None:
            raise not_found(str(body.get("instanceId")))
        if body.get("isDecrementSize", True) or not body.get("isAutoTerminate", False):
            raise invalid("The rehearsal detaches to replace: isDecrementSize false, isAutoTerminate true")
        told = _instance(record, machine)
        self._fleets.detach(record, machine["id"])
        threading.Thread(target=self._launch, args=(record.id,), daemon=True).start()
        return {**told, _LIFECYCLE: "DETACHING"}

    def _launch(self, id_: str) -> None:
        """As a pool does: again and again while no machine is free."""
        with suppress(ServiceError, WaitEnded):
            while True:
                record = self._of_id(id_)
                self._clock.work(record.resource, "update", inf)
                fault = self._faults.strike(record.resource.name, [record.display_name], "update")
                try:
                    self._fleets.converge(self._of_id(id_), DEFAULT_REGION, fault)
                except NeverJoined:
                    return
                except WorkRequestFailed:
                    continue
                return


def _network(record: Record) -> JsonObject:
    state = {**record.state, _LIFECYCLE: record.state["state"], "instancePools": [_pool(record)]}
    return {**state, "id": record.id}


def _pool(record: Record) -> JsonObject:
    pool: JsonObject = record.state["instancePools"][0]
    size = int(pool["size"])
    settled = len(record.machines) == size
    return {**pool, "size": size, _LIFECYCLE: "RUNNING" if settled else "SCALING"}


def _instance(record: Record, machine: JsonObject) -> JsonObject:
    """An `InstanceSummary`."""
    known = {"id": machine["id"], "displayName": machine["name"], "state": "Running"}
    return {
        **known,
        "compartmentId": record.state["compartmentId"],
        "instanceConfigurationId": machine.get("configuration", ""),
        "availabilityDomain": record.state["placementConfiguration"]["availabilityDomain"],
    }


def serve_rest(api: RestApi, port: int) -> ThreadingHTTPServer:
    """Serves on a port of 127.0.0.1, in threads of its own, until it is shut down."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self._answer(json.loads(self.rfile.read(length) or b"{}"))

        def _answer(self, body: JsonObject) -> None:
            url = urlsplit(self.path)
            try:
                status, document = 200, api.answer(self.command, url.path, dict(parse_qsl(url.query)), body)
            except ServiceError as error:
                status, document = error.status, {"code": error.code, "message": error.message}
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Nothing: the plug-in's log is of the engine's calls."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
