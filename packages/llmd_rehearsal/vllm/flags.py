"""Values of vLLM's flags from a container's command, parsed as `vllm serve` does.

The flags are those of the table of engine settings and, for all others, of `values/vllm/flags.yaml`.
"""

import argparse
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import Any, NoReturn, cast

from llmd_base.records import document
from llmd_oke.catalogue.releases import Release
from llmd_oke.config.engine import Flag, flags_by_name
from llmd_pods.compiled_code.start import server_command
from llmd_pods.kv_cache_disk import serve

_SUFFIXES = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


_FLAG = re.compile(r"--|-[A-Za-z]+\.")
"""Pattern of the begin of a flag: its long name, or its short name with a key of its JSON object."""


class StartRefusal(Exception):
    """Exit of a server before it serves, with the exit code and the last log text of vLLM."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.text = text


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _usage_refusal(self.prog, message)


def _usage_refusal(program: str, message: str) -> StartRefusal:
    return StartRefusal(2, f"usage: vllm serve [model_tag] [options]\n{program}: error: {message}")


def parsed(argv: Sequence[str], release: Release | None) -> argparse.Namespace:
    """Return the flags' values of a command that begins with `vllm serve` or `python3 -m
    vllm.entrypoints.openai.api_server`, with vLLM's defaults, as far as the simulation needs them, for flags that the
    command doesn't set.
    """
    words = server_command(serve.server_command(argv))
    name = PurePosixPath(words[0]).name if words else ""
    if name == "vllm" and words[1:2] == ["serve"]:
        program, flags = "vllm serve", words[2:]
    elif name.startswith("python") and words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
        program, flags = "api_server.py", words[3:]
    else:
        raise StartRefusal(
            2,
            f"llmd-oke rehearsal: {' '.join(words)[:200]!r} can't be simulated; accepted are `vllm serve MODEL ...` "
            "and `python3 -m vllm.entrypoints.openai.api_server ...`, without a shell around them.",
        )
    known = [name for name, flag in flags_by_name().items() if release is None or release.has_flag(flag)]
    namespace, rest = _parser(program, frozenset(known)).parse_known_args(_normalised(flags))
    if rest:
        # `vllm serve` is a subcommand: what it leaves over, the parser of `vllm` itself complains about.
        raise _usage_refusal(program.partition(" ")[0], f"unrecognized arguments: {' '.join(rest)}")
    return namespace


@cache
def _parser(program: str, known: frozenset[str]) -> _Parser:
    """Return the parser of a program with the `known` flags; all other flags have their defaults."""
    parser = _Parser(prog=program, add_help=False, allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    for name, flag in flags_by_name().items():
        if name in known:
            parser.add_argument(f"--{name}", *flag.aliases, dest=name.replace("-", "_"), **_options(name, flag))
        else:
            parser.set_defaults(**{name.replace("-", "_"): flag.default})
    return parser


def _options(name: str, flag: Flag) -> dict[str, Any]:
    """Return the arguments of `ArgumentParser.add_argument` for a flag."""
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
            converter = {"text": str, "integer": int, "size": human_readable_int, "number": float}[kind]
            metavar = name.upper().replace("-", "_")
            return document("type default choices metavar", flag, type=converter, metavar=metavar)


def human_readable_int(text: str) -> int:
    """Return an integer from text that may end in k, m, g (powers of 1000) or K, M, G (powers of 1024), like vLLM."""
    factor = _SUFFIXES.get(text[-1:], 1)
    return int(float(text[:-1]) * factor) if factor != 1 else int(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to <function loads>.") from error


class _Merge(argparse.Action):
    """Action of argparse for a flag with a JSON object, which may be given as a whole or key by key."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse's form
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002 - argparse's form
    ) -> None:
        earlier: object = getattr(namespace, self.dest)
        if isinstance(earlier, dict) and isinstance(values, dict):
            values = cast("dict[str, Any]", earlier) | cast("dict[str, Any]", values)
        setattr(namespace, self.dest, values)


def _normalised(argv: Sequence[str]) -> list[str]:
    """Return the arguments with dashes for underscores in flags' names, and `--flag.key value` as a JSON object."""
    expanded: list[str] = []
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        if not _FLAG.match(name):
            expanded.append(word)
            continue
        flag, dot, path = name.partition(".")
        flag = flag.replace("_", "-")
        if not dot:
            expanded.append(flag + equals + value)
            continue
        expanded.append(flag)
        following = value if equals else next(rest, None)
        if following is None:
            continue
        try:
            nested: Any = json.loads(following)
        except json.JSONDecodeError:
            nested = following
        for key in reversed(path.split(".")):
            nested = {key: nested}
        expanded.append(json.dumps(nested))
    return expanded
