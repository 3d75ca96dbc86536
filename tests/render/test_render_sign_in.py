"""The kubeconfig of a created cluster signs in as the stack's `oci:` config does."""

import json
from typing import Any

import pulumi
import pytest
from created_cluster import cluster_layer
from llmd_base.errors import KitError
from llmd_oke.cluster.provider import credentials
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
def test_kubeconfigs_of_operators_use_the_stacks_oci_credentials_or_else_the_users(
    settings: dict[str, str], words: list[str]
):
    assert token_words(settings)[-2:] == words


def test_credential_settings_of_the_stacks_oci_config_are_arguments_of_its_providers():
    keys = (
        "auth",
        "configFileProfile",
        "fingerprint",
        "privateKeyPassword",
        "privateKeyPath",
        "tenancyOcid",
        "userOcid",
    )
    made = declared(
        lambda: pulumi.export("arguments", sorted(credentials())), config={f"oci:{key}": "given" for key in keys}
    )
    assert made.outputs["arguments"] == [
        *("auth", "config_file_profile", "fingerprint", "private_key_password", "private_key_path"),
        *("tenancy_ocid", "user_ocid"),
    ]


def test_the_oci_private_key_of_the_stacks_config_is_passed_to_providers_as_a_secret():
    def providers() -> None:
        keys = pulumi.Output.from_input(credentials()["private_key"])
        pulumi.export("secret", pulumi.Output.from_input(keys.is_secret()))

    assert declared(providers, config={"oci:privateKey": "pem"}).outputs == {"secret": True}


def test_an_oci_key_outside_the_provider_config_is_refused_before_any_change():
    with pytest.raises(KitError, match=r"oci:privateKey\), but no profile"):
        token_words({"oci:privateKey": "-----BEGIN PRIVATE KEY-----"}, ("oci:privateKey",))
