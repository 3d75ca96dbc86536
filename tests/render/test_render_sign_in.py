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


def test_with_the_profile_of_the_stack():
    assert token_words({"oci:configFileProfile": "PROD"})[-2:] == ["--profile", "PROD"]


def test_as_the_principal_of_the_stack():
    assert token_words({"oci:auth": "InstancePrincipal"})[-2:] == ["--auth", "instance-principal"]


def test_as_whoever_uses_it_where_the_stack_says_nothing():
    assert token_words({})[-2:] == ["--region", "us-ashburn-1"]


def test_a_key_in_the_config_alone_is_refused_before_anything_in_the_cluster():
    with pytest.raises(KitError, match=r"oci:privateKey\), but no profile"):
        token_words({"oci:privateKey": "-----BEGIN PRIVATE KEY-----"}, ("oci:privateKey",))
