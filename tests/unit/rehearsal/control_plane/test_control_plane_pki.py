import shutil

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID
from llmd_oke.rehearsal.control_plane import pki


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return pki.prepare(tmp_path_factory.mktemp("pki") / "pki")


def certificate(pair):
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes())


@pytest.mark.parametrize("name", ["api_server", "admin", "controller_manager", "scheduler"])
def test_every_certificate_is_signed_by_the_authority_for_its_own_key(keys, name):
    pair = getattr(keys, name)
    certificate(pair).verify_directly_issued_by(certificate(keys.authority))
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    assert certificate(pair).public_key() == key.public_key()


def test_the_api_server_is_known_by_the_names_and_addresses_that_pods_use(keys):
    names = certificate(keys.api_server).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc.cluster.local" in names.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["127.0.0.1", "10.244.0.1", "10.96.0.1"]


@pytest.mark.parametrize(
    ("name", "user", "groups"),
    [
        ("admin", "kubernetes-admin", ["system:masters"]),
        ("controller_manager", "system:kube-controller-manager", ["system:masters"]),
        ("scheduler", "system:kube-scheduler", []),
    ],
)
def test_users_and_groups_are_those_that_the_api_server_knows(keys, name, user, groups):
    subject = certificate(getattr(keys, name)).subject
    assert [part.value for part in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [user]
    assert [part.value for part in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == groups


def test_private_keys_are_the_users_own(keys):
    assert keys.folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in keys.folder.glob("*.key")} == {0o600}


def test_what_is_there_is_used_again(keys):
    before = keys.authority.certificate.read_bytes()
    assert pki.prepare(keys.folder).authority.certificate.read_bytes() == before


def test_an_incomplete_folder_is_made_anew_as_a_whole(keys, tmp_path):
    shutil.copytree(keys.folder, tmp_path / "pki")
    (tmp_path / "pki/admin.key").unlink()
    renewed = pki.prepare(tmp_path / "pki")
    assert renewed.authority.certificate.read_bytes() != keys.authority.certificate.read_bytes()
    certificate(renewed.admin).verify_directly_issued_by(certificate(renewed.authority))
