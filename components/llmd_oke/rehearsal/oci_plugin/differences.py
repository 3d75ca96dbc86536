"""Diff: what changes between a resource's state and new inputs, and whether it has to be made anew for that."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from llmd_oke.rehearsal.oci_plugin.inputs import DEFAULTS, without_defaults
from llmd_oke.rehearsal.oci_plugin.schemas import Property, Resource
from llmd_oke.rehearsal.plugin_protocol.changes import Change
from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN, JsonObject, is_list, is_map

META: Final = "__meta"
_UNPLANNED: Final = frozenset({"definedTags"})


@dataclass(frozen=True)
class Difference:
    """One property that changes. `computed`: only because OCI will give it a value."""

    path: str
    change: Change
    replaces: bool = False
    computed: bool = False

    @property
    def root(self) -> str:
        """The input or output that it is in."""
        return self.path.partition(".")[0].partition("[")[0]


@dataclass(frozen=True)
class Comparison:
    """All that changes."""

    found: tuple[Difference, ...] = ()
    delete_first: bool = False

    @property
    def replaces(self) -> list[str]:
        """The properties that the resource is made anew for, one for each difference."""
        return [difference.root for difference in self.found if difference.replaces]

    @property
    def changed(self) -> list[str]:
        """The properties that change."""
        return sorted({difference.root for difference in self.found})


def compare(resource: Resource, state: JsonObject, news: JsonObject, ignored: frozenset[str]) -> Comparison:
    """Compares a state with new inputs. A computed part alone is no change, unless something else is.

    A resource whose name the program fixed is deleted before its replacement is made: the names would collide.
    """
    given = without_defaults(news)
    found = [each for each in _differences(resource, state, given) if not _is_in(each.path, ignored)]
    if not any(not each.computed for each in found):
        return Comparison()
    found += [
        Difference(META, Change.UPDATE, replaces=True) for each in found if each.path in resource.replaced_through_meta
    ]
    replacing = any(each.replaces and not each.computed for each in found)
    told = tuple(replace(each, replaces=each.replaces and replacing) for each in found)
    fixed_name = resource.named and "name" not in (news.get(DEFAULTS) or ())
    return Comparison(told, delete_first=replacing and fixed_name and "name" in news)


def _says_nothing(value: Any, known: Property) -> bool:
    """Whether the value is the same as none; terraform-provider-oci can't tell an empty value from none."""
    return value is None or value in (known.empty(), known.planned)


def _is_in(path: str, places: frozenset[str]) -> bool:
    return any(path == place or path.startswith((f"{place}.", f"{place}[")) for place in places)


def _differences(resource: Resource, state: JsonObject, given: JsonObject) -> Iterator[Difference]:
    for name, known in {**resource.outputs, **resource.inputs}.items():
        old, new = state.get(name), given.get(name)
        if new is not None:
            yield from _between(name, known, old, new)
        elif not known.computed and not _says_nothing(old, known):
            yield Difference(name, Change.DELETE, known.replaces)
        elif old is None and _is_planned(name, known):
            yield Difference(name, Change.ADD, computed=True)


def _is_planned(name: str, known: Property) -> bool:
    """Whether the plug-in tells of it where the state lacks it: a collection that OCI computes, or a fixed value."""
    if known.scalar:
        return known.planned is not None
    of_objects = known.item is not None and bool(known.item.fields)
    return known.computed and known.kind in {"list", "map"} and not of_objects and name not in _UNPLANNED


def _between(path: str, known: Property | None, old: Any, new: Any) -> Iterator[Difference]:
    if old == new:
        if is_map(new) and known is not None and known.kind == "object":
            yield from _inside(path, known, old, new)
        elif is_list(new) and known is not None and known.item is not None and not known.whole:
            yield from _in_list(path, known, old, new)
        return
    replaces = known is not None and known.replaces
    if old is None:
        yield Difference(path, Change.ADD, replaces)
    elif new is UNKNOWN or (known is not None and known.whole):
        if known is None or not known.whole or not _covers(old, new):
            yield Difference(path, Change.UPDATE, replaces)
    elif is_map(old) and is_map(new):
        yield from _inside(path, known, old, new)
    elif is_list(old) and is_list(new):
        yield from _in_list(path, known, old, new)
    else:
        yield Difference(path, Change.UPDATE, replaces)


def _covers(old: Any, new: Any) -> bool:
    """Whether the state has all that the inputs say: what it has more is computed."""
    if is_map(old) and is_map(new):
        return all(_covers(old.get(key), value) for key, value in new.items())
    if is_list(old) and is_list(new):
        return len(old) == len(new) and all(_covers(*pair) for pair in zip(old, new, strict=True))
    return bool(old == new)


def _inside(path: str, known: Property | None, old: JsonObject, new: JsonObject) -> Iterator[Difference]:
    fields = known.fields if known is not None and known.kind == "object" else dict[str, Property]()
    anything = Property("string", replaces=known is not None and known.replaces)
    for name in {**fields, **new} if fields else {**old, **new}:
        part, before, after = fields.get(name, anything), old.get(name), new.get(name)
        if after is not None:
            yield from _between(f"{path}.{name}", part, before, after)
        elif before is None:
            if part.computed and (part.scalar or part.kind == "map"):
                yield Difference(f"{path}.{name}", Change.ADD, part.replaces, computed=True)
        elif not part.computed and not _says_nothing(before, part):
            yield Difference(f"{path}.{name}", Change.DELETE, part.replaces)


def _in_list(path: str, known: Property | None, old: list[Any], new: list[Any]) -> Iterator[Difference]:
    item = known.item if known else None
    replaces = known is not None and known.replaces
    for index in range(max(len(old), len(new))):
        place = f"{path}[{index}]"
        if index >= len(old):
            yield Difference(place, Change.ADD, replaces)
        elif index >= len(new):
            yield Difference(place, Change.DELETE, replaces)
        else:
            for each in _between(place, item, old[index], new[index]):
                yield replace(each, replaces=each.replaces or (replaces and not each.computed))
