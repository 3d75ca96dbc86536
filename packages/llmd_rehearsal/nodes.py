"""Simulated nodes: Node objects and leases as a kubelet maintains them, and the HTTP API that adds and removes
nodes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Interface
from typing import Any, Literal, TypeAlias, cast

import httpx2
from aiohttp import web
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import NodeSpec
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace, Node, NodeStatus
from lightkube.types import PatchType
from llmd_base.errors import KitError
from pydantic import BaseModel, ConfigDict, ValidationError

from llmd_rehearsal.agent_config import MAX_NODES, NodeConfig, node_address
from llmd_rehearsal.pods import logs
from llmd_rehearsal.running_time import of_process
from llmd_rehearsal.watches import identity, timestamp

_log = logging.getLogger(__name__)

REQUESTS_AT_ONCE = 16
"""Limit of lease renewals of nodes at the same time. Hundreds of renewals one after the other would be late on a busy
API server.
"""

RENEW_S, _LONGEST_RENEW_S = 10.0, 20.0  # kubelet renews every 10 s, a quarter of the lease's 40 s
_RENEWED_PER_S = 12.8
"""Limit of lease renewals per second: renewals of 256 leases every 10 s took a tenth of a processor here, and as much
in the API server.
"""
_API_LIMIT_S = 120.0
_API_RETRY_S = 0.2
_STANDSTILL_LOOK_S = 1.0
_HEARTBEATS_PER_STATUS = 30  # kubelet's nodeStatusReportFrequency is 5 min
LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40  # kubelet's own default (nodeLeaseDurationSeconds)
SIMULATED_LABEL = "rehearsal.llmd-oke/node"

_PRESSURES = {
    "MemoryPressure": "KubeletHasSufficientMemory",
    "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
}

_KUBELET_VERSION = "v0.0.0-rehearsal"


class NodeFleet:
    """Registry of the simulated nodes by name; nodes can be added and removed while heartbeats run."""

    def __init__(
        self,
        client: AsyncClient,
        pod_network: IPv4Interface,
        stood_still_s: Callable[[], float] = lambda: of_process().stood_still_s,
    ) -> None:
        self._client = client
        self._stood_still_s = stood_still_s
        self._pod_network = pod_network
        self._configs: dict[str, NodeConfig] = {}
        self._indexes: dict[str, int] = {}
        self._devices: dict[str, dict[str, str]] = {}
        self._at_once = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._stopped: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._configs

    def runs(self, name: str | None) -> bool:
        """Tell whether a node with this name exists and isn't stopped."""
        return name in self._configs and name not in self._stopped

    def index(self, name: str) -> int:
        """Return the number of a node (from 0), from which the IP addresses of the node and its pods are derived."""
        return self._indexes[name]

    def address(self, name: str) -> str:
        """Return the node's internal IP address."""
        return node_address(self._pod_network, self._indexes[name])

    def config(self, name: str) -> NodeConfig:
        """Return the node's configuration."""
        return self._configs[name]

    def configs(self) -> list[NodeConfig]:
        """Return the configurations of all nodes."""
        return list(self._configs.values())

    async def show_devices(self, name: str, devices: Mapping[str, str]) -> None:
        """Set the quantities of devices in a node's capacity and allocatable resources; do nothing if the node doesn't
        exist.
        """
        if name not in self._configs:
            return
        self._devices[name] = dict(devices)
        if name in self._stopped:
            return
        quantities = dict(devices)
        await _ignore_missing(self._patch_status(name, {"capacity": quantities, "allocatable": quantities}))

    async def await_api_server(self) -> None:
        """Wait until the local cluster's API server answers.

        Raises:
            KitError: the API server didn't answer within `_API_LIMIT_S` seconds.
        """
        deadline = asyncio.get_running_loop().time() + _API_LIMIT_S
        while True:
            try:
                await self._client.get(Namespace, LEASE_NAMESPACE)
            except (ApiError, httpx2.HTTPError, OSError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise KitError(f"the API server didn't answer within {_API_LIMIT_S:.0f} s: {error}") from error
                await asyncio.sleep(_API_RETRY_S)
            else:
                return

    async def add(self, configs: Iterable[NodeConfig]) -> None:
        """Register the nodes that aren't registered yet; existing Node objects are updated.

        Raises:
            KitError: there would be more than `MAX_NODES` nodes.
        """
        new = [config for config in configs if config.name not in self._configs]
        for config in new:
            used = set(self._indexes.values())
            free = next((index for index in range(MAX_NODES) if index not in used), None)
            if free is None:
                raise KitError(f"the rehearsal's pod network has room for {MAX_NODES} nodes")
            self._indexes[config.name] = free
            self._configs[config.name] = config
        await asyncio.gather(*(self._register(config) for config in new))

    def stop(self, name: str) -> None:
        """Stop the heartbeat of a node, as a loss of power does; the Node object is kept.

        Raises:
            KitError: there is no such node.
        """
        self._config_of(name)
        self._stopped.add(name)

    async def start(self, name: str) -> None:
        """Report a stopped node as Ready again; do nothing if the node isn't stopped.

        Raises:
            KitError: there is no such node.
        """
        config = self._config_of(name)
        if name not in self._stopped:
            return
        self._stopped.remove(name)
        now = datetime.now(UTC)
        await self._renew(config, with_status=False)
        await self._patch_status(name, node_status(config, self.address(name), now, self._devices.get(name)))

    def _config_of(self, name: str) -> NodeConfig:
        if name not in self._configs:
            raise KitError(f"There is no node {name}.", f"Nodes are: {', '.join(sorted(self._configs))}.")
        return self._configs[name]

    async def remove(self, name: str) -> None:
        """Delete a Node object; the controller manager then deletes the node's pods."""
        self._stopped.discard(name)
        self._configs.pop(name, None)
        self._indexes.pop(name, None)
        self._devices.pop(name, None)
        await _ignore_missing(self._client.delete(Node, name))

    async def run(self) -> None:
        """Renew the leases of all nodes and, less often, update their status until cancelled."""
        beats = 0
        while True:
            stood_still = await self._next_beat()
            beats += 1
            with_status = stood_still or beats % _HEARTBEATS_PER_STATUS == 0
            running = [config for name, config in self._configs.items() if self.runs(name)]
            await asyncio.gather(*(self._beat(config, with_status) for config in running))

    async def _next_beat(self) -> bool:
        """Wait until leases are due and return False; return True at once after a standstill of this process, when the
        API server may count nodes as lost.
        """
        loop, before_s = asyncio.get_running_loop(), self._stood_still_s()
        due_s = loop.time() + renew_s(len(self._configs))
        while (left_s := due_s - loop.time()) > 0:
            await asyncio.sleep(min(left_s, _STANDSTILL_LOOK_S))
            if self._stood_still_s() > before_s:
                return True
        return False

    async def _beat(self, config: NodeConfig, with_status: bool) -> None:
        async with self._at_once:
            if not self.runs(config.name):
                return
            try:
                await self._renew(config, with_status=with_status)
            except (ApiError, httpx2.HTTPError) as error:
                _log.warning("node %s: lease not renewed: %s", config.name, error or type(error).__name__)

    async def _register(self, config: NodeConfig) -> None:
        now = datetime.now(UTC)
        manifest = node_object(config, self.address(config.name), now, self._devices.get(config.name))
        try:
            node = await self._client.create(cast("Node", Node.from_dict(manifest)))
        except ApiError as error:
            if error.status.code != 409:
                raise
            node = await self._client.patch(
                Node, config.name, {"metadata": manifest["metadata"]}, patch_type=PatchType.MERGE
            )
            await self._patch_status(config.name, manifest["status"])
        await self._clear_not_ready(config, node)
        await self._create_lease(config.name, identity(node).uid, now)

    async def _patch_status(self, name: str, status: dict[str, Any]) -> None:
        await self._client.patch(NodeStatus, name, {"status": status}, patch_type=PatchType.STRATEGIC)

    async def _clear_not_ready(self, config: NodeConfig, node: Node) -> None:
        """Remove the not-ready taint of a new node immediately; the controller manager would remove it seconds
        later.
        """
        spec = node.spec or NodeSpec()
        node_taints = taints(config)
        keys = {
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
            *(taint["key"] for taint in node_taints),
        }
        other_taints: list[dict[str, Any]] = [taint.to_dict() for taint in spec.taints or [] if taint.key not in keys]
        patch = {"metadata": {"resourceVersion": None}, "spec": {"taints": node_taints + other_taints}}
        await self._client.patch(Node, config.name, patch, patch_type=PatchType.MERGE)

    async def _create_lease(self, name: str, uid: str, now: datetime) -> None:
        manifest = lease(name, uid, now)
        try:
            await self._client.create(cast("Lease", Lease.from_dict(manifest)))
        except ApiError as error:
            if error.status.code == 409:
                await self._patch_lease(name, manifest)
            elif error.status.code != 404:  # kube-node-lease may not exist yet: a renewal creates the lease
                raise

    async def _patch_lease(self, name: str, patch: dict[str, Any]) -> None:
        await self._client.patch(Lease, name, patch, namespace=LEASE_NAMESPACE, patch_type=PatchType.MERGE)

    async def _renew(self, config: NodeConfig, *, with_status: bool) -> None:
        now = datetime.now(UTC)
        try:
            await self._patch_lease(config.name, {"spec": lease_spec(config.name, now)})
        except ApiError as error:
            if error.status.code != 404:
                raise
            if config.name in self:
                await self._register(config)
        if with_status and config.name in self:
            status = node_status(config, self.address(config.name), now)
            for condition in status["conditions"]:
                del condition["lastTransitionTime"]
            await self._patch_status(config.name, {"conditions": status["conditions"]})


def renew_s(nodes: int) -> float:
    """Return the seconds between two renewals of each node's lease, given the number of nodes."""
    return min(max(RENEW_S, nodes / _RENEWED_PER_S), _LONGEST_RENEW_S)


async def _ignore_missing(request: Any) -> None:
    try:
        await request
    except ApiError as error:
        if error.status.code != 404:
            raise


_ANNOTATIONS = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
"""Annotations that every kubelet sets; some operators require a node to have annotations."""


def node_object(
    config: NodeConfig, address: str, now: datetime, devices: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the Node object, with its status, by which a simulated node registers; `devices` are the quantities of
    devices that the node advertises.
    """
    labels = {
        "kubernetes.io/hostname": config.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        SIMULATED_LABEL: "simulated",
        **config.labels,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": config.name, "labels": labels, "annotations": _ANNOTATIONS},
        "spec": {"taints": taints(config), **({"providerID": config.provider_id} if config.provider_id else {})},
        "status": node_status(config, address, now, devices),
    }


def taints(config: NodeConfig) -> list[dict[str, str]]:
    """Return the taints of a simulated node in the format of Kubernetes' API."""
    return [taint.model_dump(exclude_none=True) for taint in config.taints]


def node_status(
    config: NodeConfig, address: str, now: datetime, devices: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the status of a Ready node with the resources of its configuration and the advertised devices, all
    allocatable.
    """
    capacity = {**config.capacity, **(devices or {})}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [
            *(_condition(name, "False", reason, now) for name, reason in _PRESSURES.items()),
            _condition("Ready", "True", "KubeletReady", now),
        ],
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": config.name},
            {"type": "InternalDNS", "address": logs.HOST},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": logs.PORT}},
        "nodeInfo": _node_info(config.name),
    }


def lease(node_name: str, node_uid: str, now: datetime) -> dict[str, Any]:
    """Return a node's Lease; the Node object owns it, so that both are deleted together."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node_name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": lease_spec(node_name, now),
    }


def lease_spec(node_name: str, now: datetime) -> dict[str, Any]:
    """Return the spec of a node's Lease that is renewed now."""
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": node_name, "leaseDurationSeconds": LEASE_DURATION_S, "renewTime": renewed}


def _condition(name: str, value: str, reason: str, now: datetime) -> dict[str, str]:
    moment = timestamp(now)
    return {
        "type": name,
        "status": value,
        "reason": reason,
        "message": "simulated by the rehearsal",
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
    }


def _node_info(name: str) -> dict[str, str]:
    return {
        "architecture": "amd64",
        "operatingSystem": "linux",
        "osImage": "llmd-oke rehearsal",
        "kernelVersion": "simulated",
        "containerRuntimeVersion": "processes://bubblewrap",
        "kubeletVersion": _KUBELET_VERSION,
        "kubeProxyVersion": "",
        "machineID": name,
        "systemUUID": name,
        "bootID": name,
    }


Add: TypeAlias = Callable[[Sequence[NodeConfig]], Awaitable[None]]
Change: TypeAlias = Literal["remove", "stop", "start"]
ChangeNode: TypeAlias = Callable[[str], Awaitable[None]]


class NodesRequest(BaseModel):
    """Body of the request `POST /nodes`, which adds nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: tuple[NodeConfig, ...]


class NodeControl:
    """HTTP API that adds, removes, stops and starts simulated nodes: `POST /nodes`, `GET /nodes`, `DELETE
    /nodes/{name}`, `POST /nodes/{name}/stop`, `POST /nodes/{name}/start`, `GET /healthz`.

    Adding an existing node leaves it unchanged, and removing an unknown node is no error. A stopped node behaves like a
    machine without power until it is started.
    """

    def __init__(self, fleet: NodeFleet, add: Add, changes: Mapping[Change, ChangeNode]) -> None:
        self._fleet = fleet
        self._add_nodes = add
        self._changes = changes

    def application(self) -> web.Application:
        """Return the web application that serves the HTTP API of the nodes."""
        application = web.Application(client_max_size=4 * 2**20)
        application.add_routes([
            web.get("/healthz", self._healthz),
            web.get("/nodes", self._names),
            web.post("/nodes", self._add),
            web.delete("/nodes/{name}", partial(self._apply, "remove")),
            web.post("/nodes/{name}/stop", partial(self._apply, "stop")),
            web.post("/nodes/{name}/start", partial(self._apply, "start")),
        ])  # fmt: skip
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"nodes": len(self._fleet.configs())})

    async def _names(self, _: web.Request) -> web.Response:
        return web.json_response({"nodes": [config.name for config in self._fleet.configs()]})

    async def _add(self, request: web.Request) -> web.Response:
        try:
            body = NodesRequest.model_validate(await request.json())
            await self._add_nodes(body.nodes)
        except (ValidationError, ValueError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        except KitError as error:
            raise web.HTTPConflict(text=error.message) from error
        return web.json_response({"nodes": [node.name for node in body.nodes]}, status=201)

    async def _apply(self, change: Change, request: web.Request) -> web.Response:
        try:
            await self._changes[change](request.match_info["name"])
        except KitError as error:
            raise web.HTTPNotFound(text=str(error)) from error
        return web.Response(status=204)


async def serve_control(control: NodeControl, port: int) -> web.AppRunner:
    """Serve the nodes' HTTP API on a port of 127.0.0.1 and return the runner, whose `cleanup` ends the server."""
    runner = web.AppRunner(control.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner
