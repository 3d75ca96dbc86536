"""How problems of a stack file are told."""

from llmd_oke.errors import Problem


def test_a_list_is_shown_as_a_list():
    assert Problem("faultDomains", ("FAULT-DOMAIN-1",), "nothing", "why").short_value == "['FAULT-DOMAIN-1']"
