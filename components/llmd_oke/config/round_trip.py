"""YAML files of which some values change: comments, order and quotes stay."""

import difflib
from collections.abc import Mapping
from io import StringIO
from typing import Any

from llmd_oke.errors import KitError


def load(text: str) -> Any:
    """The content of a YAML text, to be changed and given to `dump`.

    Raises:
        KitError: ruamel.yaml is not installed.
    """
    return _round_trip(text).load(text)


def dump(document: Any, text: str) -> str:
    """The text of a changed document, laid out as `text`, which it was loaded from."""
    stream = StringIO()
    _round_trip(text).dump(document, stream)
    return stream.getvalue()


def new_map(values: Mapping[str, object]) -> Any:
    """A map to be put into a document, a line for each key."""
    from ruamel.yaml.comments import CommentedMap  # noqa: PLC0415 - an extra; `load` has asked for it

    made = CommentedMap(values)
    made.fa.set_block_style()
    return made


def plain(text: str) -> Any:
    """The content of a YAML text as plain data."""
    return _yaml(typ="safe").load(text)


def difference(before: str, after: str, name: str) -> str:
    """A unified diff; empty where nothing changes."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="")
    return "\n".join(lines)


def _round_trip(text: str) -> Any:
    """A YAML that writes lists indented as the file has them."""
    yaml = _yaml(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.representer.add_representer(type(None), _null)
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    yaml.dump(yaml.load(text), stream)
    if stream.getvalue() != text:
        yaml.indent(mapping=2, sequence=2, offset=0)
    return yaml


def _null(representer: Any, _value: None) -> Any:
    """`null`, which says more than nothing does."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _yaml(typ: str) -> Any:
    try:
        from ruamel.yaml import YAML  # noqa: PLC0415 - an extra
    except ImportError as error:
        message = "Writing YAML files with their comments needs ruamel.yaml, which is not installed."
        raise KitError(message, "Install llmd-oke[analysis].") from error
    return YAML(typ=typ)
