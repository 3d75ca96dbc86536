"""A job signs in to OCI by its own token: an issuer and an identity domain on this machine."""

import base64
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from http_for_tests import served
from job_tokens_for_tests import CLIENT, TENANCY, Issuers
from llmd_base.errors import KitError
from llmd_oke.access import federation
from llmd_oke.access.federation import TokenExchange, exchange_of, job_token, signed_in
from llmd_oke.access.sign_in import Auth, auth_of_environment
from llmd_oke.access.signing import api_key_signer

NAMES = (federation.DOMAIN, federation.CLIENT_ID, federation.CLIENT_SECRET)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuers]:
    with served(Issuers()) as servers:
        for name, value in servers.variables("reference").items():
            monkeypatch.setenv(name, value)
        yield servers


def exchange(there: Issuers) -> TokenExchange:
    found = exchange_of(dict(zip(NAMES, (f"{there.url}/domain", *CLIENT.split(":")), strict=True)))
    assert found
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.001)


def ignore(_: str) -> None:
    """Hear nothing."""


def test_a_ci_job_signs_in_as_the_user_that_its_identity_domain_maps_it_to(there: Issuers):
    before = dict(os.environ)
    with signed_in(exchange(there), ignore):
        signer = api_key_signer()
        assert auth_of_environment(os.environ) is Auth.API_KEY
        assert (os.environ["OCI_AUTH"], os.environ["OCI_CONFIG_FILE_PROFILE"]) == ("SecurityToken", "llmd-oke")
        home = Path(os.environ["TF_HOME_OVERRIDE"])
        files = {file.name: file.stat().st_mode & 0o777 for file in (home / ".oci").iterdir()}
        assert files == {"config": 0o600, "key.pem": 0o600, "token": 0o600}
        assert f"tenancy = {TENANCY}" in (home / ".oci" / "config").read_text()
    assert there.read(signer.key_id.removeprefix("ST$"))["sub"] == "deployer"
    public = signer.private_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert there.public_keys == [base64.b64encode(public).decode()]
    assert not home.exists()
    assert dict(os.environ) == before


def test_the_oci_session_of_a_ci_job_is_renewed_while_the_job_runs(there: Issuers):
    with signed_in(exchange(there), ignore, renewed_after_s=0.01):
        first = there.issued[0]
        wait_for(lambda: api_key_signer().key_id != f"ST${first}")
        assert api_key_signer().key_id.removeprefix("ST$") in there.issued[1:]
    assert len(set(there.public_keys)) == 1


def test_a_failed_session_renewal_is_reported_and_repeated(there: Issuers):
    told: list[str] = []
    with signed_in(exchange(there), told.append, renewed_after_s=0.01):
        there.refuses = True
        wait_for(lambda: len(told) > 1)
        there.refuses = False
        known = len(there.issued)
        wait_for(lambda: len(there.issued) > known)
    assert "refuses the job's token with 401" in told[0]


def test_a_ci_job_without_trust_or_token_is_told_what_it_lacks(there: Issuers, monkeypatch: pytest.MonkeyPatch):
    for name, value in there.variables("somebody's").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(KitError, match="the job's token with 401") as refused, signed_in(exchange(there), ignore):
        pytest.fail("signed in")
    assert "identity propagation trust" in (refused.value.remedy or "")
    assert "a secret" not in str(refused.value) + repr(exchange(there))
    monkeypatch.delenv(federation.JOB_URL)
    with pytest.raises(KitError) as refused, signed_in(exchange(there), ignore):
        pytest.fail("signed in")
    assert refused.value.remedy == "It needs the right `id-token: write`."


@pytest.mark.parametrize("domain", ["http://idcs.example", "idcs.example", "ftp://127.0.0.1", "https://"])
def test_an_invalid_identity_domain_address_is_refused_before_a_secret_is_sent(domain: str):
    with pytest.raises(KitError, match="is no address of an identity domain"):
        exchange_of(dict(zip(NAMES, (domain, "a", "b"), strict=True)))


@pytest.mark.parametrize("missing", NAMES)
def test_the_error_for_incomplete_federation_variables_names_the_missing_one(missing: str):
    with pytest.raises(KitError, match=f"^{missing} is missing"):
        exchange_of({**dict.fromkeys(NAMES, "https://domain.example"), missing: ""})


def test_a_ci_job_may_have_no_federation_variables_but_not_two_ways_to_sign_in():
    assert exchange_of(dict.fromkeys(NAMES, "")) is None
    with pytest.raises(KitError, match="OCI_AUTH=InstancePrincipal and OCI_TOKEN_EXCHANGE_DOMAIN_URL are two ways"):
        exchange_of({**dict.fromkeys(NAMES, "https://domain.example"), "OCI_AUTH": "InstancePrincipal"})


@pytest.mark.parametrize("audience", ["https://domain.example", ["https://domain.example", "urn:other"]])
def test_a_gitlab_job_signs_in_with_the_id_token_for_the_identity_domain(audience: object):
    tokens = Issuers()
    given = {"LLMD_OKE_PULUMI_ID_TOKEN": tokens.signed(aud="urn:pulumi:org:acme")}
    given["LLMD_OKE_OCI_ID_TOKEN"] = tokens.signed(aud=audience)
    with httpx2.Client() as http:
        assert job_token("https://domain.example", given, http) == given["LLMD_OKE_OCI_ID_TOKEN"]
        with pytest.raises(KitError, match="None of the job's tokens is for"):
            job_token("https://other.example", given, http)
