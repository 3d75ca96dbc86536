"""Envoy's configuration of tokens, as data; rehearsals of the front door show what it does."""

import json
from typing import Any

import pytest
from llmd_oke.serving import authentication

ISSUER, AUDIENCES = "https://id.example.com", ["llm"]


def filter_config(text: str) -> dict[str, Any]:
    (resource,) = json.loads(text)["resources"]
    return resource["typed_config"]


@pytest.mark.parametrize(("key_set", "uri"), [('{"keys": []}', None), (None, f"{ISSUER}/jwks.json")])
def test_every_path_needs_a_token_that_expires_for_an_audience_and_names_its_client(
    key_set: str | None, uri: str | None
):
    config = filter_config(authentication.tokens(ISSUER, AUDIENCES, key_set, uri))
    assert config["rules"] == [{"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}}]
    provider = config["providers"]["issuer"]
    assert (provider["issuer"], provider["audiences"]) == (ISSUER, AUDIENCES)
    assert provider["require_expiration"] is True
    if uri is None:
        assert provider["local_jwks"] == {"inline_string": key_set}
    else:
        assert provider["remote_jwks"]["http_uri"]["uri"] == uri
    assert provider["claim_to_headers"] == [
        {"header_name": authentication.CLIENT_HEADER, "claim_name": "sub"},
    ]
