"""A tuner's answer written into a stack file: only the values change, comments and order stay."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, cast

from llmd_oke.config import CONFIG_KEY
from llmd_oke.errors import KitError


@dataclass(frozen=True)
class Choice:
    """What a model's entry in a stack file is to say."""

    topology: str
    copies: int
    max_num_seqs: int


def applied(text: str, model: int, choice: Choice) -> str:
    """The text of a stack file with the choice in its entry `models[model]`.

    Raises:
        KitError: ruamel.yaml is not installed, or the file has no such entry.
    """
    document = _load(text)
    entry = _entry(document, model)
    changes: dict[str, Any] = {"topology": choice.topology}
    if choice.copies != entry.get("copies", 1):
        changes["copies"] = choice.copies
    for key, value in changes.items():
        _put(entry, key, value, after="topology")
    engine = entry.get("engine")
    if engine is None:
        _put(entry, "engine", _flow_map({"maxNumSeqs": choice.max_num_seqs}), after="slo")
    else:
        engine["maxNumSeqs"] = choice.max_num_seqs
    return _dump(document, text)


def difference(before: str, after: str, name: str) -> str:
    """A unified diff; empty where nothing changes."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="")
    return "\n".join(lines)


def document_of(text: str) -> Any:
    """The content of a stack file's text as plain data."""
    return _yaml(typ="safe").load(text)


def _put(entry: Any, key: str, value: object, after: str) -> None:
    """Sets a value; a new key goes behind another."""
    if key in entry:
        entry[key] = value
        return
    keys = list(cast("Sequence[str]", entry))
    entry.insert(keys.index(after) + 1 if after in keys else len(keys), key, value)


def _entry(document: Any, model: int) -> Any:
    """The entry of a model."""
    stack = cast("Mapping[str, Any]", document)["config"][CONFIG_KEY]
    return stack["models"][model]


def _load(text: str) -> Any:
    return _round_trip(text).load(text)


def _dump(document: Any, text: str) -> str:
    stream = StringIO()
    _round_trip(text).dump(document, stream)
    return stream.getvalue()


def _round_trip(text: str) -> Any:
    """A YAML that writes lists indented as the file has them."""
    yaml = _yaml(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    yaml.dump(yaml.load(text), stream)
    if stream.getvalue() != text:
        yaml.indent(mapping=2, sequence=2, offset=0)
    return yaml


def _flow_map(values: Mapping[str, object]) -> Any:
    from ruamel.yaml.comments import CommentedMap  # noqa: PLC0415 - an extra; `_yaml` has asked for it

    made = CommentedMap(values)
    made.fa.set_flow_style()
    return made


def _yaml(typ: str) -> Any:
    try:
        from ruamel.yaml import YAML  # noqa: PLC0415 - an extra
    except ImportError as error:
        message = "Writing stack files needs ruamel.yaml, which is not installed."
        raise KitError(message, "Install llmd-oke[analysis].") from error
    return YAML(typ=typ)
