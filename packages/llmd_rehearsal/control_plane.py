"""Processes, keys and kubeconfigs of a local cluster's Kubernetes control plane: real programs, tuned to start quickly
on two cores.
"""

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from llmd_base.private_files import write_private

from llmd_rehearsal.cluster_spec import SELDOM_COLLECTED, HttpReady, ProcessSpec
from llmd_rehearsal.model_sources import source_hosts

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""Names of the programs that make up a Kubernetes control plane."""

NODE_ADDRESS = "10.244.0.1"
"""IP address of the local cluster's host side, at which pods reach the API server and all other servers outside
pods.
"""

SERVICE_NETWORK = "10.96.0.0/16"

KUBERNETES_SERVICE = "10.96.0.1"
"""First IP address of the service network, which the API server assigns to the Service `kubernetes`."""

DNS_SERVICE = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"
API_SERVER_PORT = 6443
API_SERVER = f"https://{NODE_ADDRESS}:{API_SERVER_PORT}"
ETCD_PORT = 2379
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259

ETCD = f"http://127.0.0.1:{ETCD_PORT}"
"""Base URL of the etcd that stores all objects of the local cluster."""

LOST_NODE_TOLERATION_S = 300.0
"""Seconds for which pods stay on a node that doesn't answer before they are evicted (kube-apiserver's default)."""

LOST_NODE_GRACE_S = 50
"""Seconds without a heartbeat after which a node counts as lost (kube-controller-manager's default)."""

_GRACE_S_PER_NODE = 0.5
"""Seconds of grace for each node, if that is more in total than `LOST_NODE_GRACE_S`: on two busy processors, heartbeats
of 256 nodes were later than the default allows.
"""

_RESTARTS = 5
"""Limit of restarts of a control plane's program, which shows a program that ends again and again. A kubelet restarts
static pods of a control plane without a limit.
"""

_ISSUER = f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}"
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
"""Controllers of kubelets' certificates, cloud providers and volume drivers, none of which exist in a local cluster."""

_VALIDITY = timedelta(days=3650)
_MARGIN = timedelta(days=1)
_ADMINISTRATORS = "system:masters"
_FRONT_PROXY = "front-proxy-client"

API_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
)

API_SERVER_ADDRESSES = ("127.0.0.1", NODE_ADDRESS, KUBERNETES_SERVICE)
_NAME = "rehearsal"


@dataclass(frozen=True)
class KeyPair:
    """Paths of a certificate and its private key, both PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Pki:
    """Paths of a control plane's keys and certificates, all in one folder."""

    folder: Path

    def pair(self, name: str) -> KeyPair:
        """Return the paths of the certificate and the key with this name."""
        return KeyPair(self.folder / f"{name}.crt", self.folder / f"{name}.key")

    @property
    def authority(self) -> KeyPair:
        """Certificate and key of the authority that signs all other certificates of the local cluster."""
        return self.pair("ca")

    @property
    def api_server(self) -> KeyPair:
        """Server certificate of the API server, with its key."""
        return self.pair("kube-apiserver")

    @property
    def admin(self) -> KeyPair:
        """Client certificate of the administrator, with all rights."""
        return self.pair("admin")

    @property
    def controller_manager(self) -> KeyPair:
        """Client certificate of the controller manager, with all rights, so that its controllers need no service
        accounts.
        """
        return self.pair("kube-controller-manager")

    @property
    def scheduler(self) -> KeyPair:
        """Client certificate of the scheduler, with the rights of the built-in role `system:kube-scheduler`."""
        return self.pair("kube-scheduler")

    @property
    def front_proxy(self) -> KeyPair:
        """Client certificate that the API server presents to aggregated API servers, such as KEDA's metrics server."""
        return self.pair("front-proxy")

    @property
    def outside(self) -> KeyPair:
        """Server certificate of the stand-ins for hosts outside the cluster, such as Hugging Face and Object
        Storage.
        """
        return self.pair("outside")

    @property
    def in_pods(self) -> KeyPair:
        """Server certificate for programs in pods that would otherwise generate their own."""
        return self.pair("in-pods")

    @property
    def service_accounts(self) -> KeyPair:
        """Key pair that signs service account tokens; `certificate` is a bare public key."""
        return KeyPair(self.folder / "service-accounts.pub", self.folder / "service-accounts.key")


@dataclass(frozen=True)
class ControlPlane:
    """Prepared control plane of a local cluster: keys, the administrator's kubeconfig, and the processes for the local
    cluster's specification.

    `data` is etcd's data folder; a local cluster that is to start empty discards the folder first.
    """

    pki: Pki
    kubeconfig: Path
    data: Path
    processes: tuple[ProcessSpec, ...]


def prepare(
    state: Path,
    programs: Mapping[str, Path],
    lost_node_scale: float = 1.0,
    nodes: int = 0,
    scaling_flags: Sequence[str] = (),
) -> ControlPlane:
    """Write keys, certificates and kubeconfigs into the state folder and return the control plane's processes. A
    running local cluster of the same folder isn't disturbed.

    Args:
        state: folder of the local cluster.
        programs: path of each of `PROGRAMS`.
        lost_node_scale: wall seconds for one second of the time for which pods stay on a node that doesn't answer.
        nodes: expected number of nodes; many nodes lengthen the grace period for heartbeats.
        scaling_flags: flags of the controller manager for HorizontalPodAutoscalers.
    """
    data = state / "etcd"
    keys = prepare_pki(state / "pki", source_hosts().hosts)
    authority = keys.authority.certificate
    processes = (
        _etcd(programs["etcd"], data),
        _api_server(programs["kube-apiserver"], keys, max(1, round(LOST_NODE_TOLERATION_S * lost_node_scale))),
        _controller_manager(
            programs["kube-controller-manager"],
            keys,
            _write_kubeconfig(state / "pki/kube-controller-manager.yaml", keys.controller_manager, authority),
            max(LOST_NODE_GRACE_S, round(_GRACE_S_PER_NODE * nodes)),
            scaling_flags,
        ),
        _scheduler(
            programs["kube-scheduler"], _write_kubeconfig(state / "pki/kube-scheduler.yaml", keys.scheduler, authority)
        ),
    )
    kubeconfig = _write_kubeconfig(state / "kubeconfig.yaml", keys.admin, authority)
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
    return ProcessSpec("etcd", argv, env=SELDOM_COLLECTED, readiness=HttpReady(f"{ETCD}/health"), restarts=_RESTARTS)


def _api_server(program: Path, keys: Pki, lost_node_toleration_s: int) -> ProcessSpec:
    argv = (
        str(program),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        f"--secure-port={API_SERVER_PORT}",
        f"--advertise-address={NODE_ADDRESS}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--authorization-mode=RBAC",
        f"--client-ca-file={keys.authority.certificate}",
        f"--requestheader-client-ca-file={keys.authority.certificate}",
        f"--requestheader-allowed-names={_FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={keys.front_proxy.certificate}",
        f"--proxy-client-key-file={keys.front_proxy.key}",
        "--kubelet-preferred-address-types=InternalDNS",  # of the agent, which plays the kubelets of all nodes
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
        f"{API_SERVER}/readyz",
        ca_file=str(keys.authority.certificate),
        certificate_file=str(keys.admin.certificate),
        key_file=str(keys.admin.key),
    )
    return ProcessSpec(
        "kube-apiserver", argv, env=SELDOM_COLLECTED, after=("etcd",), readiness=ready, restarts=_RESTARTS
    )


def _controller_manager(
    program: Path, keys: Pki, kubeconfig: Path, lost_node_grace_s: int, scaling_flags: Sequence[str]
) -> ProcessSpec:
    argv = (
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(['*', *(f'-{name}' for name in _NOT_NEEDED_CONTROLLERS)])}",
        f"--root-ca-file={keys.authority.certificate}",
        f"--service-account-private-key-file={keys.service_accounts.key}",
        "--use-service-account-credentials=false",
        f"--node-monitor-grace-period={lost_node_grace_s}s",
        *scaling_flags,
        *_MANY_REQUESTS,
        *_ALONE,
    )
    ready = HttpReady(f"https://127.0.0.1:{CONTROLLER_MANAGER_PORT}/healthz")
    return ProcessSpec(
        "kube-controller-manager",
        argv,
        env=SELDOM_COLLECTED,
        after=("kube-apiserver",),
        readiness=ready,
        restarts=_RESTARTS,
    )


def _scheduler(program: Path, kubeconfig: Path) -> ProcessSpec:
    argv = (str(program), f"--kubeconfig={kubeconfig}", "--authentication-skip-lookup", *_MANY_REQUESTS, *_ALONE)
    ready = HttpReady(f"https://127.0.0.1:{SCHEDULER_PORT}/healthz")
    return ProcessSpec(
        "kube-scheduler", argv, env=SELDOM_COLLECTED, after=("kube-apiserver",), readiness=ready, restarts=_RESTARTS
    )


def _write_kubeconfig(path: Path, user: KeyPair, authority: Path) -> Path:
    """Write a kubeconfig with this user's credentials embedded, and return its path. Its server address is reachable
    only inside the local cluster.
    """
    cluster = {"server": API_SERVER, "certificate-authority-data": _base64(authority)}
    credentials = {"client-certificate-data": _base64(user.certificate), "client-key-data": _base64(user.key)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": _NAME, "user": credentials}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME}}],
        "current-context": _NAME,
    }
    write_private(path, yaml.safe_dump(content, sort_keys=False))
    return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def prepare_pki(folder: Path, outside_names: Sequence[str] = ("outside.invalid",)) -> Pki:
    """Return the paths of a control plane's keys and certificates (elliptic curve keys, one authority).

    Existing files are kept, so that service account tokens stay valid if a local cluster is restarted on its old data.
    All files are generated anew if one is missing or the authority's certificate expires within a day. `outside_names`
    are the host names outside the cluster for which the local cluster has stand-ins.
    """
    pki = Pki(folder)
    clients = (pki.admin, pki.controller_manager, pki.scheduler, pki.front_proxy)
    pairs = (pki.authority, pki.api_server, pki.outside, pki.in_pods, *clients)
    files = [path for pair in (*pairs, pki.service_accounts) for path in (pair.certificate, pair.key)]
    is_valid = False
    if all(path.is_file() for path in files):
        authority = x509.load_pem_x509_certificate(pki.authority.certificate.read_bytes())
        is_valid = authority.not_valid_after_utc > datetime.now(UTC) + _MARGIN
    if not is_valid:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        _generate(pki, outside_names)
    return pki


def _generate(pki: Pki, outside_names: Sequence[str]) -> None:
    authority = _make_authority(pki.authority)
    _sign_client(authority, pki.admin, "kubernetes-admin", [_ADMINISTRATORS])
    _sign_client(authority, pki.controller_manager, "system:kube-controller-manager", [_ADMINISTRATORS])
    _sign_client(authority, pki.scheduler, "system:kube-scheduler", [])
    _sign_client(authority, pki.front_proxy, _FRONT_PROXY, [])
    _sign_server(authority, pki.api_server, "kube-apiserver", API_SERVER_NAMES, API_SERVER_ADDRESSES)
    _sign_server(authority, pki.outside, "outside", outside_names, ())
    _sign_server(authority, pki.in_pods, "in-pods", (f"*.svc.{CLUSTER_DOMAIN}",), ())
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _write_key(pki.service_accounts.key, key)
    pki.service_accounts.certificate.write_bytes(public)


def _make_authority(pair: KeyPair) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("rehearsal", [])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, key, issuer=name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    _write(pair, certificate, key)
    return _Authority(certificate, key)


def _sign_client(authority: _Authority, pair: KeyPair, user: str, groups: Sequence[str]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(user, groups), key, authority.certificate.subject).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
    )
    _write(pair, builder.sign(authority.key, hashes.SHA256()), key)


def _sign_server(
    authority: _Authority, pair: KeyPair, name: str, names: Sequence[str], server_addresses: Sequence[str]
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives: list[x509.GeneralName] = [x509.DNSName(alternative) for alternative in names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in server_addresses]
    builder = (
        _builder(_name(name, []), key, authority.certificate.subject)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    _write(pair, builder.sign(authority.key, hashes.SHA256()), key)


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALIDITY)
    )


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _write(pair: KeyPair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(pair.key, key)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(path, text)
