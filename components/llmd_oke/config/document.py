"""A stack file as it was written: its value, and the line of each of its parts."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from llmd_oke.config import yaml_errors
from llmd_oke.config.pulumi_yaml import Loader
from llmd_oke.errors import KitError, Problem

CONFIG_KEY = "llmd-oke:stack"

MOST_LEVELS = 50
"""Of objects and lists inside each other; a stack has fewer than ten."""

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


@dataclass(frozen=True)
class Document:
    """The content of a YAML file. `root` is None where the file is empty."""

    value: Any
    root: yaml.Node | None

    def line(self, path: str) -> int | None:
        """The line of a path of our object (`models[0].topology`), or of the nearest part around it that is there."""
        if self.root is None:
            return None
        if path == "config":
            return _walk(self.root, ["config"])[1]
        node, line = _walk(self.root, ["config", CONFIG_KEY])
        inner = None if node is None else _walk(node, _steps(path))[1]
        return inner or line

    def problems(self) -> Iterator[Problem]:
        """Keys that an object has twice (YAML forbids them, and readers disagree about which one counts), endless
        aliases, and more levels than anyone means.
        """
        return _scan(self.root, "", (), set()) if self.root is not None else iter(())


def read(path: Path) -> Document:
    """The content of a YAML file.

    Raises:
        KitError: it can't be read, or it is not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        yaml_errors.require_bounded(text, math.inf)  # aliases stay shared, and `problems` looks at each once
        loader = Loader(text)
        root = loader.get_single_node()
        return Document(None if root is None else loader.construct_document(root), root)
    except OSError as error:
        raise KitError(f"{path} can't be read: {error.strerror}.") from error
    # The YAML library lets some errors of values through as they are, a date with a 13th month for example.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise yaml_errors.explained(path, error) from error


def locate(problems: Iterable[Problem], path: Path) -> list[Problem]:
    """The problems with their lines in a stack file, in the order of the lines."""
    document = read(path)
    located = [replace(problem, line=problem.line or document.line(problem.path)) for problem in problems]
    return sorted(located, key=lambda problem: problem.line or 0)


def _steps(path: str) -> list[str | int]:
    return [int(match[1]) if match[1] else match[2] for match in _STEP.finditer(path)]


def _walk(node: yaml.Node, steps: Iterable[str | int]) -> tuple[yaml.Node | None, int | None]:
    """The node at the end of the steps, if there is one, and the line of the last step that is there."""
    line: int | None = None
    current: yaml.Node | None = node
    for step in steps:
        found = _child(current, step)
        if found is None:
            return None, line
        current, line = found
    return current, line


def _child(node: yaml.Node | None, step: str | int) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        item: yaml.Node = node.value[step]
        return item, item.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
        return next(((value, key.start_mark.line + 1) for key, value in pairs if key.value == str(step)), None)
    return None


def _scan(node: yaml.Node, path: str, around: tuple[yaml.Node, ...], done: set[int]) -> Iterator[Problem]:
    """Problems of a node and all inside it. `around` are the nodes that it is in; nodes of `done` were looked at."""
    if node in around:
        yield Problem(path, None, "something else", "the alias contains itself", node.start_mark.line + 1)
    elif len(around) > MOST_LEVELS:
        where = f"{path[:40]}…"
        yield Problem(where, None, f"at most {MOST_LEVELS} levels", "it is nested too deeply", node.start_mark.line + 1)
    elif id(node) not in done:
        done.add(id(node))
        for inner, child in _children(node, path):
            yield from _scan(child, inner, (*around, node), done)
        if isinstance(node, yaml.MappingNode):
            yield from _repeated_keys(node, path)


def _children(node: yaml.Node, path: str) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.SequenceNode):
        items: list[yaml.Node] = node.value
        yield from ((f"{path}[{i}]", item) for i, item in enumerate(items))
    elif isinstance(node, yaml.MappingNode):
        pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
        yield from ((_inside(path, key), value) for key, value in pairs)


def _repeated_keys(node: yaml.MappingNode, path: str) -> Iterator[Problem]:
    first_lines: dict[str, int] = {}
    pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
    for key, value in pairs:
        line = key.start_mark.line + 1
        if str(key.value) in first_lines:
            why = f"the key is in line {first_lines[str(key.value)]} already"
            yield Problem(_inside(path, key), _written(value), "one of the two", why, line)
        first_lines.setdefault(str(key.value), line)


def _written(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "an object"


def _inside(path: str, key: yaml.Node) -> str:
    """The path of a key. Paths of our object start at the object."""
    inner = f"{path}.{key.value}" if path else str(key.value)
    return "" if inner == f"config.{CONFIG_KEY}" else inner
