"""Check."""

import pytest
from llmd_oke.rehearsal.oci_plugin.inputs import Naming, check
from llmd_oke.rehearsal.oci_plugin.schemas import resource_of
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN

POOL = resource_of("oci:ContainerEngine/nodePool:NodePool")
GATEWAY = resource_of("oci:Core/internetGateway:InternetGateway")
LEAST = {"clusterId": "c", "compartmentId": "p", "nodeShape": "s"}


def test_a_name_is_made_up_and_kept():
    first = check(POOL, {}, LEAST, Naming("gpu", seed=b"1")).inputs
    again = check(POOL, first, LEAST, Naming("gpu", seed=b"2")).inputs
    assert first["name"].startswith("gpu-")
    assert first["__defaults"] == ["name"]
    assert again["name"] == first["name"]


def test_the_engines_own_proposal_is_the_name():
    assert check(POOL, {}, LEAST, Naming("gpu", proposed="gpu-of-mine")).inputs["name"] == "gpu-of-mine"


def test_a_name_must_be_given_where_none_may_be_made_up():
    with pytest.raises(Refusal, match="automatic naming is disabled"):
        check(POOL, {}, LEAST, Naming("gpu", allowed=False))


def test_inputs_are_brought_into_their_types():
    news = {"compartmentId": 5, "vcnId": UNKNOWN, "enabled": "false"}
    assert check(GATEWAY, {}, news, Naming("g")).inputs == {
        "__defaults": [],
        "compartmentId": "5",
        "vcnId": UNKNOWN,
        "enabled": False,
    }


@pytest.mark.parametrize(
    ("news", "words"),
    [
        ({"enabled": "maybe"}, 'enabled: strconv.ParseBool: parsing "maybe": invalid syntax'),
        ({"vcnId": ["a"]}, "vcn_id: expected type 'string', got unconvertible type 'list'"),
        ({"freeformTags": "a"}, "freeform_tags: expected type 'map', got unconvertible type 'str'"),
    ],
)
def test_a_value_that_no_conversion_helps_is_an_error_of_the_call(news: dict[str, object], words: str):
    with pytest.raises(Refusal, match=words):
        check(GATEWAY, {}, {"compartmentId": "p", **news}, Naming("g"))


def test_everything_wrong_is_told_at_once():
    failures = check(GATEWAY, {}, {"bogus": 1, "odd": 2}, Naming("g")).failures
    assert [failure.partition(".")[0] for failure in failures] == [
        "Invalid or unknown key",
        "Invalid or unknown key",
        "Missing required argument",
        "Missing required argument",
    ]
