"""Which devices and labels a simulated node has, by what is in the cluster. Pure; the rules are data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Any, TypeAlias

from pydantic import Field

from llmd_oke.catalogue.files import Entry, required_entry

Obj: TypeAlias = Mapping[str, Any]


class CustomKind(Entry):
    """A custom resource that rules look at."""

    group: str
    version: str
    plural: str
    namespaced: bool = True


class ObjectNeed(Entry):
    """An object that must exist, and how it must fit the node and the device. Paths are keys from the outside in."""

    kind: str
    name: str = ""
    equals: dict[str, Any] = Field(default_factory=dict[str, Any])
    selects_node_by: tuple[str, ...] = ()
    tolerates_by: tuple[str, ...] = ()
    names_device_by: tuple[str, ...] = ()
    device_prefix: str = ""


class Need(Entry):
    """One thing that must be there: a Ready pod on the node, an available Deployment, or an object."""

    pod_on_node: dict[str, str] | None = None
    deployment: dict[str, str] | None = None
    object: ObjectNeed | None = None


class Provider(Entry):
    """Something that gives a device as soon as all its needs are met."""

    name: str
    needs: tuple[Need, ...]


class DeviceRule(Entry):
    """Who gives the devices that match a pattern."""

    device: str
    providers: tuple[Provider, ...]


class LabelRule(Entry):
    """Labels that nodes with a device get."""

    labels: dict[str, str]
    device: str
    needs: tuple[Need, ...]


class DeviceRules(Entry):
    """The whole of `values/rehearsal/devices.yaml`."""

    kinds: dict[str, CustomKind]
    labels: tuple[LabelRule, ...]
    devices: tuple[DeviceRule, ...]


@dataclass(frozen=True)
class NodeFacts:
    """A node: its labels, its taints in Kubernetes' words, and the devices that are built into it, by quantity."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Obj]
    devices: Mapping[str, str]


@dataclass(frozen=True)
class Scene:
    """What is in the cluster. `objects` are custom resources by kind."""

    pods: Sequence[Obj] = ()
    deployments: Sequence[Obj] = ()
    objects: Mapping[str, Sequence[Obj]] = field(default_factory=dict[str, Sequence[Obj]])

    @cached_property
    def ready_pods(self) -> Mapping[str, Sequence[Obj]]:
        """Pods that are ready, by their node."""
        pods: dict[str, list[Obj]] = {}
        for pod in self.pods:
            if _has_condition(pod, "Ready"):
                pods.setdefault(str(_at(pod, ("spec", "nodeName"))), []).append(pod)
        return pods


@dataclass(frozen=True)
class Given:
    """What a node shows: quantities of all its devices, 0 for those that nothing gives yet, and further labels."""

    devices: Mapping[str, str]
    labels: Mapping[str, str]


@cache
def rules() -> DeviceRules:
    """The rules of all rehearsals."""
    return required_entry("rehearsal", "devices", DeviceRules)


def given(node: NodeFacts, scene: Scene, by: DeviceRules) -> Given:
    """What a node shows at the moment."""
    labels = dict(_labels(node, scene, by))
    labelled = NodeFacts(node.name, {**node.labels, **labels}, node.taints, node.devices)
    devices = {
        device: quantity if _is_given(device, labelled, scene, by) else "0" for device, quantity in node.devices.items()
    }
    return Given(devices, labels)


def _labels(node: NodeFacts, scene: Scene, by: DeviceRules) -> Iterator[tuple[str, str]]:
    for rule in by.labels:
        fitting = [device for device in node.devices if fnmatchcase(device, rule.device)]
        if fitting and all(_is_met(need, fitting[0], node, scene) for need in rule.needs):
            yield from rule.labels.items()


def _is_given(device: str, node: NodeFacts, scene: Scene, by: DeviceRules) -> bool:
    providers = [provider for rule in by.devices if fnmatchcase(device, rule.device) for provider in rule.providers]
    return any(all(_is_met(need, device, node, scene) for need in provider.needs) for provider in providers)


def _is_met(need: Need, device: str, node: NodeFacts, scene: Scene) -> bool:
    if need.pod_on_node is not None:
        return any(_has_labels(pod, need.pod_on_node) for pod in scene.ready_pods.get(node.name, ()))
    if need.deployment is not None:
        return any(_is_available(each) and _has_labels(each, need.deployment) for each in scene.deployments)
    wanted = need.object
    return wanted is not None and any(_fits(obj, wanted, device, node) for obj in scene.objects.get(wanted.kind, ()))


def _fits(obj: Obj, need: ObjectNeed, device: str, node: NodeFacts) -> bool:
    named = not need.name or _at(obj, ("metadata", "name")) == need.name
    equal = all(_at(obj, path.split(".")) == value for path, value in need.equals.items())
    return (
        named
        and equal
        and (not need.selects_node_by or _selects(_at(obj, need.selects_node_by), node))
        and (not need.tolerates_by or _tolerates(_at(obj, need.tolerates_by) or (), node.taints))
        and (not need.names_device_by or f"{need.device_prefix}{_at(obj, need.names_device_by)}" == device)
    )


def _selects(selector: Any, node: NodeFacts) -> bool:
    return isinstance(selector, Mapping) and all(node.labels.get(key) == value for key, value in _items(selector))


def _items(mapping: Any) -> Iterator[tuple[str, Any]]:
    yield from mapping.items()


def _tolerates(tolerations: Sequence[Obj], taints: Sequence[Obj]) -> bool:
    hard = [taint for taint in taints if taint["effect"] != "PreferNoSchedule"]
    return all(any(_covers(toleration, taint) for toleration in tolerations) for taint in hard)


def _covers(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in {None, "", taint["key"]}
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def _is_available(deployment: Obj) -> bool:
    return _has_condition(deployment, "Available")


def _has_condition(obj: Obj, type_: str) -> bool:
    conditions = _at(obj, ("status", "conditions")) or ()
    return any(condition["type"] == type_ and condition["status"] == "True" for condition in conditions)


def _has_labels(obj: Obj, labels: Mapping[str, str]) -> bool:
    own: Any = _at(obj, ("metadata", "labels")) or {}
    return labels.items() <= own.items()


def _at(obj: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(obj, Mapping):
            return None
        obj = obj.get(key)  # pyright: ignore[reportUnknownVariableType]
    return obj  # pyright: ignore[reportUnknownVariableType]
