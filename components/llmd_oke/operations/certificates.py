"""Certificates that a stack takes from Secrets of its cluster: are they there, for which hosts, and until when?

The kit neither makes nor renews them, so that nothing but a look into the cluster tells before the first client does.
"""

import base64
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from llmd_pods.errors import KitError, Problem, Refused

from llmd_oke.config import ExistingCluster
from llmd_oke.operations.kubeconfig import cluster_client
from llmd_oke.operations.objects import texts
from llmd_oke.operations.preflight import Finding, Verdict
from llmd_oke.planning import Plan
from llmd_oke.planning.front_door_secrets import certificate_problems

CHECK = "secret"
TYPE = "kubernetes.io/tls"
NAMES = ("tls.crt", "tls.key")


@dataclass(frozen=True)
class UsedCertificate:
    """A Secret of the models' namespace, where the stack file names it, and the hosts that it must be for."""

    path: str
    secret: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class StoredSecret:
    """Type and data (base64) of a Secret."""

    type: str
    data: Mapping[str, str]


ReadSecret = Callable[[str, str], StoredSecret | None]
"""A Secret by namespace and name; None where there is none. Raises KitError where the cluster doesn't answer."""


def used_certificates(plan: Plan) -> Iterator[UsedCertificate]:
    """The Secrets with certificates that a stack names."""
    door = plan.front_door
    if door is not None and door.tls is not None and door.tls.kind == "secret":
        yield UsedCertificate("frontDoor.tls.name", door.tls.name, door.hosts)
    created = plan.gateway.created if plan.gateway else None
    if created is not None and created.tls is not None:
        yield UsedCertificate("gateway.tls", created.tls, (created.host,) if created.host else ())


def certificate_findings(plan: Plan, read: ReadSecret | None = None) -> list[Finding]:
    """How the certificates are that a stack takes from its cluster.

    Args:
        plan: the stack's.
        read: reads Secrets; the environment's kubeconfig says where, if left out.
    """
    certificates = list(used_certificates(plan))
    if not certificates:
        return []
    if not isinstance(plan.cluster, ExistingCluster):
        remedy = "Have it there before the first request; Envoy takes it without a restart."
        return [
            Finding(CHECK, row.path, Verdict.UNKNOWN, f"a stack makes the cluster of the Secret {row.secret}", remedy)
            for row in certificates
        ]
    try:
        read = read or _reader(plan.cluster.kubeconfig_context)
        return [finding for row in certificates for finding in _findings(row, plan.namespace, read)]
    except KitError as error:
        return [Finding(CHECK, row.path, Verdict.UNKNOWN, error.message, error.remedy or "") for row in certificates]


def refuse_certificates(plan: Plan, read: ReadSecret | None = None) -> None:
    """Holds an update back that would have clients meet a certificate which they refuse. A Secret that isn't there yet
    may come later, and a cluster that doesn't answer is told by the update itself.

    Raises:
        Refused: a Secret of an existing cluster has a certificate that can't be used; carries every problem.
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
        raise Refused(problems)


def _findings(certificate: UsedCertificate, namespace: str, read: ReadSecret) -> Iterator[Finding]:
    name = f"{namespace}/{certificate.secret}"
    stored = read(namespace, certificate.secret)
    if stored is None:
        remedy = f"kubectl create secret tls {certificate.secret} -n {namespace} --cert=FILE --key=FILE"
        yield Finding(CHECK, certificate.path, Verdict.PROBLEM, f"there is no Secret {name}", remedy)
        return
    problems = list(_problems(certificate, name, stored))
    for problem in problems:
        yield Finding(CHECK, certificate.path, Verdict.PROBLEM, problem.why, f"Give it {problem.accepted}.")
    if not problems:
        hosts = ", ".join(certificate.hosts) or "any host"
        yield Finding(CHECK, certificate.path, Verdict.FINE, f"the certificate in {name} is valid now, for {hosts}")


def _problems(certificate: UsedCertificate, name: str, stored: StoredSecret) -> Iterator[Problem]:
    """What is wrong with a Secret that is there, without its content; `name` is how it is called."""
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
    import httpx2  # noqa: PLC0415
    from lightkube.core.exceptions import ApiError  # noqa: PLC0415
    from lightkube.resources.core_v1 import Secret  # noqa: PLC0415

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
