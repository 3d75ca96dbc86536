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
from llmd_rehearsal.control_plane import PROGRAMS, Pki, prepare_pki

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

    @property
    def pki(self) -> Pki:
        return Pki(self.folder / "pki")

    def kubeconfig_text(self, server: str = "", user: str = "user") -> str:
        pki = self.pki
        cluster = {"server": server or self.server, "certificate-authority": str(pki.authority.certificate)}
        credentials = {"client-certificate": str(pki.admin.certificate), "client-key": str(pki.admin.key)}
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
        context = ssl.create_default_context(cafile=str(self.pki.authority.certificate))
        context.load_cert_chain(self.pki.admin.certificate, self.pki.admin.key)
        return httpx2.Client(base_url=self.server, verify=context, timeout=30, trust_env=False)

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path) -> "Generator[ControlPlane]":
        prepare_pki(folder / "pki")
        plane = cls(folder, free_port())
        plane.kubeconfig.write_text(plane.kubeconfig_text())
        with contextlib.ExitStack() as stack:
            client_port, peer_port = free_port(), free_port()
            stack.enter_context(_process(folder, "etcd", _etcd_flags(folder, client_port, peer_port)))
            stack.enter_context(
                _process(folder, "kube-apiserver", _api_server_flags(plane.pki, plane.port, client_port))
            )
            plane._wait_ready()
            stack.enter_context(_process(folder, "kube-controller-manager", _controller_flags(plane)))
            stack.enter_context(_process(folder, "kube-scheduler", _client_flags(plane)))
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


def _api_server_flags(pki: Pki, port: int, etcd_port: int) -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={pki.api_server.certificate}",
        f"--tls-private-key-file={pki.api_server.key}",
        f"--client-ca-file={pki.authority.certificate}",
        f"--service-account-key-file={pki.service_accounts.certificate}",
        f"--service-account-signing-key-file={pki.service_accounts.key}",
        "--service-account-issuer=https://kubernetes.default",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC",
        "--enable-priority-and-fairness=false",
        "--profiling=false",
    ]


def _controller_flags(plane: ControlPlane) -> list[str]:
    return [
        *_client_flags(plane),
        f"--service-account-private-key-file={plane.pki.service_accounts.key}",
        f"--root-ca-file={plane.pki.authority.certificate}",
        "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller",
    ]


def _client_flags(plane: ControlPlane) -> list[str]:
    """Flags of programs that ask the API server: all that the scheduler needs."""
    alone = ["--leader-elect=false", "--profiling=false", "--secure-port=0"]
    return [f"--kubeconfig={plane.kubeconfig}", *alone, "--kube-api-qps=400", "--kube-api-burst=800"]
