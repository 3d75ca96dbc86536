from typing import Any

import pytest
from llmd_base.errors import InvalidStack
from llmd_oke.config import validate
from stack_files import stack

KEYS = {"kind": "api-keys"}
JWT = {"kind": "jwt", "issuer": "https://id.example.com", "audiences": ["llm"]}


def refused(**door: Any) -> dict[str, str]:
    with pytest.raises(InvalidStack) as error:
        validate(stack(frontDoor=door))
    return {problem.path: str(problem) for problem in error.value.problems}


@pytest.mark.parametrize(
    ("door", "path", "words"),
    [
        ({"authentication": {**JWT, "jwksUri": "http://a.io/k"}}, "authentication.jwksUri", "begins with https"),
        ({"authentication": {**JWT, "jwksUri": "https://id.example.com"}}, "authentication.jwksUri", "has a path"),
        ({"authentication": {**JWT, "jwksUri": "https://a b/k"}}, "authentication.jwksUri", "host name"),
        ({"authentication": {**KEYS, "jwksUri": "https://a.io/k"}}, "authentication.jwksUri", "belongs to kind jwt"),
        ({"limits": {"tokensPerMinute": 0}}, "limits.tokensPerMinute", "at least 2"),
        ({"limits": {"clients": {"a": 0}}}, "limits.clients.a.requestsPerMinute", "at least 1"),
        ({"limits": {"clients": {"a": "6"}}}, "limits.clients.a", "it is text"),
        ({"limits": {"clients": {"a": {"models": "m"}}}}, "limits.clients.a.models", "accepted: a list"),
        ({"limits": {"clients": {"a": {"modles": ["m"]}}}}, "limits.clients.a.modles", "no such key"),
        ({"limits": {"clients": {"a": {"concurrentRequests": 1}}}}, "limits.clients.a.concurrentRequests", "at least"),
        ({"limits": {"concurrentRequests": "8"}}, "limits.concurrentRequests", "it is text"),
        ({"limits": {"models": "gpt-oss-120b"}}, "limits.models", "accepted: a list"),
        ({"limits": {"models": ["GPT"]}}, "limits.models[0]", "lower-case"),
        ({"limits": {"clients": {"a b": 2}}}, "limits.clients.a b", "letters, digits"),
    ],
)
def test_a_front_door_setting_of_invalid_value_is_refused_with_its_path(door: dict[str, Any], path: str, words: str):
    result = refused(**door)
    assert list(result) == [f"frontDoor.{path}"]
    assert words in result[f"frontDoor.{path}"]


def test_a_clients_limit_that_is_a_plain_number_means_requests_per_minute():
    limits = {"clients": {"a": 6, "b": {"requestsPerMinute": 6}}}
    door = validate(stack(frontDoor={"authentication": KEYS, "limits": limits})).front_door
    assert door.limits.clients["a"] == door.limits.clients["b"]
