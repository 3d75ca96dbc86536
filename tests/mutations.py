"""Documents in which parts are other than anybody meant them to be."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from llmd_rehearsal.plugin_values import is_list, is_map

ODD_TEXTS = (
    "",
    " ",
    "\x00",
    "\x1b[2J",
    "[/x]",
    "../x",
    "a/b/c",
    "\u202e",
    "x" * 5000,
    "2026-13-45",
    "-1",
    "1e999",
    "{",
    "*a",
)
ODD_NUMBERS = (0, -1, 1, 2**63, 10**400, 1e308, float("inf"), float("nan"), 0.5)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from(ODD_TEXTS),
    st.text(max_size=8),
    # new ones each time, because parts of them are replaced too
    st.sampled_from(("[]", "{}", "[[]]", '{"": {}}')).map(json.loads),
)


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """All places in a document."""
    yield path
    inner = value.items() if is_map(value) else enumerate(value) if is_list(value) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, documents: list[Any], values: st.SearchStrategy[Any] = VALUES) -> Any:
    """One of the documents with one to three of its parts replaced by `values`, taken away or named otherwise."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(document))))
        if not path:
            continue
        around: Any = document
        for step in path[:-1]:
            around = around[step]
        what = draw(st.sampled_from(["replace", "remove", "rename"]))
        if what == "replace":
            around[path[-1]] = draw(values)
        elif is_list(around):
            del around[int(path[-1])]
        else:
            value = around.pop(path[-1])
            if what == "rename":
                around[draw(st.text(max_size=8))] = value
    return document
