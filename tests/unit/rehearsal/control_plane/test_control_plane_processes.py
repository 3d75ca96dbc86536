import base64
from pathlib import Path

import pytest
import yaml
from llmd_oke.rehearsal.control_plane import plane


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    return plane.prepare(state, {name: Path("/programs") / name for name in plane.PROGRAMS})


def arguments(prepared, name):
    return next(process.argv for process in prepared.processes if process.name == name)


def test_the_api_server_waits_for_etcd_and_the_rest_for_the_api_server(prepared):
    assert {process.name: process.after for process in prepared.processes} == {
        "etcd": (),
        "kube-apiserver": ("etcd",),
        "kube-controller-manager": ("kube-apiserver",),
        "kube-scheduler": ("kube-apiserver",),
    }


def test_every_file_that_a_process_is_given_exists(prepared):
    given = [word.partition("=")[2] for process in prepared.processes for word in process.argv]
    files = [Path(value) for value in given if Path(value).suffix in {".crt", ".key", ".pub", ".yaml"}]
    assert len(files) == 9
    assert all(file.is_file() for file in files)


def test_the_administrators_kubeconfig_stands_alone_and_is_private(prepared):
    content = yaml.safe_load(prepared.kubeconfig.read_text())
    assert content["clusters"][0]["cluster"]["server"] == "https://10.244.0.1:6443"
    authority = base64.b64decode(content["clusters"][0]["cluster"]["certificate-authority-data"])
    assert authority == prepared.pki.authority.certificate.read_bytes()
    assert prepared.kubeconfig.stat().st_mode & 0o777 == 0o600


def test_the_service_kubernetes_leads_to_the_bridge(prepared):
    assert "--advertise-address=10.244.0.1" in arguments(prepared, "kube-apiserver")
    assert "--service-cluster-ip-range=10.96.0.0/16" in arguments(prepared, "kube-apiserver")


def test_only_the_api_server_listens_beyond_loopback(prepared):
    for process in prepared.processes:
        if process.name != "kube-apiserver":
            addresses = [word for word in process.argv if "-address=" in word or "listen-" in word]
            assert addresses
            assert all("127.0.0.1" in word for word in addresses)


def test_preparing_again_changes_nothing(prepared):
    again = plane.prepare(prepared.kubeconfig.parent, {name: Path("/programs") / name for name in plane.PROGRAMS})
    assert again == prepared
