"""Problems as JSON."""

from typing import Any

import pytest
from llmd_base.errors import SET, Problem
from llmd_oke.cli.console import problem_document


@pytest.mark.parametrize(
    ("value", "plain"),
    [(None, None), (True, True), (2, 2), ("guide", "guide"), (float("nan"), "nan"), ([True], "[true]"), (SET, "(set)")],
)
def test_the_value_of_a_problem_in_json_output_is_plain_json(value: Any, plain: Any):
    assert problem_document(Problem("a", value, "b", "c"))["value"] == plain
