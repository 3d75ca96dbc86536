"""What has to go before something else can come."""

from llmd_oke.operations.order import displacement
from previews_for_tests import recorded

SWITCH = recorded("switch")
"""16 aggregated servers with one GPU become 8 prefill servers with one and 4 decode servers with two."""


def test_on_full_nodes_the_old_servers_go_first():
    found = displacement(SWITCH, gpus=16)
    assert found is not None
    assert [change.name for change in found.first] == ["m-aggregated"]
    assert (found.wanted_gpus, found.free_gpus) == (16, 0)
    assert "m-aggregated must go before they come" in str(found)


def test_with_some_room_but_not_enough_they_go_first_too():
    assert displacement(SWITCH, gpus=24) is not None


def test_with_room_for_both_nothing_goes_early():
    assert displacement(SWITCH, gpus=32) is None


def test_servers_that_are_replaced_go_first_by_themselves():
    assert displacement(recorded("replace"), gpus=16) is None
