"""Checks of a stack's prerequisites in its cluster: TLS certificates in Secrets, and a reachable Prometheus.

The kit doesn't create these, so that only a check in the cluster finds a fault before the first client does.
"""

import base64
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import httpx2
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Secret
from llmd_base.errors import InvalidStack, KitError, Problem

from llmd_oke.config import ExistingCluster
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.operations.kubeconfig import cluster_client, kubeconfig_context
from llmd_oke.operations.objects import texts
from llmd_oke.operations.prometheus import PrometheusSeries, prometheus_url, query, service_path
from llmd_oke.planning import Plan
from llmd_oke.planning.front_door_secrets import certificate_end, certificate_problems

CERTIFICATES = "secret"
PROMETHEUS = "prometheus"
TYPE = "kubernetes.io/tls"
NAMES = ("tls.crt", "tls.key")


@dataclass(frozen=True)
class UsedCertificate:
    """A Secret with a TLS certificate in the models' namespace: path in the stack file, name, and the hosts for which
    the certificate must be valid.
    """

    path: str
    secret: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class StoredSecret:
    """Type and data (values in base64) of a Kubernetes Secret."""

    type: str
    data: Mapping[str, str]


ReadSecret = Callable[[str, str], StoredSecret | None]
"""Function that reads a Secret by namespace and name; None if it doesn't exist. Raises KitError if the cluster doesn't
answer or refuses."""

Ask = Callable[[str], list[PrometheusSeries]]
"""Function that runs an instant query in the stack's Prometheus. Raises KitError if Prometheus doesn't answer."""


def used_certificates(plan: Plan) -> Iterator[UsedCertificate]:
    """Yield the Secrets with TLS certificates that the stack file names."""
    door = plan.front_door
    if door is not None and door.tls is not None and door.tls.kind == "secret":
        yield UsedCertificate("frontDoor.tls.name", door.tls.name, door.hosts)
    created = plan.gateway.created if plan.gateway else None
    if created is not None and created.tls is not None:
        yield UsedCertificate("gateway.tls", created.tls, (created.host,) if created.host else ())


def certificate_findings(plan: Plan, read: ReadSecret | None = None) -> list[Finding]:
    """Check the TLS certificates that a stack reads from Secrets of its cluster; return a finding for each.

    Args:
        plan: the stack's plan.
        read: reads Secrets; by the environment's kubeconfig if left out.
    """
    certificates = list(used_certificates(plan))
    if not certificates:
        return []
    if not isinstance(plan.cluster, ExistingCluster):
        remedy = "Have it there before the first request; Envoy takes it without a restart."
        return [
            Finding(
                CERTIFICATES, row.path, Verdict.UNKNOWN, f"a stack makes the cluster of the Secret {row.secret}", remedy
            )
            for row in certificates
        ]
    try:
        read = read or _reader(plan.cluster.kubeconfig_context)
        return [finding for row in certificates for finding in _findings(row, plan.namespace, read)]
    except KitError as error:
        return [
            Finding(CERTIFICATES, row.path, Verdict.UNKNOWN, error.message, error.remedy or "") for row in certificates
        ]


def refuse_certificates(plan: Plan, read: ReadSecret | None = None) -> None:
    """Refuse an update with TLS certificates that clients wouldn't accept. Missing Secrets, which may be created later,
    and a cluster that doesn't answer are no errors here.

    Raises:
        InvalidStack: Secrets of an existing cluster have invalid certificates. The exception has all problems.
    """
    certificates = list(used_certificates(plan))
    if not certificates or not isinstance(plan.cluster, ExistingCluster):
        return
    problems: list[Problem] = []
    with suppress(KitError):
        read = read or _reader(plan.cluster.kubeconfig_context)
        for row in certificates:
            if stored := read(plan.namespace, row.secret):
                problems += _problems(row, f"{plan.namespace}/{row.secret}", stored)
    if problems:
        raise InvalidStack(problems)


def _findings(certificate: UsedCertificate, namespace: str, read: ReadSecret) -> Iterator[Finding]:
    name = f"{namespace}/{certificate.secret}"
    stored = read(namespace, certificate.secret)
    if stored is None:
        remedy = f"kubectl create secret tls {certificate.secret} -n {namespace} --cert=FILE --key=FILE"
        yield Finding(CERTIFICATES, certificate.path, Verdict.PROBLEM, f"there is no Secret {name}", remedy)
        return
    problems = list(_problems(certificate, name, stored))
    for problem in problems:
        yield Finding(CERTIFICATES, certificate.path, Verdict.PROBLEM, problem.why, f"Give it {problem.accepted}.")
    if not problems:
        hosts = ", ".join(certificate.hosts) or "any host"
        end = certificate_end(_plain(stored.data.get(NAMES[0], "")))
        until = f" until {end:%Y-%m-%d}" if end else ""
        value = f"the certificate in {name} is valid{until}, for {hosts}"
        yield Finding(CERTIFICATES, certificate.path, Verdict.FINE, value)


def _problems(certificate: UsedCertificate, name: str, stored: StoredSecret) -> Iterator[Problem]:
    """Yield the problems of an existing Secret, without its content; `name` is its namespace and name for messages."""
    if stored.type != TYPE:
        why = f"the Secret {name} is of type {stored.type}"
        yield Problem(certificate.path, certificate.secret, f"a Secret of type {TYPE}", why)
        return
    pair = {key: _plain(stored.data.get(key, "")) for key in NAMES}
    for problem in certificate_problems(pair, name, certificate.hosts, names=NAMES):
        yield replace(problem, path=certificate.path, value=certificate.secret, why=f"{problem.path}: {problem.why}")


def _plain(text: str) -> str:
    try:
        return base64.b64decode(text).decode()
    except (NotBase64, UnicodeDecodeError):
        return ""


def _reader(context: str | None) -> ReadSecret:
    client = cluster_client(context)

    def read(namespace: str, name: str) -> StoredSecret | None:
        try:
            secret = client.get(Secret, name, namespace=namespace)
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise KitError(f"The Secret {namespace}/{name} can't be read: {error}", "May this user read it?") from error
        except httpx2.HTTPError as error:
            raise KitError(f"The cluster does not answer: {error}", "Is KUBECONFIG that of the cluster?") from error
        return StoredSecret(secret.type or "", texts(secret, "data"))

    return read


def prometheus_findings(plan: Plan, ask: Ask | None = None) -> list[Finding]:
    """Check the Prometheus that a stack's monitors, alerts or scaling need; no findings if the stack installs it or
    needs none.

    Args:
        plan: the stack's plan.
        ask: runs queries; if left out, at the stack file's URL, or, for a Service, through the API server of the
            environment's kubeconfig.
    """
    url, watched = prometheus_url(plan), plan.monitoring
    if url is None or (watched is not None and watched.install):
        return []
    path = "monitoring" if watched else "models"
    if not isinstance(plan.cluster, ExistingCluster):
        value = f"a stack makes the cluster that {url} is to be in"
        return [Finding(PROMETHEUS, path, Verdict.UNKNOWN, value, "Have it there before the models come.")]
    try:
        ask = ask or _asker(plan, url)
        ask("vector(1)")
    except KitError as error:
        remedy = error.remedy or "docs/how-to/monitor.md says what it must be."
        return [Finding(PROMETHEUS, path, Verdict.PROBLEM, error.message, remedy)]
    return [Finding(PROMETHEUS, path, Verdict.FINE, f"{url} answers"), *_scraped(plan, path, ask)]


def _scraped(plan: Plan, path: str, ask: Ask) -> list[Finding]:
    """Check that Prometheus scrapes targets in the stack's namespace; `unknown` if there are none, as before the first
    update.
    """
    up = ask(f'up{{namespace="{plan.namespace}"}}')
    if not up:
        value = f"it scrapes nothing in the namespace {plan.namespace}"
        remedy = "Right before the first update; else docs/alerts/stack-not-scraped.md says what to look at."
        return [Finding(PROMETHEUS, path, Verdict.UNKNOWN, value, remedy)]
    down = sorted({row.labels.get("pod", "") for row in up if row.value == 0})
    if down:
        value = f"{len(down)} of its targets in {plan.namespace} don't answer it: {', '.join(down[:3])}"
        return [
            Finding(PROMETHEUS, path, Verdict.PROBLEM, value, "docs/alerts/stack-not-scraped.md says what to look at.")
        ]
    return [Finding(PROMETHEUS, path, Verdict.FINE, f"it scrapes {len(up)} targets in {plan.namespace}")]


def _asker(plan: Plan, url: str) -> Ask:
    proxy = service_path(url)
    if proxy is None:
        return lambda promql: query(url, promql)
    config = kubeconfig_context(plan.kubeconfig_context)
    verify = verify_cluster(config.cluster, config.user, config.abs_file) if config.user else True
    http = httpx2.Client(auth=user_auth(config.user), verify=verify)
    return lambda promql: query(config.cluster.server.rstrip("/") + proxy, promql, http=http)
