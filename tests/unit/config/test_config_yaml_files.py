"""YAML as Pulumi reads it; `tests/engine/test_engine_cli.py` holds it to the real Pulumi."""

import math
import sys
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.config import yaml_files
from llmd_oke.config.yaml_files import Loader, dump, load, move_key, number, text_of, value_at


def read(text: str) -> object:
    return yaml.load(text, Loader)["a"]  # noqa: S506 - a safe loader


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1_000_000),
        ("-2e-3", -0.002),
        ("2.0", 2),
        ("0o17", 15),
        ("017", 15),
        ("08", 8),
        ("018", 18),
        ("1_000", 1000),
        ("1__0", 10),
        ("0_17", 15),
        ("0x1F", 31),
        (str(10**30), 1e30),
        (str(int(sys.float_info.max)), sys.float_info.max),
        ("-.Inf", -math.inf),
        ("true", True),
        ("~", None),
        ("", None),
        ("2026-11-02", date(2026, 11, 2)),
    ],
)
def test_numbers_are_parsed_as_in_yaml_1_2_and_other_values_as_in_yaml_1_1(text: str, value: object) -> None:
    result = read(f"a: {text}")
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        *("yes", "on", "n", "12:30:45", "1e400", "0o8", "0x_", "1.2.3", "=", "'1e6'", '"true"'),
        str(2 * int(sys.float_info.max)),
        pytest.param("1" * 5000, id="5000 digits"),
    ],
)
def test_yes_on_and_12_30_45_are_parsed_as_text_unlike_in_yaml_1_1(text: str) -> None:
    assert read(f"a: {text}") == text.strip("'\"")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e20", 10**20),
        ("1e21", 1e21),
        ("999999999999999868928", 999999999999999868928),
        ("1000000000000000000000", 1e21),
    ],
)
def test_numbers_are_whole_up_to_the_size_at_which_pulumi_writes_an_exponent(text: str, value: float) -> None:
    read = number(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(("levels", "problems"), [(50, 0), (51, 1)])
def test_a_value_in_a_stack_file_may_be_in_50_lists_one_in_the_other(
    tmp_path: Path, levels: int, problems: int
) -> None:
    file = tmp_path / "lists.yaml"
    file.write_text("[" * levels + "1" + "]" * levels)
    assert len(list(yaml_files.read(file).problems())) == problems


@given(st.text("0123456789.eExob_+-:~yn", max_size=8) | st.integers() | st.floats(allow_nan=False) | st.booleans())
def test_a_value_written_as_yaml_is_read_back_equal(value: object) -> None:
    assert read(text_of({"a": value})) == value


@pytest.mark.parametrize(
    "text",
    ["a:\n- b: 1\n  c:\n  - d\n  e:\n    f: 1\n", "a:\n  - b: 1\n    c:\n      - d\n", f"a: {'word ' * 2000}end\n"],
    ids=["lists below their keys", "indented lists", "a long line"],
)
def test_an_unchanged_document_is_written_in_the_layout_that_it_has(text: str) -> None:
    assert dump(load(text), text) == text


@pytest.mark.parametrize(
    ("path", "value"), [("a[1].b", 2), ("a[2]", None), ("a[2].b", None), ("a.b", None), ("a[0].b", None)]
)
def test_a_path_has_the_value_that_the_document_has_there_or_none(path: str, value: object) -> None:
    assert value_at({"a": [1, {"b": 2}]}, path) == value


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a:\n  old: 1  # one\n", "a:\n  longer: 1  # one\n"),
        ("a:\n  old:\n    # one\n    x: 1\n", "a:\n  longer:\n    # one\n    x: 1\n"),
        ("a:\n  old: 1     # one\nb:\n  c: 1\n", "a: {}\nb:\n  c: 1\n  longer: 1  # one\n"),
    ],
)
def test_a_renamed_or_moved_key_takes_its_comment_along(before: str, after: str) -> None:
    document = load(before)
    move_key(document["a"], "old", document.get("b", document["a"]), "longer")
    assert dump(document, before) == after
