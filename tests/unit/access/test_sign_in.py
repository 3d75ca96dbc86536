"""Clusters are signed in to as the stack's `oci:` config signs in to OCI."""

import pytest
from llmd_oke.access.sign_in import Auth, SignIn, of_provider
from llmd_oke.errors import KitError


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, SignIn()),
        ({"configFileProfile": "PROD"}, SignIn(None, "PROD")),
        ({"auth": "InstancePrincipal"}, SignIn(Auth.INSTANCE_PRINCIPAL)),
        ({"auth": "securitytoken", "configFileProfile": "S"}, SignIn(Auth.API_KEY, "S")),
        ({"auth": "OKEWorkloadIdentity"}, SignIn(Auth.WORKLOAD_IDENTITY)),
        ({"tenancyOcid": "t", "region": "r"}, SignIn()),
        ({"fingerprint": "f", "privateKey": True, "configFileProfile": "P"}, SignIn(None, "P")),
    ],
)
def test_what_the_provider_is_told_is_what_clusters_are_signed_in_with(config: dict[str, object], expected: SignIn):
    assert of_provider(config) == expected


def test_a_key_without_a_profile_is_refused_by_the_names_of_its_parts():
    with pytest.raises(KitError, match=r"oci:userOcid, oci:privateKey\)") as refused:
        of_provider({"userOcid": "u", "privateKey": True})
    assert "oci:configFileProfile" in (refused.value.remedy or "")


def test_a_sign_in_that_tokens_have_not_is_refused_with_those_that_they_have():
    with pytest.raises(KitError, match="ResourcePrincipal") as refused:
        of_provider({"auth": "ResourcePrincipal"})
    assert "InstancePrincipal" in (refused.value.remedy or "")


def test_the_words_are_options_of_the_kits_commands():
    assert SignIn(Auth.API_KEY, "P").words == ["--auth", "api-key", "--profile", "P"]
    assert SignIn().words == []
