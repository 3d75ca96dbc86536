"""The control plane of a local cluster: its keys, its processes."""

import base64
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID
from llmd_oke.values import read_yaml
from llmd_rehearsal import control_plane


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return control_plane.prepare_pki(tmp_path_factory.mktemp("pki") / "pki")


def certificate(pair):
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes())


@pytest.mark.parametrize("name", ["api_server", "admin", "controller_manager", "scheduler", "front_proxy"])
def test_each_certificate_of_the_control_plane_is_signed_for_its_own_key(keys, name):
    pair = getattr(keys, name)
    certificate(pair).verify_directly_issued_by(certificate(keys.authority))
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    assert certificate(pair).public_key() == key.public_key()


def test_the_api_servers_certificate_has_the_names_and_addresses_that_pods_use(keys):
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
        ("front_proxy", "front-proxy-client", []),
    ],
)
def test_client_certificates_have_users_and_groups_that_the_api_server_knows(keys, name, user, groups):
    subject = certificate(getattr(keys, name)).subject
    assert [part.value for part in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [user]
    assert [part.value for part in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == groups


def test_private_keys_are_readable_only_by_the_user(keys):
    assert keys.folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in keys.folder.glob("*.key")} == {0o600}


def test_existing_certificates_are_reused_but_an_incomplete_folder_is_recreated(keys, tmp_path):
    before = keys.authority.certificate.read_bytes()
    assert control_plane.prepare_pki(keys.folder).authority.certificate.read_bytes() == before
    shutil.copytree(keys.folder, tmp_path / "pki")
    (tmp_path / "pki/admin.key").unlink()
    renewed = control_plane.prepare_pki(tmp_path / "pki")
    assert renewed.authority.certificate.read_bytes() != before
    certificate(renewed.admin).verify_directly_issued_by(certificate(renewed.authority))


PROGRAMS = {name: Path("/programs") / name for name in control_plane.PROGRAMS}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return control_plane.prepare(tmp_path_factory.mktemp("state"), PROGRAMS)


def arguments(prepared, name):
    return next(process.argv for process in prepared.processes if process.name == name)


def test_the_api_server_starts_after_etcd_and_the_other_components_after_it(prepared):
    assert {process.name: process.after for process in prepared.processes} == {
        "etcd": (),
        "kube-apiserver": ("etcd",),
        "kube-controller-manager": ("kube-apiserver",),
        "kube-scheduler": ("kube-apiserver",),
    }


def test_every_file_in_a_control_plane_processs_arguments_exists(prepared):
    inputs = [word.partition("=")[2] for process in prepared.processes for word in process.argv]
    files = [Path(value) for value in inputs if Path(value).suffix in {".crt", ".key", ".pub", ".yaml"}]
    assert len(files) == 12
    assert all(file.is_file() for file in files)


def test_the_administrators_kubeconfig_needs_no_other_file_and_is_private(prepared):
    content = read_yaml(prepared.kubeconfig)
    assert content["clusters"][0]["cluster"]["server"] == "https://10.244.0.1:6443"
    authority = base64.b64decode(content["clusters"][0]["cluster"]["certificate-authority-data"])
    assert authority == prepared.pki.authority.certificate.read_bytes()
    assert prepared.kubeconfig.stat().st_mode & 0o777 == 0o600


def test_the_api_servers_arguments_have_its_address_and_the_service_range(prepared):
    assert "--advertise-address=10.244.0.1" in arguments(prepared, "kube-apiserver")
    assert "--service-cluster-ip-range=10.96.0.0/16" in arguments(prepared, "kube-apiserver")


def test_only_the_api_server_listens_on_more_than_loopback(prepared):
    for process in prepared.processes:
        if process.name != "kube-apiserver":
            addresses = [word for word in process.argv if "-address=" in word or "listen-" in word]
            assert addresses
            assert all("127.0.0.1" in word for word in addresses)


def test_preparing_the_local_control_plane_again_gives_the_same_result(prepared):
    assert control_plane.prepare(prepared.kubeconfig.parent, PROGRAMS) == prepared


@pytest.mark.parametrize(("nodes", "grace"), [(0, "50s"), (100, "50s"), (256, "128s")])
def test_with_many_nodes_the_grace_period_for_lost_nodes_is_longer(tmp_path: Path, nodes: int, grace: str):
    manager = arguments(control_plane.prepare(tmp_path, PROGRAMS, nodes=nodes), "kube-controller-manager")
    assert f"--node-monitor-grace-period={grace}" in manager
