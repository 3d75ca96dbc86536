"""Names of tests: the page of traps has those that there are, and none is too long for a line of a report."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "traps.md"
NAMES = re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE.read_text())


def test_each_row_of_the_traps_page_names_a_test_that_exists():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| what")]
    assert rows
    assert [row for row in rows if "::test_" not in row] == []
    texts = {file: (TESTS / file).read_text() for file, _ in NAMES}
    assert [f"{file}::{name}" for file, name in NAMES if f"def {name}(" not in texts[file]] == []


FINDINGS = {"O": 23, "S": 17}
"""Findings of which each has a row of the page with its number, by the letter that they are numbered with."""


@pytest.mark.parametrize("letter", FINDINGS)
def test_every_number_of_a_trap_finding_occurs_in_a_row_of_the_traps_page(letter: str):
    ends = re.findall(r"^\| [^|]*\(([A-Z]\d+(?:, [A-Z]\d+)*)\) \|", PAGE.read_text(), re.MULTILINE)
    numbers = [int(number) for end in ends for number in re.findall(rf"\b{letter}(\d+)", end)]
    assert sorted(set(numbers)) == list(range(1, FINDINGS[letter] + 1))


def test_no_two_rows_of_the_traps_page_describe_the_same_case():
    first = [line.split(" | ")[0] for line in PAGE.read_text().splitlines() if "::test_" in line]
    assert sorted(first) == sorted(set(first))


def test_no_test_name_has_more_than_80_characters():
    names = [name for file in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())]
    assert names
    assert [name for name in names if len(name) > 80] == []
