"""etcd, API server, controller manager and scheduler on loopback."""

import contextlib
import os
import ssl
import subprocess
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
import yaml
from free_ports import free_port

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
READY_LIMIT_S = 120


def program(name: str) -> Path:
    return Path(os.environ.get("LLMD_OKE_PROGRAMS", "/nowhere")) / name


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if not program(name).is_file()]


@dataclass(frozen=True)
class ControlPlane:
    folder: Path
    port: int

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def kubeconfig_text(self, server: str = "", user: str = "user") -> str:
        pki = self.folder / "pki"
        cluster = {"server": server or self.server, "certificate-authority": str(pki / "ca.crt")}
        credentials = {"client-certificate": str(pki / "admin.crt"), "client-key": str(pki / "admin.key")}
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "cluster", "cluster": cluster}],
                "users": [{"name": user, "user": credentials}],
                "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": user}}],
                "current-context": "context",
            }
        )

    def client(self) -> httpx2.Client:
        """A client with all rights."""
        pki = self.folder / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return httpx2.Client(base_url=self.server, verify=context, timeout=30, trust_env=False)

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path) -> "Generator[ControlPlane]":
        _make_certificates(folder / "pki")
        plane = cls(folder, free_port())
        plane.kubeconfig.write_text(plane.kubeconfig_text())
        with contextlib.ExitStack() as stack:
            client_port, peer_port = free_port(), free_port()
            stack.enter_context(_process(folder, "etcd", _etcd_flags(folder, client_port, peer_port)))
            stack.enter_context(_process(folder, "kube-apiserver", _api_server_flags(folder, plane.port, client_port)))
            plane._wait_ready()
            stack.enter_context(_process(folder, "kube-controller-manager", _controller_flags(folder)))
            stack.enter_context(_process(folder, "kube-scheduler", _scheduler_flags(folder)))
            yield plane

    def _wait_ready(self) -> None:
        ends_at = time.monotonic() + READY_LIMIT_S
        with self.client() as client:
            while time.monotonic() < ends_at:
                with contextlib.suppress(httpx2.TransportError):
                    if client.get("/readyz").is_success:
                        return
                time.sleep(0.1)
        raise TimeoutError(f"kube-apiserver was not ready after {READY_LIMIT_S} s; see {self.folder}")


@contextlib.contextmanager
def _process(folder: Path, name: str, flags: Sequence[str]) -> Generator[None]:
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen([program(name), *flags], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _etcd_flags(folder: Path, client_port: int, peer_port: int) -> list[str]:
    client = f"http://127.0.0.1:{client_port}"
    return [
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
    ]


def _api_server_flags(folder: Path, port: int, etcd_port: int) -> list[str]:
    pki = folder / "pki"
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={pki / 'server.crt'}",
        f"--tls-private-key-file={pki / 'server.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--service-account-key-file={pki / 'server.key'}",
        f"--service-account-signing-key-file={pki / 'server.key'}",
        "--service-account-issuer=https://kubernetes.default",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC",
    ]


def _controller_flags(folder: Path) -> list[str]:
    return [
        f"--kubeconfig={folder / 'kubeconfig'}",
        f"--service-account-private-key-file={folder / 'pki' / 'server.key'}",
        f"--root-ca-file={folder / 'pki' / 'ca.crt'}",
        "--leader-elect=false",
        "--secure-port=0",
        "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller",
    ]


def _scheduler_flags(folder: Path) -> list[str]:
    return [f"--kubeconfig={folder / 'kubeconfig'}", "--leader-elect=false", "--secure-port=0"]


def _make_certificates(pki: Path) -> None:
    pki.mkdir(parents=True)
    _openssl(
        pki, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt"
    )
    (pki / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name, subject in (("server", "/CN=kube-apiserver"), ("admin", "/O=system:masters/CN=admin")):
        _openssl(
            pki,
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            subject,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
        )
        _openssl(
            pki, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-extfile", "names", "-out", f"{name}.crt",
        )  # fmt: skip


def _openssl(pki: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=pki, check=True, capture_output=True)
