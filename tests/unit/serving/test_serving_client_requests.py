"""Values in the Lua programs of Envoys."""

import pytest
from llmd_oke.serving.client_requests import lua_literal


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ('say "a\\b"', '"say \\"a\\\\b\\""'),
        ({"a": [1, 2.5], "b": None}, '{["a"] = {1, 2.5}, ["b"] = nil}'),
        ([True, False], "{true, false}"),
    ],
)
def test_values_are_lua_literals_in_which_quotes_and_backslashes_are_escaped(value: object, literal: str) -> None:
    assert lua_literal(value) == literal
