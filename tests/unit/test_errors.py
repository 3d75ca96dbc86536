from datetime import date

import pytest
from llmd_base.errors import SET, Problem


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (date(2026, 1, 1), "2026-01-01"),
        ([None, False], "[null, false]"),
        (("a",), "['a']"),
        ("guide", "'guide'"),
        ([["a" * 30] * 9], "a list of 1 item"),
        (("a" * 30,) * 9, "a list of 9 items"),
        ({name * 30: name * 30 for name in "abc"}, "an object of 3 keys"),
    ],
)
def test_a_value_in_an_error_message_is_written_as_in_a_stack_file_or_as_its_size(value: object, text: str):
    assert Problem("a", value, "b", "c").short_value == text


@pytest.mark.parametrize(
    ("mark", "escaped"),
    [("\r\n", r"\r\n"), ("\x1b[2K", r"\x1b[2K"), ("\u202e", r"\u202e"), ("\u2028", r"\u2028"), ("\x85", r"\x85")],
)
@pytest.mark.parametrize("part", ["path", "file", "accepted", "why"])
def test_no_name_in_a_file_can_forge_lines_of_output(part: str, mark: str, escaped: str):
    parts = {"path": "keys.alice", "accepted": "b", "why": "c", "file": "values/a.yaml"}
    text = str(Problem(value=None, **{**parts, part: f"bob{mark}x = 'y'"}))
    assert f"bob{escaped}x = 'y'" in text
    assert mark not in text


def test_letters_of_all_languages_are_shown_as_they_are():
    assert Problem("tags.Größe", None, "b", "c").place == "tags.Größe"


def test_a_value_that_is_not_shown_has_no_quotes():
    assert str(Problem("canaries", SET, "nothing", "why")) == "canaries = (set): why (accepted: nothing)"
