"""The kubeconfig of a created cluster signs in as the stack's `oci:` config does."""

import json
from typing import Any

import pytest
from created_cluster import cluster_layer
from llmd_base.errors import KitError
from llmd_oke.program import program
from llmd_oke.testing import declared


def token_words(settings: dict[str, str], secret_keys: tuple[str, ...] = ()) -> list[str]:
    """Return what the operators' provider calls for credentials."""
    plain = {"llmd-oke:stack": json.dumps(cluster_layer()), **settings}
    stack = declared(program, config=plain, secret_keys=secret_keys)
    inputs: Any = stack.resource("pulumi:providers:kubernetes", "operators").inputs
    return json.loads(inputs["kubeconfig"])["users"][0]["user"]["exec"]["args"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"oci:configFileProfile": "PROD"}, ["--profile", "PROD"]),
        ({"oci:auth": "InstancePrincipal"}, ["--auth", "instance-principal"]),
        ({}, ["--region", "us-ashburn-1"]),
    ],
)
def test_operators_sign_in_as_the_stack_says_and_else_as_whoever_uses_it(settings: dict[str, str], words: list[str]):
    assert token_words(settings)[-2:] == words


def test_a_key_in_the_config_alone_is_refused_before_anything_in_the_cluster():
    with pytest.raises(KitError, match=r"oci:privateKey\), but no profile"):
        token_words({"oci:privateKey": "-----BEGIN PRIVATE KEY-----"}, ("oci:privateKey",))
