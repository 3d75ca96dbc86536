"""Profiles of OCI's configuration file."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from llmd_oke.access import api_key
from llmd_oke.errors import KitError


def test_a_profile_names_the_key_and_holds_it(oci_config: Path, key: RSAPrivateKey):
    signer = api_key.signer(oci_config, "DEFAULT")
    assert signer.key_id == "ocid1.tenancy.oc1..t/ocid1.user.oc1..u/aa:bb"
    assert signer.private_key.private_numbers() == key.private_numbers()


def test_a_session_signs_with_its_token(oci_config: Path):
    assert api_key.signer(oci_config, "SESSION").key_id == "ST$session-token"


def test_file_and_profile_are_found_as_ocis_own_tools_do(oci_config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OCI_CLI_CONFIG_FILE", str(oci_config))
    monkeypatch.setenv("OCI_CLI_PROFILE", "SESSION")
    assert api_key.signer().key_id == "ST$session-token"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("user=ocid1.user.oc1..u", "", "There is no user in profile DEFAULT"),
        ("fingerprint=aa:bb", "fingerprint=", "There is no fingerprint in profile DEFAULT"),
        ("key.pem", "other.pem", "can't be read"),
        ("[DEFAULT]", "DEFAULT]", "can't be read as OCI's configuration file"),
    ],
)
def test_what_is_wrong_with_a_profile_is_told(oci_config: Path, old: str, new: str, message: str):
    oci_config.write_text(oci_config.read_text().replace(old, new))
    with pytest.raises(KitError, match=message):
        api_key.signer(oci_config, "DEFAULT")


def test_a_missing_file_or_profile_is_told(oci_config: Path, tmp_path: Path):
    with pytest.raises(KitError, match="There is no OCI configuration file"):
        api_key.signer(tmp_path / "none")
    with pytest.raises(KitError, match="has no profile OTHER"):
        api_key.signer(oci_config, "OTHER")


def test_keys_may_have_a_pass_phrase(locked_key_pem: str, key: RSAPrivateKey):
    opened = api_key.load_key(locked_key_pem, "open sesame", "the profile")
    assert opened.private_numbers() == key.private_numbers()
    with pytest.raises(KitError, match="needs a pass phrase"):
        api_key.load_key(locked_key_pem, None, "the profile")
    with pytest.raises(KitError, match="pass phrase is wrong"):
        api_key.load_key(locked_key_pem, "open", "the profile")


def test_errors_never_show_the_key(key_pem: str):
    with pytest.raises(KitError) as refused:
        api_key.load_key(key_pem.replace("MII", "XXX"), None, "the profile")
    assert key_pem[40:80] not in str(refused.value)
