"""The control plane's processes, tuned for a quick start on two cores."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmd_oke.rehearsal.control_plane import addresses, kubeconfigs, pki
from llmd_oke.rehearsal.outside.facts import outside
from llmd_oke.rehearsal.processes import HttpReady, ProcessSpec

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""What a control plane needs to be run."""

ETCD = f"http://127.0.0.1:{addresses.ETCD_PORT}"
"""Where all objects of the cluster are."""

LOST_NODE_TOLERATION_S = 300.0
"""How long pods stay on a node that doesn't answer before they are evicted (kube-apiserver's default)."""

_RESTARTS = 5
"""A kubelet starts the static pods of a control plane again without end; what keeps ending here is to be seen."""

_ISSUER = f"https://kubernetes.default.svc.{addresses.CLUSTER_DOMAIN}"
_MANY_REQUESTS = ("--kube-api-qps=400", "--kube-api-burst=800")
_ALONE = ("--leader-elect=false", "--profiling=false", "--bind-address=127.0.0.1")

_NOT_NEEDED_CONTROLLERS = (
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "cloud-node-lifecycle-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "node-ipam-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "service-lb-controller",
    "storage-version-migrator-controller",
    "ttl-controller",
)
"""Controllers of kubelets' certificates, of clouds and of volume drivers: a world has none of these."""


@dataclass(frozen=True)
class ControlPlane:
    """A prepared control plane: `processes` go into the world's spec, `kubeconfig` is the administrator's.

    `data` has all objects of the cluster; it is discarded at the start of a world that is to begin empty.
    """

    pki: pki.Pki
    kubeconfig: Path
    data: Path
    processes: tuple[ProcessSpec, ...]


def prepare(state: Path, programs: Mapping[str, Path], lost_node_scale: float = 1.0) -> ControlPlane:
    """Write keys, certificates and kubeconfigs into the state folder and lay out the processes.

    `programs` gives the path of each of `PROGRAMS`. A running world of this folder is not disturbed. `lost_node_scale`
    is wall seconds for a second that pods stay on a node which doesn't answer.
    """
    data = state / "etcd"
    keys = pki.prepare(state / "pki", outside().hosts)
    authority = keys.authority.certificate
    processes = (
        _etcd(programs["etcd"], data),
        _api_server(programs["kube-apiserver"], keys, max(1, round(LOST_NODE_TOLERATION_S * lost_node_scale))),
        _controller_manager(
            programs["kube-controller-manager"],
            keys,
            kubeconfigs.write(state / "pki/kube-controller-manager.yaml", keys.controller_manager, authority),
        ),
        _scheduler(
            programs["kube-scheduler"], kubeconfigs.write(state / "pki/kube-scheduler.yaml", keys.scheduler, authority)
        ),
    )
    kubeconfig = kubeconfigs.write(state / "kubeconfig.yaml", keys.admin, authority)
    return ControlPlane(pki=keys, kubeconfig=kubeconfig, data=data, processes=processes)


def _etcd(program: Path, data: Path) -> ProcessSpec:
    argv = (
        str(program),
        "--name=rehearsal",
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=rehearsal=http://127.0.0.1:2380",
        "--heartbeat-interval=50",
        "--election-timeout=500",
        "--initial-election-tick-advance=true",
        "--log-level=warn",
    )
    return ProcessSpec("etcd", argv, readiness=HttpReady(f"{ETCD}/health"), restarts=_RESTARTS)


def _api_server(program: Path, keys: pki.Pki, lost_node_toleration_s: int) -> ProcessSpec:
    argv = (
        str(program),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        f"--secure-port={addresses.API_SERVER_PORT}",
        f"--advertise-address={addresses.NODE_ADDRESS}",
        f"--service-cluster-ip-range={addresses.SERVICE_NETWORK}",
        "--authorization-mode=RBAC",
        f"--client-ca-file={keys.authority.certificate}",
        f"--tls-cert-file={keys.api_server.certificate}",
        f"--tls-private-key-file={keys.api_server.key}",
        f"--service-account-issuer={_ISSUER}",
        f"--service-account-key-file={keys.service_accounts.certificate}",
        f"--service-account-signing-key-file={keys.service_accounts.key}",
        f"--default-not-ready-toleration-seconds={lost_node_toleration_s}",
        f"--default-unreachable-toleration-seconds={lost_node_toleration_s}",
        "--allow-privileged=true",
        "--enable-priority-and-fairness=false",
        "--profiling=false",
    )
    ready = HttpReady(
        f"{addresses.API_SERVER}/readyz",
        ca_file=str(keys.authority.certificate),
        certificate_file=str(keys.admin.certificate),
        key_file=str(keys.admin.key),
    )
    return ProcessSpec("kube-apiserver", argv, after=("etcd",), readiness=ready, restarts=_RESTARTS)


def _controller_manager(program: Path, keys: pki.Pki, kubeconfig: Path) -> ProcessSpec:
    argv = (
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(['*', *(f'-{name}' for name in _NOT_NEEDED_CONTROLLERS)])}",
        f"--root-ca-file={keys.authority.certificate}",
        f"--service-account-private-key-file={keys.service_accounts.key}",
        "--use-service-account-credentials=false",
        *_MANY_REQUESTS,
        *_ALONE,
    )
    ready = HttpReady(f"https://127.0.0.1:{addresses.CONTROLLER_MANAGER_PORT}/healthz")
    return ProcessSpec("kube-controller-manager", argv, after=("kube-apiserver",), readiness=ready, restarts=_RESTARTS)


def _scheduler(program: Path, kubeconfig: Path) -> ProcessSpec:
    argv = (str(program), f"--kubeconfig={kubeconfig}", "--authentication-skip-lookup", *_MANY_REQUESTS, *_ALONE)
    ready = HttpReady(f"https://127.0.0.1:{addresses.SCHEDULER_PORT}/healthz")
    return ProcessSpec("kube-scheduler", argv, after=("kube-apiserver",), readiness=ready, restarts=_RESTARTS)
