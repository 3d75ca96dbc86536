"""Device plug-ins of simulated nodes: rules from `values/rehearsal/devices.yaml` decide which devices a node
advertises, by the objects in the cluster.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Protocol, TypeAlias, cast

import httpx2
from lightkube import generic_resource
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Node, Pod
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.values import Entry, entry_reader
from pydantic import Field

from llmd_rehearsal.agent_config import NodeConfig
from llmd_rehearsal.nodes import REQUESTS_AT_ONCE
from llmd_rehearsal.watches import status_code

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Shortest pause in seconds between two readings of the cluster's objects. The objects are polled, because a watch
fails while the definition of a kind is missing.
"""

MAX_SHARE = 0.1

LONGEST_PAUSE_S = 5.0
"""Longest pause in seconds between two readings of the cluster. A reading compares all nodes; the pause is long enough
that readings take at most `MAX_SHARE` of the time (0.1 is 10 %), unless that exceeds this limit.
"""

NOT_FOUND = 404
CONFLICT = 409
OWNED = {"app.kubernetes.io/managed-by": "llmd-oke-rehearsal"}
_RESOURCE_NAME = "k8s.v1.cni.cncf.io/resourceName"
Obj: TypeAlias = Mapping[str, Any]


class CustomKind(Entry):
    """Namespaced kind of custom resources whose objects the rules for devices refer to."""

    group: str
    version: str
    plural: str


class ObjectNeed(Entry):
    """Requirement for advertising a device: an object of `kind` whose fields match the node and the device.

    `equals` maps dotted paths to required values. The other paths are sequences of keys: to a node selector that must
    match the node's labels, to tolerations that must tolerate the node's taints, and to a name that, after
    `device_prefix`, must be the device's name.
    """

    kind: str
    equals: dict[str, Any] = Field(default_factory=dict[str, Any])
    selects_node_by: tuple[str, ...] = ()
    tolerates_by: tuple[str, ...] = ()
    names_device_by: tuple[str, ...] = ()
    device_prefix: str = ""


class Need(Entry):
    """Requirement for advertising a device on a node; exactly one field is set: labels of a Ready pod on the node,
    labels of an available Deployment, or an object.
    """

    pod_on_node: dict[str, str] | None = None
    deployment: dict[str, str] | None = None
    object: ObjectNeed | None = None


class Provider(Entry):
    """Alternative origin of a device, such as an operator: the device is advertised once all its requirements are
    met.
    """

    name: str
    needs: tuple[Need, ...]


class DeviceRule(Entry):
    """Providers that can give a node the devices whose names match the glob pattern `device`."""

    device: str
    providers: tuple[Provider, ...]


class PciFunctions(Entry):
    """Identifiers of GPUs' PCI functions as in the kernel's `/sys`; `devices` maps GPU products to PCI device IDs."""

    device_class: str
    vendor: str
    devices: dict[str, str]

    def files(self, product: str) -> dict[str, str]:
        """Return the contents of the files in `/sys` for the PCI function of a GPU product, by file name."""
        device = self.devices.get(product, "0x0000")
        subsystem = {"subsystem_vendor": self.vendor, "subsystem_device": device}
        return {"class": self.device_class, "vendor": self.vendor, "device": device, **subsystem}


class DeviceRules(Entry):
    """Content of `values/rehearsal/devices.yaml`: rules for the devices that simulated nodes advertise."""

    gpu_functions: PciFunctions
    kinds: dict[str, CustomKind]
    devices: tuple[DeviceRule, ...]

    def needs(self) -> Iterator[Need]:
        """Yield the requirements of all providers of all devices."""
        for device in self.devices:
            for provider in device.providers:
                yield from provider.needs


@dataclass(frozen=True)
class NodeFacts:
    """Properties of a node by which the rules for devices decide: labels, taints as in Kubernetes' API, and the
    quantities of the devices that the node's shape has.
    """

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Obj]
    devices: Mapping[str, str]


@dataclass(frozen=True)
class ClusterObjects:
    """Objects of the cluster by which the rules for devices decide: Pods, Deployments and custom resources; `objects`
    has the custom resources by kind.
    """

    pods: Sequence[Obj] = ()
    deployments: Sequence[Obj] = ()
    objects: Mapping[str, Sequence[Obj]] = field(default_factory=dict[str, Sequence[Obj]])

    @cached_property
    def ready_pods(self) -> Mapping[str, Sequence[Obj]]:
        """Ready pods, by the name of their node."""
        pods: dict[str, list[Obj]] = {}
        for pod in self.pods:
            if _has_condition(pod, "Ready"):
                pods.setdefault(str(_at(pod, ("spec", "nodeName"))), []).append(pod)
        return pods


device_rules = entry_reader("rehearsal", "devices", DeviceRules)
"""Return the rules of `values/rehearsal/devices.yaml`, which decide which devices nodes advertise."""


def node_devices(node: NodeFacts, objects: ClusterObjects, rules: DeviceRules) -> dict[str, str]:
    """Return the quantity of each device that a node advertises now; 0 for devices that no provider gives yet."""
    shown = {
        device
        for device in node.devices
        for rule in rules.devices
        if fnmatchcase(device, rule.device)
        if any(all(_is_met(need, device, node, objects) for need in item.needs) for item in rule.providers)
    }
    return {device: quantity if device in shown else "0" for device, quantity in node.devices.items()}


def _is_met(need: Need, device: str, node: NodeFacts, objects: ClusterObjects) -> bool:
    if need.pod_on_node is not None:
        return any(_has_labels(pod, need.pod_on_node) for pod in objects.ready_pods.get(node.name, ()))
    if need.deployment is not None:
        available = (deployment for deployment in objects.deployments if _has_condition(deployment, "Available"))
        return any(_has_labels(deployment, need.deployment) for deployment in available)
    rule = need.object
    return rule is not None and any(_fits(obj, rule, device, node) for obj in objects.objects.get(rule.kind, ()))


def _fits(obj: Obj, need: ObjectNeed, device: str, node: NodeFacts) -> bool:
    equal = all(_at(obj, path.split(".")) == value for path, value in need.equals.items())
    selector: Any = _at(obj, need.selects_node_by) if need.selects_node_by else {}
    return (
        equal
        and isinstance(selector, Mapping)
        and cast("Obj", selector).items() <= node.labels.items()
        and (not need.tolerates_by or tolerates(_at(obj, need.tolerates_by) or (), node.taints))
        and (not need.names_device_by or f"{need.device_prefix}{_at(obj, need.names_device_by)}" == device)
    )


def tolerates(tolerations: Sequence[Obj], taints: Sequence[Obj]) -> bool:
    """Tell whether a pod with these tolerations may be scheduled to a node with these taints."""
    hard = [taint for taint in taints if taint["effect"] != "PreferNoSchedule"]
    return all(any(_covers(toleration, taint) for toleration in tolerations) for taint in hard)


def _covers(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in {None, "", taint["key"]}
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def _has_condition(obj: Obj, type_: str) -> bool:
    conditions = _at(obj, ("status", "conditions")) or ()
    return any(condition["type"] == type_ and condition["status"] == "True" for condition in conditions)


def _has_labels(obj: Obj, labels: Mapping[str, str]) -> bool:
    metadata_labels: Any = _at(obj, ("metadata", "labels")) or {}
    return labels.items() <= metadata_labels.items()


def _at(obj: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(obj, Mapping):
            return None
        obj = obj.get(key)  # pyright: ignore[reportUnknownVariableType]
    return obj  # pyright: ignore[reportUnknownVariableType]


class DeviceNodes(Protocol):
    """Interface to the simulated nodes that `DeviceProvider` needs."""

    def configs(self) -> Sequence[NodeConfig]:
        """Return the configurations of all nodes."""
        ...

    async def show_devices(self, name: str, devices: Mapping[str, str]) -> None:
        """Set the quantities of devices in the capacity and allocatable resources of a simulated node."""
        ...


class DeviceProvider:
    """Device plug-ins of all simulated nodes: polls the cluster and updates the devices that each node advertises.

    `pods` and `node_objects` are all pods and Node objects as the API server has them; Node objects have labels that
    operators added.
    """

    def __init__(
        self,
        client: AsyncClient,
        nodes: DeviceNodes,
        pods: Iterable[Pod],
        node_objects: Iterable[Node] = (),
        rules: DeviceRules | None = None,
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._pods = pods
        self._node_objects = node_objects
        self._rules = rules or device_rules()
        generic: Any = generic_resource
        self._kinds: dict[str, Any] = {}
        for name, kind in self._rules.kinds.items():
            self._kinds[name] = generic.create_namespaced_resource(kind.group, kind.version, name, kind.plural)
        self._shown: dict[str, tuple[NodeConfig, dict[str, str]]] = {}
        self._at_once = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def run(self) -> None:
        """Update NetworkAttachmentDefinitions and the nodes' devices repeatedly until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            started_s = clock()
            try:
                await self.look()
            except (ApiError, httpx2.HTTPError) as error:
                _log.warning("devices not looked at: %s", error or type(error).__name__)
            await asyncio.sleep(min(max(LOOK_S, (clock() - started_s) / MAX_SHARE), LONGEST_PAUSE_S))

    async def look(self) -> None:
        """Read the cluster once: create or delete NetworkAttachmentDefinitions, then update each node whose devices
        changed.
        """
        nodes = [config for config in self._nodes.configs() if config.devices]
        current = {config.name: config for config in nodes}  # a node may have been replaced by one with the same name
        self._shown = {name: shown for name, shown in self._shown.items() if current.get(name) is shown[0]}
        if not nodes:
            return
        objects = await self._cluster_objects()
        labels = {metadata(node).name: texts(metadata(node), "labels") for node in self._node_objects}
        await self._attach(objects)
        changed: list[Awaitable[None]] = []
        for config in nodes:
            taints = [taint.model_dump(exclude_none=True) for taint in config.taints]
            node = NodeFacts(config.name, labels.get(config.name, config.labels), taints, config.devices)
            devices = node_devices(node, objects, self._rules)
            _, before = self._shown.get(config.name, (config, None))
            if devices != before:
                changed.append(self._show(config, devices))
        await asyncio.gather(*changed)

    async def _show(self, config: NodeConfig, devices: dict[str, str]) -> None:
        async with self._at_once:
            await self._nodes.show_devices(config.name, devices)
        self._shown[config.name] = (config, devices)
        _log.info("node %s shows %s", config.name, devices)

    async def _cluster_objects(self) -> ClusterObjects:
        """Return the pods, Deployments and custom resources that the rules refer to, a small part of a large
        cluster.
        """
        needs = list(self._rules.needs())
        on_node = [need.pod_on_node for need in needs if need.pod_on_node is not None]
        need_labels = [need.deployment for need in needs if need.deployment is not None]
        pods: list[Any] = [
            pod.to_dict()
            for pod in self._pods
            if any(labels.items() <= texts(metadata(pod), "labels").items() for labels in on_node)
        ]
        deployments: list[Any] = [
            item.to_dict()
            for labels in need_labels
            async for item in self._client.list(Deployment, namespace="*", labels={**labels})
        ]
        custom: dict[str, list[dict[str, Any]]] = {}
        for name, kind in self._kinds.items():
            try:
                custom[name] = [item.to_dict() async for item in self._client.list(kind, namespace="*")]
            except httpx2.HTTPStatusError as error:
                if status_code(error) != NOT_FOUND:
                    raise
                custom[name] = []  # the resource's definition doesn't exist
        return ClusterObjects(pods=pods, deployments=deployments, objects=custom)

    async def _attach(self, objects: ClusterObjects) -> None:
        """Create and delete NetworkAttachmentDefinitions as the SR-IOV operator does: one for each SriovNetwork."""
        attachments = map(_attachment, objects.objects.get("SriovNetwork", ()))
        desired = {_name_of(manifest): manifest for manifest in attachments}
        existing = {_name_of(manifest): manifest for manifest in objects.objects.get("NetworkAttachmentDefinition", ())}
        kind = self._kinds["NetworkAttachmentDefinition"]
        for name in desired.keys() - existing.keys():
            await self._quietly(self._client.create(kind.from_dict(desired[name])), {NOT_FOUND, CONFLICT})
        for namespace, name in existing.keys() - desired.keys():
            if OWNED.items() <= (existing[namespace, name]["metadata"].get("labels") or {}).items():
                await self._quietly(self._client.delete(kind, name, namespace=namespace), {NOT_FOUND})

    @staticmethod
    async def _quietly(request: Any, expected: set[int]) -> None:
        try:
            await request
        except httpx2.HTTPStatusError as error:
            if status_code(error) not in expected:
                raise


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
