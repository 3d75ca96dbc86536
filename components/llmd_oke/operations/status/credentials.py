"""Certificates and other secrets of a stack in its cluster: when certificates expire, and how old secrets are."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lightkube.resources.core_v1 import Secret

from llmd_oke.operations.cluster_checks import NAMES, TYPE, UsedCertificate, used_certificates
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.operations.status.reading import Unread, name_of
from llmd_oke.operations.status.symptoms import Severity, Symptom
from llmd_oke.planning import Plan
from llmd_oke.planning.front_door_secrets import certificate_end, certificate_problems
from llmd_oke.serving.model_cache import SOURCE_SECRET
from llmd_oke.serving.stack_front_door import ACCESS_SECRET, CERTIFICATE_SECRET
from llmd_oke.serving.vllm import HUGGING_FACE_SECRET

PAGE = "docs/how-to/rotate-credentials.md"


@dataclass(frozen=True)
class Credential:
    """Secret of a stack in its cluster: its name, what it contains, the last change of its content, and the expiry of
    its certificate; None if that is unknown or it has none.
    """

    secret: str
    what: str
    changed: datetime | None
    ends: datetime | None


def certificates(plan: Plan) -> Iterator[UsedCertificate]:
    """Yield the Secrets with TLS certificates of a stack: those that the stack file names, and that of the front
    door.
    """
    yield from used_certificates(plan)
    door = plan.front_door
    if door is not None and door.tls is not None and door.tls.kind != "secret":
        yield UsedCertificate("frontDoor.tls", CERTIFICATE_SECRET, door.hosts)


def used_secrets(plan: Plan) -> dict[str, str]:
    """Return a description of the contents of each Secret that pods of a stack may use, by name. Some need
    not exist.
    """
    used = {certificate.secret: "certificate" for certificate in certificates(plan)}
    if plan.front_door is not None and plan.front_door.authentication is not None:
        kind = plan.front_door.authentication.kind
        used[ACCESS_SECRET] = "API keys" if kind == "api-keys" else "keys of tokens"
    if plan.registry_mirror is not None and plan.registry_mirror.pull_secret is not None:
        used[plan.registry_mirror.pull_secret] = "image pulls"
    return {**used, HUGGING_FACE_SECRET: "Hugging Face token", SOURCE_SECRET: "bucket of weights"}


def credentials(plan: Plan, secrets: Sequence[Secret] | Unread) -> tuple[Credential, ...] | Unread:
    """Return the stack's Secrets that exist in its cluster, with age and expiry."""
    if isinstance(secrets, Unread):
        return secrets
    used = used_secrets(plan)
    return tuple(
        Credential(name, used[name], _changed(secret), certificate_end(_pair(secret)[NAMES[0]]))
        for secret in secrets
        if (name := name_of(secret)) in used
    )


def credential_symptoms(
    plan: Plan, secrets: Sequence[Secret] | Unread, now: datetime, ends_within: timedelta
) -> Iterator[Symptom]:
    """Yield a symptom for each certificate that clients refuse, or that expires within `ends_within`."""
    known = {} if isinstance(secrets, Unread) else {name_of(secret): secret for secret in secrets}
    for certificate in certificates(plan):
        secret = known.get(certificate.secret)
        if secret is None or secret.type != TYPE:
            continue
        pair = _pair(secret)
        problems = list(certificate_problems(pair, certificate.secret, certificate.hosts, now, NAMES))
        for problem in problems:
            yield Symptom(Severity.OUTAGE, f"clients refuse the certificate {problem.path}: {problem.why}", PAGE)
        end = certificate_end(pair[NAMES[0]])
        if not problems and end is not None and end - now < ends_within:
            what = f"the certificate {certificate.secret} ends in {(end - now).days} days ({end:%Y-%m-%d})"
            yield Symptom(Severity.RISK, what, PAGE)


def _pair(secret: Secret) -> Mapping[str, str]:
    data = texts(secret, "data")
    return {name: base64.b64decode(data.get(name, "")).decode(errors="replace") for name in NAMES}


def _changed(secret: Secret) -> datetime | None:
    """Return the last time at which a field manager changed the Secret's fields, or that of its creation."""
    written = [entry.time for entry in metadata(secret).managedFields or () if entry.time]
    return max(written, default=metadata(secret).creationTimestamp)
