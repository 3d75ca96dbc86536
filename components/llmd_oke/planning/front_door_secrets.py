"""Secrets of a front door from the stack's config: clients' API keys, an identity provider's keys, a TLS certificate.

The program reads them before it declares resources. Errors never contain secrets.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtensionOID
from llmd_base.errors import InvalidStack, Problem
from pydantic import TypeAdapter, ValidationError

from llmd_oke.config.front_door import CLIENT_PATTERN
from llmd_oke.planning.plan import FrontDoorPlan

KEYS, NEXT_KEYS, KEY_SET = "frontDoorKeys", "frontDoorNextKeys", "frontDoorKeySet"
CERTIFICATE = "frontDoorCertificate"
CACHE_SECRET = "frontDoorCacheSecret"  # noqa: S105 - the name of one
"""Key of the stack's config, without the prefix `llmd-oke:`, that has the secret from which cache salts are derived."""

_SHORTEST_KEY = 20
"""Minimum length of an API key in characters; our choice. Random letters and digits of this length have 119 bits."""

_MIN_BITS = 56
"""Minimum entropy of an API key in bits, estimated from its own characters; our choice."""

_CACHE_SECRET = r"[0-9A-Za-z]{32,128}"  # noqa: S105 - what one looks like
_MIN_CACHE_BITS = 96
"""Minimum entropy in bits of the secret from which cache salts are derived; our choice. vLLM's documentation uses salts
of 256 bits.
"""

_ENDS_SOON = timedelta(days=14)
"""Time before the end of a certificate from which on updates warn, as in the alert CertificateExpires."""

_TEXTS = TypeAdapter(dict[str, str])


@dataclass(frozen=True)
class Certificate:
    """TLS certificate as PEM: the chain, which begins with the host's own certificate, and the private key."""

    chain: str
    key: str


@dataclass(frozen=True)
class FrontDoorSecrets:
    """Secrets of a front door; None for each that the stack doesn't need. `keys` are the API keys by client,
    `next_keys` second keys of clients that are changing to them, `key_set` is a JSON Web Key Set, `cache_secret` is the
    secret from which cache salts are derived.
    """

    keys: Mapping[str, str] | None = None
    next_keys: Mapping[str, str] | None = None
    key_set: str | None = None
    certificate: Certificate | None = None
    cache_secret: str | None = None


def read_secrets(
    door: FrontDoorPlan, settings: Mapping[str, str | None], now: datetime | None = None
) -> FrontDoorSecrets:
    """Return the secrets that a front door needs. `settings` has the config values by key, objects as JSON.

    Raises:
        InvalidStack: a secret is missing or invalid; contains all problems, without the secrets.
    """
    authentication = door.authentication.kind if door.authentication else None
    by_key = authentication == "api-keys"
    keys = _texts(settings.get(KEYS)) if by_key else None
    next_keys = _texts(settings.get(NEXT_KEYS)) if by_key else None
    fetched = door.authentication is not None and door.authentication.kind == "jwt" and door.authentication.jwks_uri
    key_set = settings.get(KEY_SET) or "" if authentication == "jwt" and not fetched else None
    pair = _texts(settings.get(CERTIFICATE)) if door.tls is not None and door.tls.kind == "config" else None
    cache_secret = settings.get(CACHE_SECRET) or "" if door.cache_isolation == "client" else None
    problems = [
        *(_cache_secret_problems(cache_secret) if cache_secret is not None else ()),
        *(_key_problems(keys, next_keys or {}, door) if keys is not None else ()),
        *(_key_set_problems(key_set) if key_set is not None else ()),
        *(certificate_problems(pair, f"llmd-oke:{CERTIFICATE}", door.hosts, now) if pair is not None else ()),
    ]
    if problems:
        raise InvalidStack(problems)
    certificate = Certificate(pair["chain"], pair["key"]) if pair is not None else None
    return FrontDoorSecrets(keys, next_keys, key_set, certificate, cache_secret)


def _cache_secret_problems(text: str) -> Iterator[Problem]:
    path = f"llmd-oke:{CACHE_SECRET}"
    if not re.fullmatch(_CACHE_SECRET, text) or _chance_bits(text) < _MIN_CACHE_BITS:
        command = f"openssl rand -hex 32 | pulumi config set --secret {path}"
        why = "frontDoor.cacheIsolation has salts made of it, and it is missing, short or can be guessed"
        yield Problem(path, None, f"32 to 128 letters and digits by chance: {command}", why)


def _texts(text: str | None) -> dict[str, str]:
    """Return the strings of a JSON object by key; an empty dict if the text is no JSON object of strings, so that
    missing keys are reported.
    """
    try:
        return _TEXTS.validate_json(text or "{}")
    except ValidationError:
        return {}


def _key_problems(keys: Mapping[str, str], next_keys: Mapping[str, str], door: FrontDoorPlan) -> Iterator[Problem]:
    path = f"llmd-oke:{KEYS}"
    command = f"pulumi config set --secret --path {path}.CLIENT for each client"
    if not keys:
        yield Problem(path, None, command, "the front door asks for keys, and no client has one")
    owners: dict[str, str] = {}
    each = [(f"{path}.{client}", client, key) for client, key in keys.items()]
    each += [(f"llmd-oke:{NEXT_KEYS}.{client}", client, key) for client, key in next_keys.items()]
    for place, client, key in each:
        if not re.match(CLIENT_PATTERN, client):
            accepted = "at most 63 letters, digits, dashes, dots and underscores"
            yield Problem(place, client, accepted, "clients stand by their names in headers and logs")
        if key in owners:
            why = f"{owners[key]} has the same key, so that they can't be told apart"
            if owners[key] == client:
                why = "it is the client's present key, so that nothing would change"
            yield Problem(place, None, "a key of its own", why)
        elif len(key) < _SHORTEST_KEY or not re.fullmatch(r"[!-~]+", key):
            accepted = f"at least {_SHORTEST_KEY} letters, digits and signs of ASCII without blanks"
            yield Problem(place, None, accepted, "the key can be guessed, or not be sent in a header")
        elif _chance_bits(key) < _MIN_BITS:
            accepted = "letters and digits by chance, as `openssl rand -hex 24` makes them"
            yield Problem(place, None, accepted, "the key repeats itself or counts up, so that it can be guessed")
        owners.setdefault(key, client)
    named = {f"frontDoor.limits.clients.{client}": client for client in door.clients}
    named |= {f"frontDoor.priorities.{client}": client for client in door.priorities}
    named |= {f"llmd-oke:{NEXT_KEYS}.{client}": client for client in next_keys}
    for place, client in named.items():
        if client not in keys:
            yield Problem(place, None, ", ".join(keys) or "none", "no client of this name has a key")


def _chance_bits(key: str) -> float:
    """Return an upper bound of a key's entropy in bits. Characters that continue a count, or repeat an earlier
    sequence, count as zero.
    """
    going_on = {end for end, (one, other) in enumerate(pairwise(key), 1) if abs(ord(other) - ord(one)) <= 1}
    repeated = {end for end in range(3, len(key)) if key[end - 3 : end + 1] in key[:end]}
    return (len(key) - len(going_on | repeated)) * math.log2(len(set(key)))


def _key_set_problems(text: str) -> Iterator[Problem]:
    path, accepted = f"llmd-oke:{KEY_SET}", 'a JSON Web Key Set: {"keys": [{"kty": "RSA", ...}]}, public keys only'
    try:
        document = json.loads(text)
        keys: list[dict[str, object]] = list(document["keys"])
        signing = [key["kty"] == "oct" or "d" in key for key in keys]
    except (ValueError, KeyError, TypeError):
        yield Problem(path, None, accepted, "it is missing, or no such set")
        return
    if not keys:
        yield Problem(path, None, accepted, "it has no key")
    if any(signing):
        yield Problem(path, None, accepted, "it has a key that tokens can be signed with")


def certificate_problems(
    pair: Mapping[str, str],
    path: str,
    hosts: Iterable[str],
    now: datetime | None = None,
    names: tuple[str, str] = ("chain", "key"),
) -> Iterator[Problem]:
    """Yield the problems of a certificate for hosts.

    Args:
        pair: certificate chain, the host's own certificate first, and private key, as PEM, under the keys in `names`.
        path: path of the pair in the stack's config.
        hosts: DNS names that the certificate must cover.
        now: time at which the certificate must be valid; the current time if None.
        names: keys of chain and private key in `pair`.
    """
    now = now or datetime.now(UTC)
    chain_name, key_name = names
    try:
        chain = x509.load_pem_x509_certificates(pair.get(chain_name, "").encode())
    except ValueError:
        why = "it is missing, or no certificate"
        yield Problem(f"{path}.{chain_name}", None, "certificates as PEM, the host's own first", why)
        return
    own = chain[0]
    try:
        key = load_pem_private_key(pair.get(key_name, "").encode(), password=None)
    except (ValueError, TypeError):
        why = "it is missing, encrypted, or no private key"
        yield Problem(f"{path}.{key_name}", None, "the private key as PEM, without a password", why)
    else:
        if _public(key.public_key()) != _public(own.public_key()):
            why = "it is another's key"
            yield Problem(f"{path}.{key_name}", None, "the key that the certificate was made for", why)
    yield from _time_problems(f"{path}.{chain_name}", chain, now)
    covered = _host_names(own)
    for host in hosts:
        if not {host, f"*.{host.partition('.')[2]}"} & covered:
            why = f"it is for {', '.join(sorted(covered)) or 'no host'}, not for {host}"
            yield Problem(f"{path}.{chain_name}", None, f"a certificate for {host}", why)


def certificate_end(chain: str) -> datetime | None:
    """Return the time at which the first certificate of a chain (PEM) expires; None if the text has no certificate."""
    try:
        return min(certificate.not_valid_after_utc for certificate in x509.load_pem_x509_certificates(chain.encode()))
    except ValueError:
        return None


def end_warning(certificate: Certificate, now: datetime | None = None) -> str | None:
    """Return the warning that updates print when a certificate in the stack's config expires soon; None if it
    doesn't.
    """
    now = now or datetime.now(UTC)
    end = certificate_end(certificate.chain)
    if end is None or end - now >= _ENDS_SOON:
        return None
    return f"llmd-oke:{CERTIFICATE} ends in {(end - now).days} days ({end:%Y-%m-%d}): docs/how-to/rotate-credentials.md"


def _time_problems(path: str, chain: Sequence[x509.Certificate], now: datetime) -> Iterator[Problem]:
    for certificate in chain:
        name = certificate.subject.rfc4514_string() or "the certificate"
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if end <= now:
            yield Problem(path, None, "a renewed certificate", f"{name} expired on {end:%Y-%m-%d %H:%M} UTC")
        if begin > now:
            yield Problem(path, None, "a certificate of now", f"{name} is valid from {begin:%Y-%m-%d %H:%M} UTC on")


def _public(key: object) -> bytes:
    encode = getattr(key, "public_bytes")  # noqa: B009 - every kind of public key has it, their union has no name
    encoded: bytes = encode(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encoded


def _host_names(certificate: x509.Certificate) -> set[str]:
    try:
        extension = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME)
    except x509.ExtensionNotFound:
        return set()
    value = extension.value
    names = value.get_values_for_type(x509.DNSName) if isinstance(value, x509.SubjectAlternativeName) else []
    return {name.lower() for name in names}
