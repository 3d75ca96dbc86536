"""The command line of `vllm serve` as argparse sees it, made from `values/rehearsal/vllm_flags.yaml`."""

import argparse
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NoReturn, cast

from llmd_oke.catalogue.files import Entry, entry
from llmd_oke.rehearsal.vllm.refusal import Refusal

_SUFFIXES = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
_FLAG = re.compile(r"--|-[A-Za-z]+\.")
"""A flag's long name, or its short name with a key of its JSON object."""


class Flag(Entry):
    """One flag; `boolean` has a --no- form, `switch` has none, `optional` may stand without a value."""

    kind: Literal["text", "integer", "size", "number", "boolean", "switch", "json", "json-list", "list", "optional"]
    aliases: tuple[str, ...] = ()
    default: str | int | float | bool | None = None
    choices: tuple[str | int, ...] | None = None


class FlagFile(Entry):
    """`values/rehearsal/vllm_flags.yaml`."""

    name: str
    groups: dict[str, dict[str, Flag]]


@cache
def known_flags() -> dict[str, Flag]:
    """All flags by their name without dashes.

    Raises:
        RuntimeError: the package came without its data.
    """
    found = entry("rehearsal", "vllm_flags", FlagFile)
    if found is None:
        raise RuntimeError("values/rehearsal/vllm_flags.yaml is missing from this installation")
    return {name: flag for group in found.groups.values() for name, flag in group.items()}


def parse(argv: Sequence[str], program: str) -> argparse.Namespace:
    """The values of the flags in `argv`, with vLLM's defaults where the simulation needs them.

    Raises:
        Refusal: exit code 2, with argparse's own words.
    """
    namespace, rest = _parser(program).parse_known_args(_normalised(argv))
    if rest:
        # `vllm serve` is a subcommand: what it leaves over, the parser of `vllm` itself complains about.
        raise _usage_refusal(program.partition(" ")[0], f"unrecognized arguments: {' '.join(rest)}")
    return namespace


def size(text: str) -> int:
    """An integer that may end in k, m, g (thousands) or K, M, G (powers of 1024), as vLLM takes token counts."""
    factor = _SUFFIXES.get(text[-1:], 1)
    return int(float(text[:-1]) * factor) if factor != 1 else int(text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _usage_refusal(self.prog, message)


def _usage_refusal(program: str, message: str) -> Refusal:
    return Refusal(2, f"usage: vllm serve [model_tag] [options]\n{program}: error: {message}")


@cache
def _parser(program: str) -> _Parser:
    parser = _Parser(prog=program, add_help=False, allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    for name, flag in known_flags().items():
        parser.add_argument(f"--{name}", *flag.aliases, dest=name.replace("-", "_"), **_options(name, flag))
    return parser


def _options(name: str, flag: Flag) -> dict[str, Any]:
    """What `add_argument` needs for a flag."""
    match flag.kind:
        case "boolean":
            return {"action": argparse.BooleanOptionalAction, "default": flag.default}
        case "switch":
            return {"action": "store_true"}
        case "list":
            return {"nargs": "+"}
        case "optional":
            return {"nargs": "?", "const": True}
        case "json" | "json-list":
            return {"type": _json, "action": _Merge if flag.kind == "json" else "store", "default": None}
        case kind:
            converter = {"text": str, "integer": int, "size": size, "number": float}[kind]
            return {"type": converter, "default": flag.default, "choices": flag.choices, "metavar": _metavar(name)}


def _metavar(name: str) -> str:
    return name.upper().replace("-", "_")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to <function loads>.") from error


class _Merge(argparse.Action):
    """A JSON object that may come whole or key by key."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse's form
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002 - argparse's form
    ) -> None:
        before: object = getattr(namespace, self.dest)
        if isinstance(before, dict) and isinstance(values, dict):
            values = cast("dict[str, Any]", before) | cast("dict[str, Any]", values)
        setattr(namespace, self.dest, values)


def _normalised(argv: Sequence[str]) -> list[str]:
    """vLLM takes underscores for dashes in a flag's name, and `--flag.key value` for a key of a JSON object."""
    words: list[str] = []
    pending: str | None = None
    for word in argv:
        if pending is not None:
            words.append(_nested(pending, word))
            pending = None
            continue
        name, equals, value = word.partition("=")
        if not _FLAG.match(name):
            words.append(word)
            continue
        flag, dot, path = name.partition(".")
        flag = flag.replace("_", "-")
        if not dot:
            words.append(flag + equals + value)
            continue
        words.append(flag)
        if equals:
            words.append(_nested(path, value))
        else:
            pending = path
    return words


def _nested(path: str, text: str) -> str:
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError:
        value = text
    for key in reversed(path.split(".")):
        value = {key: value}
    return json.dumps(value)
