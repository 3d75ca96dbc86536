"""The part of OCI's REST API that the kit calls: lists of resources, and replacement of nodes while a stack is up; and
deletions behind the engine's back.

API reference of Compute Management: GetClusterNetwork, GetInstancePool, ListInstancePoolInstances,
DetachInstancePoolInstance; of Container Engine: DeleteCluster, DeleteNodePool. Answers come from the plug-in's records;
request signatures aren't verified.
"""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from llmd_oke.catalogue.operations import OciResource, oci_resources

from llmd_rehearsal.oci_plugin.facts import DEFAULT_REGION, resource_of
from llmd_rehearsal.oci_plugin.faults import Faults
from llmd_rehearsal.oci_plugin.nodes import Machines
from llmd_rehearsal.oci_plugin.region import (
    NodesNotJoined,
    Records,
    RegionClock,
    ResourceRecord,
    ServiceError,
    WaitEnded,
    WorkRequestFailed,
    invalid,
    not_found,
)
from llmd_rehearsal.oci_plugin.rules import require_unused
from llmd_rehearsal.plugin_values import JsonObject

VERSION: Final = "20160918"
_LIFECYCLE = "lifecycleState"


class RestApi:
    """Handler of requests to OCI's REST API in the simulated region. Instances that replace detached ones of a pool are
    launched later, in a thread. `remove` removes a resource with all that can't exist without it.
    """

    def __init__(
        self,
        records: Records,
        machines: Machines,
        faults: Faults,
        clock: RegionClock,
        remove: Callable[[ResourceRecord], None],
    ) -> None:
        self._records = records
        self._machines = machines
        self._faults = faults
        self._clock = clock
        self._remove = remove

    def answer(self, method: str, path: str, query: Mapping[str, str], body: JsonObject) -> Any:
        """Return the JSON document that OCI's REST API answers at a path, such as `/20160918/instancePools/ocid1...`;
        lists contain the items that match `query`.

        Raises:
            ServiceError: OCI refuses the request.
        """
        match method, path.strip("/").split("/")[1:]:
            case "GET", ["clusterNetworks", id_]:
                record = self._records.get(id_)
                if record is None or record.resource.name != "ClusterNetwork":
                    raise not_found(id_)
                pools = [_pool(record)]
                return {**record.state, _LIFECYCLE: record.state["state"], "instancePools": pools, "id": record.id}
            case "GET", ["instancePools", id_]:
                return _pool(self._with_pool(id_))
            case "GET", ["instancePools", id_, "instances"]:
                return [_instance(self._with_pool(id_), machine) for machine in self._with_pool(id_).machines]
            case "POST", ["instancePools", id_, "actions", "detachInstance"]:
                return self._detach(self._with_pool(id_), body)
            case "GET", ["nodePools", id_]:
                return _node_pool(self._node_pool(id_))
            case "GET", ["instances", id_]:
                return self._machine(id_)
            case "DELETE", [collection, id_, *node]:
                return (
                    self._delete_node(self._node_pool(id_), node[-1], query) if node else self._delete(collection, id_)
                )
            case "GET", [collection]:
                return self._list(collection, query)
            case _:
                raise not_found(path)

    def _list(self, collection: str, query: Mapping[str, str]) -> Any:
        type_, kind = _kind_of(collection)
        items = [
            {**record.state, "id": record.id, _LIFECYCLE: record.state.get("state")}
            for record in self._records.all_of(resource_of(type_).name)
            if all(record.state.get(name) == value for name, value in query.items())
        ]
        return {kind.items: items} if kind.items else items

    def _delete(self, collection: str, id_: str) -> JsonObject:
        """Delete a resource at once, as somebody does in the console, with its work already done."""
        record = self._records.get(id_)
        if record is None or record.resource.name != resource_of(_kind_of(collection)[0]).name:
            raise not_found(id_)
        require_unused(record, self._records)
        self._remove(record)
        return {}

    def _node_pool(self, id_: str) -> ResourceRecord:
        record = self._records.get(id_)
        if record is None or record.resource.name != "NodePool":
            raise not_found(id_)
        return record

    def _machine(self, id_: str) -> JsonObject:
        """Return the document of an instance that is a node."""
        for record in self._records.with_machines(""):
            for machine in record.machines:
                if machine["id"] == id_:
                    return {"id": id_, _LIFECYCLE: "RUNNING", "imageId": machine.get("imageId")}
        raise not_found(id_)

    def _delete_node(self, record: ResourceRecord, machine_id: str, query: Mapping[str, str]) -> JsonObject:
        if not any(machine["id"] == machine_id for machine in record.machines):
            raise not_found(machine_id)
        if query.get("isDecrementSize", "true") != "false":
            raise invalid("The rehearsal deletes nodes to replace them: isDecrementSize=false")
        self._machines.detach(record, machine_id)
        threading.Thread(target=self._launch, args=(record.id,), daemon=True).start()
        return {}

    def _with_pool(self, id_: str) -> ResourceRecord:
        for record in self._records.all_of("ClusterNetwork"):
            if record.state["instancePools"][0]["id"] == id_:
                return record
        raise not_found(id_)

    def _detach(self, record: ResourceRecord, body: JsonObject) -> JsonObject:
        id_ = body.get("instanceId")
        machine = next((machine for machine in record.machines if machine["id"] == id_), None)
        if machine is None:
            raise not_found(str(id_))
        if body.get("isDecrementSize", True) or not body.get("isAutoTerminate", False):
            raise invalid("The rehearsal detaches to replace: isDecrementSize false, isAutoTerminate true")
        summary = _instance(record, machine)
        self._machines.detach(record, machine["id"])
        threading.Thread(target=self._launch, args=(record.id,), daemon=True).start()
        return {**summary, _LIFECYCLE: "DETACHING"}

    def _launch(self, id_: str) -> None:
        """Launch a resource's missing machines as OCI does, with retries while there is no host capacity."""
        with suppress(ServiceError, WaitEnded):
            while True:
                record = self._records.get(id_)
                if record is None:
                    return
                self._clock.work(record.resource, "update", inf)
                fault = self._faults.take(record.resource.name, [record.display_name], "update")
                try:
                    self._machines.converge(self._records.get(id_) or record, DEFAULT_REGION, fault)
                except NodesNotJoined:
                    return
                except WorkRequestFailed:
                    continue
                return


def _kind_of(collection: str) -> tuple[str, OciResource]:
    """Return type and description of the resources in a collection, such as `clusters`.

    Raises:
        ServiceError: there is no such collection.
    """
    by_path = {kind.path: (type_, kind) for type_, kind in oci_resources().resources.items()}
    if f"/{collection}" not in by_path:
        raise not_found(collection)
    return by_path[f"/{collection}"]


def _node_pool(record: ResourceRecord) -> JsonObject:
    there = {machine["id"] for machine in record.machines}
    nodes = [{**node, _LIFECYCLE: node["state"]} for node in record.state.get("nodes") or () if node["id"] in there]
    return {**record.state, "id": record.id, _LIFECYCLE: record.state.get("state"), "nodes": nodes}


def _pool(record: ResourceRecord) -> JsonObject:
    pool: JsonObject = record.state["instancePools"][0]
    size = int(pool["size"])
    return {**pool, "size": size, _LIFECYCLE: "RUNNING" if len(record.machines) == size else "SCALING"}


def _instance(record: ResourceRecord, machine: JsonObject) -> JsonObject:
    """Return a machine as an `InstanceSummary` of OCI's API."""
    return {
        "id": machine["id"],
        "displayName": machine["name"],
        "state": "Running",
        "compartmentId": record.state["compartmentId"],
        "instanceConfigurationId": machine.get("configuration", ""),
        "availabilityDomain": record.state["placementConfiguration"]["availabilityDomain"],
    }


def serve_rest(api: RestApi, port: int) -> ThreadingHTTPServer:
    """Serve OCI's REST API of the simulated region on a port of 127.0.0.1, in background threads, and return the
    server, whose `shutdown` ends it.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_DELETE(self) -> None:
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
            """Log nothing: the plug-in's log is for the engine's calls."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
