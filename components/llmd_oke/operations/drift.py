"""Drift of a stack: changes that other programs or users made to its resources, with the field manager for objects in
the cluster.

The engine's refresh shows which inputs of a resource have changed, and an object's `managedFields` show which field
manager did it (Kubernetes, server-side apply). Fields that an autoscaler may change are in `ignore_changes`, and hence
are no drift.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmd_base.errors import KitError
from llmd_base.progress import Progress

from llmd_oke.operations.guards import LONGEST_VALUES, steps, value_at
from llmd_oke.operations.previews import ResourceChange
from llmd_oke.operations.pulumi_cli import PulumiCli

OBJECTS = "**kubernetes:**"
"""Target pattern of the engine that matches the URNs of all resources of the Kubernetes provider."""

_WITHOUT_EXISTENCE = ("llmd-oke:", "pulumi:")
"""Prefixes of the types of components, providers and the stack itself, which exist only in the state."""

_OWN_MANAGER = "__fieldManager"
_FIRST_WRITERS = frozenset({"pulumi-kubernetes", "pulumi-resource-kubernetes"})
"""Field managers of Pulumi's provider before an object's first update (pulumi-kubernetes 4.30.0, await.go)."""

_KUBECTL = "kubectl"
"""Prefix of the names of kubectl's field managers. An update takes over their fields, and so removes those that the
program doesn't have (pulumi-kubernetes 4.30.0, await.go, `fixCSAFieldManagers`)."""

_AUTOSCALERS = ("kube-controller-manager", "keda")
"""Prefixes of the names of field managers that scale: the HorizontalPodAutoscaler controller, and KEDA."""

_REPLICAS = "spec.replicas"

Path = tuple[str | int, ...]
Tree = Mapping[str, Any]
"""A Kubernetes object, or a part of one."""


@dataclass(frozen=True)
class Drift:
    """A change that another program or user made to a resource, described by `words`.

    `path` is the changed property, empty if the resource was deleted; `taken_back` is true if an update reverts the
    change, once the engine has refreshed the resource, without a replacement.
    """

    urn: str
    path: str
    words: str
    taken_back: bool = True

    def __str__(self) -> str:
        return self.words


def drift_of_refresh(changes: Iterable[ResourceChange], *, objects_only: bool = True) -> list[Drift]:
    """Return the drift among the changes that a refresh found: deleted resources, fields that differ from the last
    update, and fields that kubectl has added. In these changes the old state is the recorded one, the new state the
    actual one.
    """
    drifts: list[Drift] = []
    for change in filter(_is_object if objects_only else _exists, changes):
        if change.operation == "delete":
            words = f"{change.short_name} is gone; {_undoing(change)} makes it anew"
            drifts.append(Drift(change.urn, "", words))
            continue
        if change.operation == "update":
            drifts += [_changed_field(change, path) for path in change.changed]
        drifts += _added_fields(change)
    return drifts


def drift_of_preview(changes: Iterable[ResourceChange], known_drifts: Iterable[Drift] = ()) -> list[Drift]:
    """Return the drift among the changes of a preview: fields that the update changes and that another field manager
    set, without `known_drifts`.
    """
    known = {(drift.urn, drift.path) for drift in known_drifts}
    drifts: list[Drift] = []
    for change in filter(_is_object, changes):
        for path in change.changed if change.operation in {"update", "replace"} else ():
            managers = _other_managers(change.old_outputs, path)
            if (change.urn, path) in known or not managers:
                continue
            now, target = (_value_text(value_at(inputs, path)) for inputs in (change.old, change.new))
            by = _by(managers)
            words = f"is {now}{by}; the update makes it {target}"
            if _is_hidden(now, target):
                words = f"was changed{by}; the update takes it back"
            drifts.append(Drift(change.urn, path, f"{change.short_name}: {path} {words}"))
    return drifts


def to_read(drifts: Iterable[Drift]) -> list[str]:
    """Return the URNs of the resources that the engine must refresh so that the next update reverts their drift."""
    return list(dict.fromkeys(drift.urn for drift in drifts if drift.taken_back))


def look(pulumi: PulumiCli, progress: Progress) -> list[Drift]:
    """Look for drift of the objects in the cluster since the last update, and return it; empty if the cluster can't be
    read, which is reported as progress.
    """
    progress.step("looking for changes by hand")
    try:
        return drift_of_refresh(pulumi.look(OBJECTS))
    except KitError as error:
        progress.step(f"they can't be seen, and so are not taken back: {error.message}")
        return []


def everywhere(pulumi: PulumiCli, progress: Progress) -> list[Drift]:
    """Look for drift of all resources in OCI and in the cluster, and return it; the state isn't changed.

    Raises:
        KitError: the state, OCI or the cluster can't be read.
    """
    state: Tree = pulumi.export().get("deployment") or {}
    resources: Sequence[Tree] = state.get("resources") or ()
    count = sum(not str(resource["type"]).startswith(_WITHOUT_EXISTENCE) for resource in resources)
    if state.get("pending_operations"):
        progress.step("an engine was killed: `llmd-oke recover` shows what it had begun, which is no part of this")
    if not count:
        progress.step("nothing is deployed")
        return []
    progress.step(f"reading what there is of {count} resources; nothing is changed")
    return drift_of_refresh(pulumi.look(), objects_only=False)


def _exists(change: ResourceChange) -> bool:
    """Return True if drift of a resource is reported: it exists in OCI or the cluster, and isn't a Helm release unless
    that was deleted.
    """
    compared = "helm.sh" not in change.type or change.operation == "delete"
    return compared and not change.type.startswith(_WITHOUT_EXISTENCE)


def _undoing(change: ResourceChange) -> str:
    """Return what reverts a change: an update, which refreshes Kubernetes objects by itself, or, for other resources,
    an update after `pulumi refresh`.
    """
    return "the update" if change.type.startswith("kubernetes:") else "an update after `pulumi refresh`"


def _is_object(change: ResourceChange) -> bool:
    """Return True for a change of a Kubernetes object; not for Helm releases, whose objects Helm itself compares."""
    return change.type.startswith("kubernetes:") and "helm.sh" not in change.type


def _changed_field(change: ResourceChange, path: str) -> Drift:
    """Return the drift of a field whose actual value differs from the last update."""
    was, now = (_value_text(value_at(inputs, path)) for inputs in (change.old, change.new))
    if was == now:
        was, now = (_value_text(value_at(outputs, path)) for outputs in (change.old_outputs, change.new_outputs))
    values = "was changed" if _is_hidden(was, now) else f"was {was} and is {now}"
    managers = _other_managers(change.new_outputs, path)
    undoing = f"{_undoing(change)} makes it what the stack file says"
    replaces = path in change.replaced_by
    if replaces:
        undoing = f"{_undoing(change)} would replace it: change it back where it was changed"
    words = f"{change.short_name}: {path} {values}{_by(managers)}; {undoing}"
    if path == _REPLICAS and any(manager.startswith(_AUTOSCALERS) for manager in managers):
        words += " (`scaling` would leave it to an autoscaler)"
    return Drift(change.urn, path, words, taken_back=not replaces)


def _by(managers: Sequence[str]) -> str:
    return f", set by {' and '.join(managers)}" if managers else ""


def _is_hidden(one: str, other: str) -> bool:
    """Return True if two values mustn't be shown: masked secrets, which are equal texts, or long values."""
    return one == other or len(one) + len(other) > LONGEST_VALUES


def _value_text(value: Any) -> str:
    return "absent" if value is None else repr(value)


def _added_fields(change: ResourceChange) -> Iterator[Drift]:
    """Yield the fields that kubectl has added and that the program doesn't set. Such fields alone cause no update of
    the object, but the object's next update removes them.
    """
    known = set(_managed_fields(change.old_outputs, _is_kubectl))
    for path, manager in _managed_fields(change.new_outputs, _is_kubectl):
        name = _name(path)
        if (path, manager) not in known and value_at(change.new, name) is None:
            words = f"{change.short_name}: {name} was added by {manager} and stays until the object's next update"
            yield Drift(change.urn, name, words, taken_back=False)


def _is_kubectl(_: Tree, entry: Tree) -> bool:
    return str(entry["manager"]).startswith(_KUBECTL)


def _is_other(live: Tree, entry: Tree) -> bool:
    return entry["manager"] not in {live.get(_OWN_MANAGER), *_FIRST_WRITERS}


def _other_managers(live: Tree, path: str) -> list[str]:
    """Return the field managers, other than Pulumi's, that own the field at a path, a part of it, or its parent."""
    at = tuple(steps(path))
    owners = (manager for owned, manager in _managed_fields(live, _is_other) if owned[: len(at)] == at[: len(owned)])
    return list(dict.fromkeys(owners))


def _managed_fields(live: Tree, whose: Callable[[Tree, Tree], bool]) -> Iterator[tuple[Path, str]]:
    """Yield path and field manager of each field of a live object, for the entries of `managedFields` that `whose`
    selects.
    """
    metadata: Tree = live.get("metadata") or {}
    for entry in metadata.get("managedFields") or ():
        subresource: str = entry.get("subresource", "")
        if subresource != "status" and whose(live, entry):
            name = f"{entry['manager']} ({subresource})" if subresource else str(entry["manager"])
            yield from ((path, name) for path in _leaves(entry.get("fieldsV1") or {}, live))


def _leaves(fields: Tree, value: Any) -> Iterator[Path]:
    """Yield the paths in a set of fields (`FieldsV1`); items of lists are given by their index in the live list."""
    for key, inside in fields.items():
        step = _step(key, value)
        if step is None:
            continue
        if any(inner != "." for inner in inside):
            yield from ((step, *rest) for rest in _leaves(inside, value[step]))
        else:
            yield (step,)


def _step(key: str, value: Any) -> str | int | None:
    """Return the key or list index that a key of `FieldsV1` (`f:name`, `k:{…}`, `v:…`) denotes in a value; None if the
    value doesn't have it.
    """
    kind, _, name = key.partition(":")
    match kind, value:
        case "f", {}:
            return name if name in value else None
        case "k", [*items]:
            key_fields: dict[str, Any] = json.loads(name)
            alike = (place for place, item in enumerate(items) if key_fields.items() <= item.items())
            return next(alike, None)
        case "v", [*items]:
            return next((place for place, item in enumerate(items) if item == json.loads(name)), None)
        case _:
            return None


def _name(path: Sequence[str | int]) -> str:
    """Return a path in the engine's form: `spec.ports[0].name`, `metadata.annotations["a.b/c"]`."""
    name = ""
    for step in path:
        if isinstance(step, int):
            name += f"[{step}]"
        elif "." in step or "/" in step:
            name += f'["{step}"]'
        else:
            name += f".{step}" if name else step
    return name
