"""YAML as Pulumi reads and hands on stack files, so that `check` sees what the program will see.

Pulumi reads them with Go's yaml.v3, which takes `1e6` and `0o17` for numbers, and `yes`, `on` and `12:30` for texts;
PyYAML, by YAML 1.1, does neither. Objects reach the program as JSON, which has one kind of number: `2.0` arrives as 2.
Source: https://github.com/go-yaml/yaml/blob/v3/resolve.go
"""

import math
import re
import sys
from typing import Any, ClassVar

import yaml

_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|[0-9][0-9_]*)$")
_OLD_OCTAL = re.compile(r"[-+]?0[0-7]+$")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9_]+)?$")
_SPECIAL = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_DATE: re.Pattern[str] = yaml.SafeLoader.timestamp_regexp

_EXPONENT = 1e21
"""From here on numbers are written to JSON with an exponent, as floats; below it whole ones look like integers."""

_LARGEST = int(sys.float_info.max)

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


class Loader(_Fast):
    """Reads a stack file."""

    yaml_implicit_resolvers: ClassVar[Any] = _RESOLVERS


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that would be read as something else."""

    yaml_implicit_resolvers: ClassVar[Any] = _RESOLVERS


def text_of(document: Any) -> str:
    """A document as YAML from which Pulumi reads the same."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False)


def number(text: str) -> int | float | str:
    """The number that a plain text spells; the text itself where that is too large."""
    if _SPECIAL.match(text):
        return float(text.replace(".", ""))
    plain = text.replace("_", "")
    if _OLD_OCTAL.match(plain):
        return int(plain, 8)
    if _INT.match(plain) and not plain.lstrip("-+").startswith(("08", "09")):
        whole = int(plain) if plain.lstrip("-+").isdigit() else int(plain, 0)
        return whole if abs(whole) < _EXPONENT else float(whole) if abs(whole) < _LARGEST else text
    value = float(plain)
    if math.isinf(value):
        return text
    return int(value) if value.is_integer() and abs(value) < _EXPONENT else value


def _constructed(loader: Any, node: yaml.ScalarNode) -> int | float | str:
    return number(str(loader.construct_scalar(node)))


Loader.add_constructor(f"{_TAG}int", _constructed)
Loader.add_constructor(f"{_TAG}float", _constructed)
