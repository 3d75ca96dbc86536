"""Shows the devices of simulated nodes when their providers are there, and does what those providers would do."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import httpx2
from lightkube import generic_resource
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import PatchType

from llmd_oke.rehearsal.nodes.config import NodeConfig
from llmd_oke.rehearsal.nodes.devices import CustomKind, DeviceRules, Given, NodeFacts, Scene, given, rules
from llmd_oke.rehearsal.nodes.fleet import REQUESTS_AT_ONCE

LOOK_S = 1.0
"""Kinds come and go with their definitions, which a watch can't follow; so the cluster is looked at."""

MOST_SHARE = 0.1
LONGEST_PAUSE_S = 5.0
"""A look reads all pods of the cluster: no more than a share of the time goes into them, if they come often enough."""

NOT_FOUND = 404
CONFLICT = 409

OWNED = {"app.kubernetes.io/managed-by": "llmd-oke-rehearsal"}
_RESOURCE_NAME = "k8s.v1.cni.cncf.io/resourceName"
_log = logging.getLogger(__name__)


class DeviceNodes(Protocol):
    """The nodes of a fleet, as far as devices go."""

    def configs(self) -> Sequence[NodeConfig]:
        """All nodes."""
        ...

    async def show_devices(self, name: str, devices: Mapping[str, str]) -> None:
        """Make these quantities the node's capacity and allocatable."""
        ...


class DeviceProvider:
    """Looks at the cluster again and again as long as there are nodes with devices that somebody has to give."""

    def __init__(self, client: AsyncClient, nodes: DeviceNodes, by: DeviceRules | None = None) -> None:
        self._client = client
        self._nodes = nodes
        self._rules = by or rules()
        self._kinds = {name: _resource(name, kind) for name, kind in self._rules.kinds.items()}
        self._shown: dict[str, tuple[NodeConfig, Given]] = {}
        self._at_once = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def run(self) -> None:
        """Look until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                await self.look()
            except (ApiError, httpx2.HTTPError) as error:
                _log.warning("devices not looked at: %s", error or type(error).__name__)
            await asyncio.sleep(min(max(LOOK_S, (clock() - began_s) / MOST_SHARE), LONGEST_PAUSE_S))

    async def look(self) -> None:
        """Look once: bring NetworkAttachmentDefinitions into line, then each node whose devices or labels changed."""
        nodes = [config for config in self._nodes.configs() if config.devices]
        there = {config.name: config for config in nodes}  # another node may have come under the same name
        self._shown = {name: shown for name, shown in self._shown.items() if there.get(name) is shown[0]}
        if not nodes:
            return
        scene = await self._scene()
        await self._attach(scene)
        changed: list[Awaitable[None]] = []
        for config in nodes:
            now = given(_facts(config), scene, self._rules)
            _, before = self._shown.get(config.name, (config, None))
            if now != before:
                changed.append(self._show(config, now, before))
        await asyncio.gather(*changed)

    async def _show(self, config: NodeConfig, now: Given, before: Given | None) -> None:
        name = config.name
        gone = dict.fromkeys(before.labels.keys() - now.labels.keys()) if before else {}
        async with self._at_once:
            if now.labels or gone:
                labels = {"metadata": {"labels": {**now.labels, **gone}}}
                await self._client.patch(Node, name, labels, patch_type=PatchType.MERGE)
            await self._nodes.show_devices(name, now.devices)
        self._shown[name] = (config, now)
        _log.info("node %s shows %s", name, dict(now.devices))

    async def _scene(self) -> Scene:
        objects = {name: await self._custom(resource) for name, resource in self._kinds.items()}
        return Scene(
            pods=await self._list(Pod),
            deployments=await self._list(Deployment),
            objects=objects,
        )

    async def _list(self, kind: Any) -> list[dict[str, Any]]:
        return [each.to_dict() async for each in self._client.list(kind, namespace="*")]

    async def _custom(self, kind: Any) -> list[dict[str, Any]]:
        """The objects of a kind; none where it has no definition."""
        listing = self._client.list(kind, namespace="*") if _is_namespaced(kind) else self._client.list(kind)
        try:
            return [each.to_dict() async for each in listing]
        except (ApiError, httpx2.HTTPStatusError) as error:
            if _code(error) == NOT_FOUND:
                return []
            raise

    async def _attach(self, scene: Scene) -> None:
        """As the SR-IOV operator does: a NetworkAttachmentDefinition for each SriovNetwork, where that wants it."""
        wanted = {_name_of(each): each for each in map(_attachment, scene.objects.get("SriovNetwork", ()))}
        there = {_name_of(each): each for each in scene.objects.get("NetworkAttachmentDefinition", ())}
        kind = self._kinds["NetworkAttachmentDefinition"]
        for name in wanted.keys() - there.keys():
            await self._quietly(self._client.create(kind.from_dict(wanted[name])), {NOT_FOUND, CONFLICT})
        for namespace, name in self._stale(there, wanted):
            await self._quietly(self._client.delete(kind, name, namespace=namespace), {NOT_FOUND})

    @staticmethod
    def _stale(
        there: Mapping[tuple[str, str], Mapping[str, Any]], wanted: Mapping[tuple[str, str], Any]
    ) -> Iterable[tuple[str, str]]:
        for name in there.keys() - wanted.keys():
            if OWNED.items() <= (there[name]["metadata"].get("labels") or {}).items():
                yield name

    @staticmethod
    async def _quietly(request: Any, expected: set[int]) -> None:
        try:
            await request
        except (ApiError, httpx2.HTTPStatusError) as error:
            if _code(error) not in expected:
                raise


def _code(error: ApiError | httpx2.HTTPStatusError) -> int | None:
    """The status code; where a whole API group isn't served, the answer is no object of Kubernetes'."""
    return error.status.code if isinstance(error, ApiError) else error.response.status_code


def _facts(config: NodeConfig) -> NodeFacts:
    taints = [taint.model_dump(exclude_none=True) for taint in config.taints]
    return NodeFacts(config.name, config.labels, taints, config.devices)


def _attachment(network: Mapping[str, Any]) -> dict[str, Any]:
    metadata, spec = network["metadata"], network["spec"]
    config = {"cniVersion": "1.0.0", "name": metadata["name"], "type": "sriov"}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "name": metadata["name"],
            "namespace": spec.get("networkNamespace") or metadata["namespace"],
            "labels": OWNED,
            "annotations": {_RESOURCE_NAME: f"nvidia.com/{spec['resourceName']}"},
        },
        "spec": {"config": json.dumps(config)},
    }


def _name_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _resource(name: str, kind: CustomKind) -> Any:
    generic: Any = generic_resource
    create = generic.create_namespaced_resource if kind.namespaced else generic.create_global_resource
    return create(kind.group, kind.version, name, kind.plural)


def _is_namespaced(kind: Any) -> bool:
    return issubclass(kind, generic_resource.GenericNamespacedResource)
