"""Reader and writer of YAML files: parses numbers and texts exactly as Pulumi does, finds the line of each key, and
keeps comments.

Pulumi reads stack files with Go's yaml.v3, which parses `1e6` and `0o17` as numbers, and `yes`, `on` and `12:30` as
texts; PyYAML, which follows YAML 1.1, does neither. Pulumi passes objects to the program as JSON, which has one type of
number: `2.0` arrives as 2. `check` must see the same values as the program. Source:
https://github.com/go-yaml/yaml/blob/v3/resolve.go
"""

import difflib
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, cast

import yaml
from llmd_base.documents import UnboundedError, require_bounded
from llmd_base.errors import Described, KitError, Problem
from yaml.reader import ReaderError

CONFIG_KEY = "llmd-oke:stack"

MAX_LEVELS = 50
"""Maximum nesting depth of objects and lists; a stack file has fewer than ten levels."""

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|[0-9][0-9_]*)$")
_OLD_OCTAL = re.compile(r"[-+]?0[0-7]+$")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9_]+)?$")
_SPECIAL = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_DATE: re.Pattern[str] = yaml.SafeLoader.timestamp_regexp

_EXPONENT = 1e21
"""Absolute value from which Go's JSON writes numbers with an exponent, so that they arrive as floats; smaller whole
numbers arrive as integers.
"""

_LARGEST = int(sys.float_info.max)

_SMALLER = "Make the file smaller, with fewer levels of lists and objects, and fewer aliases of aliases."
_ONE_DOCUMENT = "Leave out the line `---` between the two."
_LEFT_OPEN = "Is a quote, a bracket or {{ }} left open in this line, or does a text with : or { need quotes?"

_RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
for _name, _pattern, _firsts in (
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("merge", re.compile(r"<<$"), "<"),
    ("timestamp", _DATE, "0123456789"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("float", _SPECIAL, "-+."),
):
    for _first in _firsts:
        _RESOLVERS.setdefault(_first, []).append((_TAG + _name, _pattern))


@dataclass(frozen=True)
class YamlDocument:
    """Content of a YAML file, with its syntax tree. `root` is None if the file is empty."""

    value: Any
    root: yaml.Node | None

    def line(self, path: str) -> int | None:
        """Return the line of a path (`models[0].topology`), or of the nearest parent that exists; None if the file is
        empty, or has no part of the path.
        """
        return self.line_at(steps(path))

    def line_at(self, path: Iterable[str | int]) -> int | None:
        """Return what `line` returns, for a path given as keys and indices; the keys may contain dots."""
        return _walk(self.root, path)[1]

    def problems(self) -> Iterator[Problem]:
        """Return an iterator over problems: repeated keys (YAML forbids them, and parsers disagree about which one
        counts), aliases that contain themselves, and nesting deeper than `MAX_LEVELS`.
        """
        return _scan(self.root, "", (), set()) if self.root is not None else iter(())


def read(path: Path, most_values: float = math.inf) -> YamlDocument:
    """Return the content of a YAML file. With `most_values`, files that have more values after their aliases are
    expanded are refused; without it, expanded values share objects, and `problems` visits each node once.

    Raises:
        KitError: the file can't be read, or is not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        require_bounded(text, most_values)
        loader = Loader(text)
        root = loader.get_single_node()
        return YamlDocument(None if root is None else loader.construct_document(root), root)
    except OSError as error:
        raise KitError(f"{path} can't be read: {error.strerror}.") from error
    # PyYAML doesn't wrap some errors of values, such as a date with a 13th month.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise _yaml_error(path, error) from error


def text_of(document: Any) -> str:
    """Return the document as YAML text from which Pulumi reads the same values."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False)


def load(text: str) -> Any:
    """Return the content of a YAML text with its comments and layout, to be changed and passed to `dump`.

    Raises:
        KitError: ruamel.yaml is not installed.
    """
    return _round_trip(text).load(text)


def dump(document: Any, text: str) -> str:
    """Return the YAML text of a changed document, in the layout of `text`, from which it was loaded."""
    stream = StringIO()
    _round_trip(text).dump(document, stream)
    return stream.getvalue()


def new_map(values: Mapping[str, object]) -> Any:
    """Return a mapping for insertion into a document, written with one line per key."""
    from ruamel.yaml.comments import CommentedMap  # noqa: PLC0415 - an extra; `load` has asked for it

    result = CommentedMap(values)
    result.fa.set_block_style()
    return result


def new_map_like(mapping: Any) -> Any:
    """Return an empty mapping for insertion into `mapping`, in the same style: one line per key, or `{…}`; a plain dict
    if `mapping` is one.
    """
    if not hasattr(mapping, "ca"):
        return {}
    result = new_map({})
    if mapping.fa.flow_style():
        result.fa.set_flow_style()
    return result


def move_key(source: Any, key: str, target: Any, new_key: str) -> None:
    """Move a value to another key: to the same place within one mapping, else behind the last key of `target`. The
    comment in its line goes along.
    """
    value, at = source[key], list(source).index(key) if source is target else len(target)
    comment = source.ca.items.pop(key, None) if hasattr(source, "ca") else None
    del source[key]
    if not hasattr(target, "ca"):
        target[new_key] = value
        return
    target.insert(at, new_key, value)
    if comment is not None:
        if source is target and comment[2] is not None:  # as far from its key as before
            comment[2].start_mark.column += len(new_key) - len(key)
        target.ca.items[new_key] = comment


def remove_items(mapping: Any, key: str, first: int, count: int, target: Any, new_key: str) -> None:
    """Remove `count` items from index `first` on of the list at a key, and the key itself with its last item. Comments
    in the lines of these items move to the key `new_key` of the mapping `target`, which has replaced them; lines of
    comments stay where they are.
    """
    items = mapping[key]
    by_item: Any = items.ca.items if hasattr(items, "ca") else {}
    of_items = [token for at in range(first, first + count) for token in by_item.get(at) or ()]
    comments = [token for token in of_items if token is not None]
    for _ in range(count):
        del items[first]
    lines = [token.value.partition("\n") for token in comments]
    beside = [text.rstrip() for text, _, _ in lines if text.startswith("#")]
    below = "\n".join(rest.rstrip("\n") for _, _, rest in lines if rest.strip())
    if below and items:
        _append_comment(items if first else mapping, first - 1 if first else key, 0 if first else 2, f"\n{below}\n")
    elif below:
        beside.append(f"\n{below}\n")
    if not items:
        del mapping[key]
    if beside:
        target.ca.items[new_key] = [
            None,
            None,
            _comment_token(" ".join(beside).replace(" \n", "\n").rstrip() + "\n"),
            None,
        ]


def _append_comment(container: Any, key: Any, place: int, text: str) -> None:
    """Append lines of comments behind a key's or an item's own."""
    slots = container.ca.items.setdefault(key, [None] * (place + 2))
    if slots[place] is None:
        slots[place] = _comment_token(text)
    else:
        slots[place].value = slots[place].value.rstrip("\n") + text


def _comment_token(text: str) -> Any:
    from ruamel.yaml.error import CommentMark  # noqa: PLC0415 - an extra; `load` has asked for it
    from ruamel.yaml.tokens import CommentToken  # noqa: PLC0415

    return CommentToken(text, CommentMark(0), None)


def plain(text: str) -> Any:
    """Return the content of a YAML text as plain dicts, lists and scalars."""
    return _yaml(typ="safe").load(text)


def difference(before: str, after: str, name: str) -> str:
    """Return the unified diff of the text of the file `name` before and after a change; empty where nothing changes."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="")
    return "\n".join(lines)


def _yaml_error(path: Path, error: Exception) -> KitError:
    """Return the error for a file that failed to parse as YAML, with the line."""
    if isinstance(error, UnicodeDecodeError):
        line = bytes(error.object)[: error.start].count(b"\n") + 1
        return KitError(f"{path}:{line} is not YAML: it has a byte that is not UTF-8.", "Save the file as UTF-8.")
    if isinstance(error, ReaderError):
        return KitError(f"{path} is not YAML: character {error.position} of it is a control character.", "Remove it.")
    if isinstance(error, RecursionError):
        return KitError(f"{path} is too large: it is nested too deeply.", _SMALLER)
    if isinstance(error, UnboundedError):
        return KitError(f"{path} is too large: {error}.", _SMALLER)
    if isinstance(error, _NoDateError):
        where = f"{path}:{error.line} has a date that does not exist: {error}."
        return KitError(where, "Put the value in quotes if it is text.")
    if isinstance(error, yaml.MarkedYAMLError):
        return _marked_error(path, error)
    return KitError(f"{path} is not YAML: {error}")


class Loader(_Fast):
    """PyYAML loader for stack files, with the scalar types of Go's yaml.v3."""

    yaml_implicit_resolvers: ClassVar[Any] = _RESOLVERS


class _Dumper(yaml.SafeDumper):
    """PyYAML dumper that quotes texts that Go's yaml.v3 would parse as other types."""

    yaml_implicit_resolvers: ClassVar[Any] = _RESOLVERS


def number(text: str) -> int | float | str:
    """Return the number that a plain YAML scalar has in Go's yaml.v3; the text itself if it has no digits or the number
    is too large for a float.
    """
    if _SPECIAL.match(text):
        return float(text.replace(".", ""))
    plain = text.replace("_", "")
    if _OLD_OCTAL.match(plain):
        return int(plain, 8)
    with suppress(ValueError):  # not whole, with a zero in front, or with more digits than Python converts
        whole = int(plain, 0)
        return whole if abs(whole) < _EXPONENT else float(whole) if abs(whole) <= _LARGEST else text
    try:
        value = float(plain)
    except ValueError:  # a prefix without digits, such as `0x_`
        return text
    if math.isinf(value):
        return text
    return int(value) if value.is_integer() and abs(value) < _EXPONENT else value


def _construct_number(loader: Any, node: yaml.ScalarNode) -> int | float | str:
    return number(str(loader.construct_scalar(node)))


class _NoDateError(yaml.YAMLError):
    """Error for a value in the form of a date that the calendar doesn't have; `line` is its line in the file."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.line = line


def _construct_date(loader: Any, node: yaml.ScalarNode) -> object:
    try:
        return loader.construct_yaml_timestamp(node)
    except ValueError as error:
        raise _NoDateError(str(error), node.start_mark.line + 1) from error


Loader.add_constructor(f"{_TAG}timestamp", _construct_date)
Loader.add_constructor(f"{_TAG}int", _construct_number)
Loader.add_constructor(f"{_TAG}float", _construct_number)


def steps(path: str) -> list[str | int]:
    """Return the keys and indices in a path such as `models[0].topology`."""
    return [int(match[1]) if match[1] else match[2] for match in _STEP.finditer(path)]


def value_at(document: object, path: str) -> object:
    """Return the value at a path such as `models[0].name` in a parsed document; None if the path doesn't exist."""
    for step in steps(path):
        if isinstance(document, Mapping):
            document = cast("Mapping[object, object]", document).get(step)
        elif isinstance(document, list) and isinstance(step, int) and step < len(cast("list[object]", document)):
            document = cast("list[object]", document)[step]
        else:
            return None
    return document


def _walk(node: yaml.Node | None, steps: Iterable[str | int]) -> tuple[yaml.Node | None, int | None]:
    """Return the node at the end of the steps, None if the path doesn't exist, and the line of the last step that
    exists.
    """
    line: int | None = None
    current = node
    for step in steps:
        if isinstance(current, yaml.SequenceNode) and isinstance(step, int) and step < len(current.value):
            item: yaml.Node = current.value[step]
            current, line = item, item.start_mark.line + 1
            continue
        pairs: list[tuple[yaml.Node, yaml.Node]] = current.value if isinstance(current, yaml.MappingNode) else []
        key, current = next(((key, value) for key, value in pairs if key.value == str(step)), (None, None))
        if key is None:
            return None, line
        line = key.start_mark.line + 1
    return current, line


def _scan(node: yaml.Node, path: str, around: tuple[yaml.Node, ...], done: set[int]) -> Iterator[Problem]:
    """Yield the problems of a node and its descendants. `around` are the node's ancestors; `done` has the ids of nodes
    already visited.
    """
    if node in around:
        accepted = "a value written out, or an alias of another part"
        yield Problem(path, None, accepted, "the alias contains itself", node.start_mark.line + 1)
    elif len(around) > MAX_LEVELS:
        where = f"{path[:40]}…"
        yield Problem(where, None, f"at most {MAX_LEVELS} levels", "it is nested too deeply", node.start_mark.line + 1)
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
        yield from ((_key_path(path, key), value) for key, value in pairs)


def _repeated_keys(node: yaml.MappingNode, path: str) -> Iterator[Problem]:
    first_lines: dict[str, int] = {}
    pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
    for key, value in pairs:
        line = key.start_mark.line + 1
        if str(key.value) in first_lines:
            why = f"the key is in line {first_lines[str(key.value)]} already"
            written = Described("a list" if isinstance(value, yaml.SequenceNode) else "an object")
            shown = str(value.value) if isinstance(value, yaml.ScalarNode) else written
            yield Problem(_key_path(path, key), shown, "one of the two", why, line)
        first_lines.setdefault(str(key.value), line)


def _key_path(path: str, key: yaml.Node) -> str:
    """Return the path of a key. Paths inside `llmd-oke:stack` start at that object."""
    inner = f"{path}.{key.value}" if path else str(key.value)
    return "" if inner == f"config.{CONFIG_KEY}" else inner


def _marked_error(path: Path, error: yaml.MarkedYAMLError) -> KitError:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = error.problem or error.context or "it can't be read"
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    text = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in text[: len(text) - len(text.lstrip())]:
        return KitError(f"{where} is not YAML: the line begins with a tab.", "Use spaces.")
    if "could not determine a constructor" in problem:
        tag = problem.rsplit(" ", 1)[-1].strip("'").replace("tag:yaml.org,2002:", "!!")
        return KitError(f"{where} is not YAML that the kit reads: the tag {tag} means nothing here.", "Leave it out.")
    parts = dict.fromkeys(part for part in (error.context, problem) if part)
    remedy = _ONE_DOCUMENT if "another document" in problem else _LEFT_OPEN
    return KitError(f"{where} is not YAML: {', '.join(parts)}.", remedy)


def _round_trip(text: str) -> Any:
    """Return a ruamel.yaml parser that keeps comments and quotes, and writes lists with the indentation that `text`
    has.
    """
    yaml = _yaml(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = math.inf
    yaml.representer.add_representer(type(None), _null)
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    yaml.dump(yaml.load(text), stream)
    if stream.getvalue() != text:
        yaml.indent(mapping=2, sequence=2, offset=0)
    return yaml


def _null(representer: Any, _value: None) -> Any:
    """Represent None as `null` rather than as an empty value."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _yaml(typ: str) -> Any:
    try:
        from ruamel.yaml import YAML  # noqa: PLC0415 - an extra
    except ImportError as error:
        message = "Writing YAML files with their comments needs ruamel.yaml, which is not installed."
        raise KitError(message, "Install llmd-oke[analysis].") from error
    return YAML(typ=typ)


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the whole old or the whole new text. A symbolic link is replaced, not
    followed.

    Raises:
        OSError: the directory can't be created or written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name.removeprefix('.')}.unfinished")
    unfinished.unlink(missing_ok=True)
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
