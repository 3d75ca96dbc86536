"""The page of traps names tests that there are."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "traps.md"
NAMES = re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE.read_text())


def test_each_row_names_a_test():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| what")]
    assert rows
    assert [row for row in rows if "::test_" not in row] == []


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMES)), ids=lambda text: text.removesuffix(".py"))
def test_a_test_that_the_page_names_is_there(file: str, name: str):
    assert f"def {name}(" in (TESTS / file).read_text()
