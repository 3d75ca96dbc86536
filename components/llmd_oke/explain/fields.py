"""Fields of rendered objects, as people name them: `Deployment/NAME.spec.replicas`, `containers[vllm].args[port]`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import cast

from llmd_base.errors import KitError

from llmd_oke.explain.probes import Objects, without_digests

_STEP = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")


@dataclass(frozen=True)
class ObjectField:
    """Field of a rendered Kubernetes object, by the object's kind and name and the keys and indices that lead to the
    field; the whole object without them.
    """

    kind: str
    name: str
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the field in the notation of the command line, such as `Deployment/NAME.spec.replicas`."""
        return f"{self.kind}/{self.name}" + "".join(_written(step) for step in self.steps)

    def of(self, objects: Objects) -> object:
        """Return the field's value among rendered objects; None if the object or the field is missing."""
        return _at(objects.get((self.kind, self.name)), self.steps)

    def in_other(self, objects: Objects, before: Objects) -> object:
        """Return the field's value in another rendering of the stack, `objects`. If the object has another name there,
        the one of its kind with the most similar name that isn't in the rendering `before` is used.
        """
        new = [name for kind, name in objects if kind == self.kind and (kind, name) not in before]
        if (self.kind, self.name) in objects or not new:
            return self.of(objects)
        name = max(new, key=lambda name: SequenceMatcher(None, name, self.name).ratio())
        return _at(objects[self.kind, name], self.steps)


def object_field(text: str, objects: Objects) -> ObjectField:
    """Parse a text such as `Deployment/NAME.spec.replicas`, which names an object or one of its fields. The first key
    after the object may be any key that occurs only once in it.

    Raises:
        KitError: there is no such object or field; the message names similar ones.
    """
    kind, _, rest = without_digests(text).partition("/")
    named = [
        identity
        for identity in objects
        if identity[0].lower() == kind.lower() and re.match(rf"{re.escape(identity[1])}(?=[.\[]|$)", rest)
    ]
    if not named:
        alike = [f"{of_kind}/{name}" for of_kind, name in objects]
        near = get_close_matches(text.partition(".")[0], alike, n=4, cutoff=0.3)
        same = [item for item in alike if item.lower().startswith(f"{kind.lower()}/")]
        listed = ", ".join((same or near)[:12]) or ", ".join(sorted({of_kind for of_kind, _ in objects}))
        raise KitError(f"The stack renders no object {text.partition('.')[0]}.", f"There are: {listed}.")
    own_kind, name = max(named, key=lambda identity: len(identity[1]))
    path = tuple(match[1] or match[2] for match in _STEP.finditer(rest[len(name) :]))
    return _resolved(ObjectField(own_kind, name, path), objects)


def _resolved(field: ObjectField, objects: Objects) -> ObjectField:
    if not field.steps or field.of(objects) is not None:
        return field
    whole = objects[field.kind, field.name]
    places = [place for place in _places(whole, field.steps[0]) if _at(whole, (*place, *field.steps[1:])) is not None]
    if len(places) == 1:
        return ObjectField(field.kind, field.name, (*places[0], *field.steps[1:]))
    if places:
        listed = ", ".join("".join(map(_written, (*place, *field.steps[1:]))).removeprefix(".") for place in places)
        raise KitError(f"{field} may be several fields.", f"One of: {listed}.")
    value: object = whole
    for count, step in enumerate(field.steps):
        if _inner(value, step) is None:
            before = ObjectField(field.kind, field.name, field.steps[:count])
            raise KitError(f"{before} has no {step}.", f"It has: {', '.join(_names(value)) or 'a single value'}.")
        value = _inner(value, step)
    return field


def _places(value: object, key: str, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the steps to each part of an object that a key names."""
    if isinstance(value, Mapping):
        for name, part in cast("Mapping[str, object]", value).items():
            if name == key:
                yield (*before, name)
            yield from _places(part, key, (*before, name))
    elif isinstance(value, list):
        for name, part in zip(_names(cast("object", value)), cast("list[object]", value), strict=True):
            yield from _places(part, key, (*before, name))


def _at(value: object, steps: Sequence[str]) -> object:
    for step in steps:
        value = _inner(value, step)
    return value


def _inner(value: object, step: str) -> object:
    """One step inside: a key, or of a list an index, an item's name, or what a text begins with, dashes or not."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).get(step)
    if not isinstance(value, list):
        return None
    items = cast("list[object]", value)
    if step.isdecimal():
        return items[int(step)] if int(step) < len(items) else None
    for item, name in zip(items, _names(cast("object", value)), strict=True):
        if step in {name, name.lstrip("-")}:
            return item
    return None


def _names(value: object) -> list[str]:
    """The steps that lead inside a value."""
    if isinstance(value, Mapping):
        return [str(key) for key in cast("Mapping[str, object]", value)]
    return (
        [_item_name(item, index) for index, item in enumerate(cast("list[object]", value))]
        if isinstance(value, list)
        else []
    )


def _item_name(item: object, index: int) -> str:
    if isinstance(item, Mapping):
        name = cast("Mapping[str, object]", item).get("name")
        return name if isinstance(name, str) else str(index)
    return item.partition("=")[0] if isinstance(item, str) and item else str(index)


def _written(step: str) -> str:
    return f".{step}" if re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", step) else f"[{step}]"
