"""Values in the Lua programs of Envoys."""

from pathlib import Path

import pytest
from llmd_oke.serving import client_requests
from llmd_oke.serving.client_requests import lua_functions, lua_literal


def test_lua_programs_of_envoys_have_their_functions_without_the_lines_of_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made.lua").write_text("-- what it does\nlocal a = 1  -- one\n\nfunction f() end\n")
    monkeypatch.setattr(client_requests, "values_folder", lambda: tmp_path)
    assert lua_functions("made") == "local a = 1  -- one\n\nfunction f() end\n"


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
