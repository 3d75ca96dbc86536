"""Search for the lines of the catalogue (`values/`) that contain a rendered value; the source of each figure is beside
it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from llmd_oke.catalogue.models import MODELS
from llmd_oke.catalogue.releases import RELEASES
from llmd_oke.catalogue.shapes import GPUS, SHAPES
from llmd_oke.planning import Plan
from llmd_oke.values import project_values, values_folder

MOST_LINES = 6
"""Maximum number of lines of the catalogue that are shown for a value."""

_SHARED = ("vllm", "serving", "router", "storage", "bench", "scaling", "monitoring", "operators", "endpoint-pickers")
"""Folders of `values/` whose files are for all stacks."""

_SHORTEST_TEXT = 5
_LEAST_NUMBER = 100
"""Shorter texts and lesser numbers stand in too many lines to tell anything."""


@dataclass(frozen=True)
class CatalogueLine:
    """Line of a catalogue file that contains a rendered value. `file` is relative to the kit or, for an entry of the
    project's own, to the project.
    """

    file: str
    line: int
    text: str


def catalogue_lines(plan: Plan, value: object) -> list[CatalogueLine]:
    """Return the lines that contain a rendered value in the catalogue entries that a plan uses.

    Entries that the stack file names come before those that all stacks share. The search is textual, so that a line
    with an equal value of another meaning is found as well.
    """
    found: dict[tuple[Path, int], CatalogueLine] = {}
    patterns = [re.compile(pattern) for leaf in _leaves(value) for pattern in _patterns(leaf)]
    for path, name in _files(plan) if patterns else ():
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            said = text.partition("#")[0]
            if any(pattern.search(said) for pattern in patterns):
                found[path, number] = CatalogueLine(name, number, " ".join(text.split()))
    return list(found.values())[:MOST_LINES]


def _files(plan: Plan) -> Iterator[tuple[Path, str]]:
    """Files of a plan's entries, the project's own before the kit's, with their names."""
    entries = [*((MODELS.folder, model.model.name) for model in plan.models), (RELEASES.folder, plan.release.name)]
    for pool in plan.pools:
        entries += [(SHAPES.folder, pool.shape.name), (GPUS.folder, pool.shape.gpu.product)]
    own, kit = project_values().folder, values_folder()
    for folder, name in dict.fromkeys(entries):
        for root in (own, kit):
            path = root / folder / f"{name}.yaml"
            if root != Path() and path.is_file():
                yield path, f"values/{folder}/{name}.yaml"
    for folder in _SHARED:
        yield from ((path, f"values/{folder}/{path.name}") for path in sorted((kit / folder).glob("*.yaml")))


def _leaves(value: object) -> Iterator[object]:
    """Texts and numbers in a value; a variable of a container's environment with its name."""
    match value:
        case {"name": str(name), "value": str(text)}:
            yield {name: text}
        case Mapping():
            for part in cast("Mapping[str, Any]", value).values():
                yield from _leaves(part)
        case list():
            for part in cast("list[Any]", value):
                yield from _leaves(part)
        case _:
            yield value


def _patterns(leaf: object) -> Iterator[str]:
    """Yield patterns of the words by which a line of YAML would say a rendered value."""
    match leaf:
        case bool() | None:
            return
        case dict():
            yield from (rf"(?<![\w-]){re.escape(name)}:" for name in cast("dict[str, str]", leaf))
        case int() | float() if leaf >= _LEAST_NUMBER:
            yield rf"(?<![\w.]){leaf:g}(?![\w.])"
        case str() if flag := re.match(r"--([a-z][a-z0-9-]*)", leaf):
            yield rf"(?:flag: |--){flag[1]}(?![\w-])"
        case str() if len(text := leaf.partition("@sha256:")[0]) >= _SHORTEST_TEXT and "\n" not in text:
            yield rf"(?<![\w-]){re.escape(text)}(?![\w-])"
        case _:
            return
