"""Keeps the simulated nodes registered, Ready and their leases renewed."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from ipaddress import IPv4Interface
from typing import Any, cast

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import NodeSpec
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace, Node, NodeStatus
from lightkube.types import PatchType

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.nodes import objects
from llmd_oke.rehearsal.nodes.config import MOST_NODES, NodeConfig, node_address
from llmd_oke.rehearsal.watches import identity

_log = logging.getLogger(__name__)
REQUESTS_AT_ONCE = 16
"""Hundreds of nodes that renew their leases one after the other are late where the API server is busy."""

RENEW_S = 10.0  # kubelet renews at a quarter of the lease's 40 s
_API_RETRY_S = 0.2
_HEARTBEATS_PER_STATUS = 30  # kubelet's nodeStatusReportFrequency is 5 min


class Fleet:
    """The simulated nodes, by name; nodes can be added and removed while it runs."""

    def __init__(self, client: AsyncClient, bridge: IPv4Interface) -> None:
        self._client = client
        self._bridge = bridge
        self._configs: dict[str, NodeConfig] = {}
        self._indexes: dict[str, int] = {}
        self._devices: dict[str, dict[str, str]] = {}
        self._at_once = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._stopped: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._configs

    def runs(self, name: str | None) -> bool:
        """Whether that is one of the nodes, and not stopped."""
        return name in self._configs and name not in self._stopped

    def index(self, name: str) -> int:
        """Give the node's place, from 0, which its addresses derive from."""
        return self._indexes[name]

    def address(self, name: str) -> str:
        """Give the node's internal IP."""
        return node_address(self._bridge, self._indexes[name])

    def config(self, name: str) -> NodeConfig:
        """Give what the node was told to be."""
        return self._configs[name]

    def configs(self) -> list[NodeConfig]:
        """Give what all nodes were told to be."""
        return list(self._configs.values())

    async def show_devices(self, name: str, devices: Mapping[str, str]) -> None:
        """Make these quantities of devices the node's, beside its other resources; a node that is gone is left out."""
        if name not in self._configs:
            return
        self._devices[name] = dict(devices)
        if name in self._stopped:
            return
        quantities = dict(devices)
        await _ignore_missing(self._patch_status(name, {"capacity": quantities, "allocatable": quantities}))

    async def await_api_server(self, timeout_s: float = 120.0) -> None:
        """Wait until the API server answers; KitError when it hasn't after `timeout_s`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                await self._client.get(Namespace, objects.LEASE_NAMESPACE)
            except (ApiError, httpx2.HTTPError, OSError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise KitError(f"the API server didn't answer within {timeout_s:.0f} s: {error}") from error
                await asyncio.sleep(_API_RETRY_S)
            else:
                return

    async def add(self, configs: Iterable[NodeConfig]) -> None:
        """Register nodes, or bring those that exist already into line; KitError when there are too many."""
        new = [config for config in configs if config.name not in self._configs]
        for config in new:
            self._indexes[config.name] = self._free_index()
            self._configs[config.name] = config
        await asyncio.gather(*(self._register(config) for config in new))

    def stop(self, name: str) -> None:
        """Leave a node's lease and status to age, as those of a machine without power; its object stays.

        Raises:
            KitError: there is no such node.
        """
        self._need(name)
        self._stopped.add(name)

    async def start(self, name: str) -> None:
        """Report a stopped node as Ready again; one that runs is left as it is.

        Raises:
            KitError: there is no such node.
        """
        config = self._need(name)
        if name not in self._stopped:
            return
        self._stopped.remove(name)
        now = datetime.now(UTC)
        await self._renew(config, with_status=False)
        await self._patch_status(name, objects.status(config, self.address(name), now, self._devices.get(name)))

    def _need(self, name: str) -> NodeConfig:
        if name not in self._configs:
            raise KitError(f"There is no node {name}.", f"Nodes are: {', '.join(sorted(self._configs))}.")
        return self._configs[name]

    async def remove(self, name: str) -> None:
        """Delete a node's object; its pods are then collected by the controller manager."""
        self._stopped.discard(name)
        self._configs.pop(name, None)
        self._indexes.pop(name, None)
        self._devices.pop(name, None)
        await _ignore_missing(self._client.delete(Node, name))

    async def run(self) -> None:
        """Renew leases and, less often, refresh statuses until cancelled."""
        beats = 0
        while True:
            await asyncio.sleep(RENEW_S)
            beats += 1
            with_status = beats % _HEARTBEATS_PER_STATUS == 0
            running = [config for name, config in self._configs.items() if self.runs(name)]
            await asyncio.gather(*(self._beat(config, with_status) for config in running))

    async def _beat(self, config: NodeConfig, with_status: bool) -> None:
        async with self._at_once:
            try:
                await self._renew(config, with_status=with_status)
            except (ApiError, httpx2.HTTPError) as error:
                _log.warning("node %s: lease not renewed: %s", config.name, error or type(error).__name__)

    def _free_index(self) -> int:
        used = set(self._indexes.values())
        free = next((index for index in range(MOST_NODES) if index not in used), None)
        if free is None:
            raise KitError(f"the rehearsal's pod network has room for {MOST_NODES} nodes")
        return free

    async def _register(self, config: NodeConfig) -> None:
        now = datetime.now(UTC)
        wanted = objects.node(config, self.address(config.name), now, self._devices.get(config.name))
        try:
            node = await self._client.create(cast("Node", Node.from_dict(wanted)))
        except ApiError as error:
            if error.status.code != 409:
                raise
            node = await self._client.patch(
                Node, config.name, {"metadata": wanted["metadata"]}, patch_type=PatchType.MERGE
            )
            await self._patch_status(config.name, wanted["status"])
        await self._clear_not_ready(config, node)
        await self._create_lease(config.name, identity(node).uid, now)

    async def _patch_status(self, name: str, status: dict[str, Any]) -> None:
        await self._client.patch(NodeStatus, name, {"status": status}, patch_type=PatchType.STRATEGIC)

    async def _clear_not_ready(self, config: NodeConfig, node: Node) -> None:
        """Take the taint that admission gives to new nodes at once; the controller manager would, seconds later."""
        spec = node.spec or NodeSpec()
        own = objects.taints(config)
        keys = {taint["key"] for taint in own} | {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
        kept: list[dict[str, Any]] = [taint.to_dict() for taint in spec.taints or [] if taint.key not in keys]
        patch = {"metadata": {"resourceVersion": None}, "spec": {"taints": own + kept}}
        await self._client.patch(Node, config.name, patch, patch_type=PatchType.MERGE)

    async def _create_lease(self, name: str, uid: str, now: datetime) -> None:
        wanted = objects.lease(name, uid, now)
        try:
            await self._client.create(cast("Lease", Lease.from_dict(wanted)))
        except ApiError as error:
            if error.status.code == 409:
                await self._patch_lease(name, wanted)
            elif (
                error.status.code != 404
            ):  # a very young control plane has no kube-node-lease yet: the next renewal makes it
                raise

    async def _patch_lease(self, name: str, patch: dict[str, Any]) -> None:
        await self._client.patch(Lease, name, patch, namespace=objects.LEASE_NAMESPACE, patch_type=PatchType.MERGE)

    async def _renew(self, config: NodeConfig, *, with_status: bool) -> None:
        now = datetime.now(UTC)
        try:
            await self._patch_lease(config.name, {"spec": objects.lease_spec(config.name, now)})
        except ApiError as error:
            if error.status.code != 404:
                raise
            await self._register(config)
        if with_status:
            status = objects.status(config, self.address(config.name), now)
            await self._patch_status(config.name, {"conditions": _without_transition(status["conditions"])})


def _without_transition(conditions: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{key: value for key, value in each.items() if key != "lastTransitionTime"} for each in conditions]


async def _ignore_missing(request: Any) -> None:
    try:
        await request
    except ApiError as error:
        if error.status.code != 404:
            raise
