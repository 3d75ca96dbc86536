from datetime import date

import pytest
from llmd_base.errors import Problem


def test_a_tuple_in_an_error_message_is_shown_as_a_list():
    assert Problem("faultDomains", ("FAULT-DOMAIN-1",), "nothing", "why").short_value == "['FAULT-DOMAIN-1']"


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (date(2026, 1, 1), "2026-01-01"), ([None, False], "[null, false]"), ("guide", "'guide'")],
)
def test_a_value_in_an_error_message_is_written_as_in_a_stack_file(value: object, text: str):
    assert Problem("a", value, "b", "c").short_value == text
