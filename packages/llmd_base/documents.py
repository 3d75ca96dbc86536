"""Nested documents: limits on size and nesting of YAML from outside before it is parsed, pydantic's errors in plain
words, and the values in a document with their paths.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from typing import Any, cast

import yaml
from pydantic_core import ErrorDetails, ValidationError

PATTERNS_IN_WORDS: dict[str, str] = {}
"""Description of the accepted text, by regular expression; the module that declares a pattern adds the pattern's
description here.
"""

Context = Mapping[str, Any]

FINITE, NOT_FINITE = "an ordinary number, such as 0.9", "it is infinite or not a number"
"""What is accepted in place of an infinite number or NaN, and why these are refused."""

ACCEPTED: dict[str, Callable[[Context], str]] = {
    "string_type": lambda _: "text (in quotes where it looks like a number)",
    "int_type": lambda _: "a whole number without quotes",
    "float_type": lambda _: "a number without quotes",
    "bool_type": lambda _: "true or false",
    "finite_number": lambda _: FINITE,
    "tuple_type": lambda _: "a list",
    "dict_type": lambda _: "an object",
    "literal_error": lambda context: str(context["expected"]),
    "union_tag_invalid": lambda context: " or ".join(str(context["expected_tags"]).rsplit(", ", 1)),
    "greater_than": lambda context: f"more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"at least {context['ge']:g}",
    "less_than": lambda context: f"less than {context['lt']:g}",
    "less_than_equal": lambda context: f"at most {context['le']:g}",
    "string_too_short": lambda context: f"at least {context['min_length']} characters",
    "string_too_long": lambda context: f"at most {context['max_length']} characters",
    "string_pattern_mismatch": lambda context: PATTERNS_IN_WORDS.get(
        context["pattern"], f"text that matches {context['pattern']}"
    ),
    "too_short": lambda context: f"at least {context['min_length']} item{'s' * (context['min_length'] != 1)}",
}

PARSED = {"int_parsing": "a whole number", "float_parsing": "a number", "int_from_float": "a whole number"}
"""Description of the accepted value, by pydantic's error type, for texts that don't parse as the type of the field."""

KIND_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (str, "text"),
    (int, "a whole number"),
    (float, "a number with a fraction"),
    (date, "a date"),
    (Mapping, "an object"),
    ((list, tuple), "a list"),
)


def kind_of(value: Any) -> str:
    """Return the type of a value in words for people who write YAML, such as `a list`."""
    for kind, name in KIND_NAMES:
        if isinstance(value, kind):
            return name
    return "empty (null)" if value is None else "another kind of value"


def context_of(details: ErrorDetails) -> Context:
    """Return the values that the message of a pydantic error refers to (the error's `ctx`), such as the limit that a
    number exceeds; empty if there are none.
    """
    return details.get("ctx", {})


def in_words(details: ErrorDetails) -> str:
    """Describe one pydantic error in words for users, without pydantic's type names; errors of stack files are
    described elsewhere.
    """
    match details["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "there is no such key"
        case "model_type" | "model_attributes_type" | "dataclass_type":
            return f"must be an object, not {kind_of(details['input'])}"
        case kind if kind in ACCEPTED:
            return f"must be {ACCEPTED[kind](context_of(details))}"
        case kind if kind in PARSED:
            return f"must be {PARSED[kind]}"
        case _:
            return details["msg"].removeprefix("Value error, ")


def explain(error: ValidationError, whole: str = "row") -> str:
    """Describe all errors of a validation in one line.

    Args:
        error: the validation error.
        whole: name of the document, for errors that concern the document as a whole.
    """
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or whole}: {in_words(problem)}" for problem in error.errors()
    )


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value of a document that is neither a mapping nor a list, with its path, such as `models[0].name`;
    `path` is the path of the document itself, with which all paths begin.
    """
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[object, object]", value).items():
            yield from leaves(part, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for index, part in enumerate(cast("list[object]", value)):
            yield from leaves(part, f"{path}[{index}]")
    else:
        yield path, value


MAX_BYTES = 4 * 2**20
"""Maximum length of a YAML text in characters; the largest benchmark report has 60 KiB."""

MAX_NESTING = 2000
"""Maximum nesting depth of mappings and sequences. libyaml has no limit: a deeper document overflows the stack and
crashes the process.
"""

MAX_VALUES = 200_000
"""Maximum number of values of a YAML text after its aliases are expanded: 400 bytes of aliases can expand to billions.
"""

_Events: Any = getattr(yaml, "CLoader", yaml.Loader)


class UnboundedError(yaml.YAMLError):
    """Error for a YAML text that would exhaust the parser's stack, memory or time."""


def require_bounded(text: str, most_values: float = MAX_VALUES) -> None:
    """Check length, nesting and number of expanded values of a YAML text by its parser events, before objects are
    built; takes time linear in the text's length.

    Raises:
        UnboundedError: the text is too long, nested too deeply, or expands to more than `most_values` values.
        yaml.YAMLError: the text is no YAML.
    """
    if len(text) > MAX_BYTES:
        raise UnboundedError(f"it is longer than {MAX_BYTES // 2**20} MiB")
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = [(None, 0)]
    events = cast("Iterable[yaml.Event]", yaml.parse(text, Loader=_Events))
    for event in events:
        size, anchor = 0, getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((anchor, 1))
            if len(open_) > MAX_NESTING:
                raise UnboundedError(f"it is nested too deeply, in more than {MAX_NESTING} levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
        elif isinstance(event, yaml.AliasEvent):
            size, anchor = sizes.get(str(anchor), 1), None
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
        if anchor:
            sizes[anchor] = size
        outer, before = open_[-1]
        open_[-1] = (outer, before + size)
        if before + size > most_values:
            raise UnboundedError(
                f"it has more than {most_values:,} values, counting those of aliases (*name) each time"
            )
