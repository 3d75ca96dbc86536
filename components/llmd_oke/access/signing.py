"""Signers of OCI requests with a profile's API key or session token, and tokens for OKE's API servers.

Signatures follow OCI's documentation, Request Signatures (draft-cavage-http-signatures-08). Signers of instances and
pods are in `llmd_oke.access.principals`.
"""

import base64
import configparser
import hashlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from llmd_base.errors import KitError

GENERIC_HEADERS = ("date", "(request-target)", "host")
BODY_HEADERS = ("content-length", "content-type", "x-content-sha256")

DEFAULT_FILE = "~/.oci/config"
DEFAULT_PROFILE = "DEFAULT"

EXEC_API_VERSION = "client.authentication.k8s.io/v1beta1"

TOKEN_LIFETIME = timedelta(minutes=4)
"""Lifetime of cluster tokens that OCI's own tools state (terraform-provider-oci, OCI's command line)."""


class RequestSigner(Protocol):
    """Interface of signers of OCI requests."""

    def headers(
        self, method: str, url: str, *, now: datetime | None = None, body: bytes | None = None
    ) -> dict[str, str]:
        """Return the headers of a signed request: `date`, `authorization`, and those of the body if there is one.

        Raises:
            KitError: the signer's token has expired and can't be renewed.
        """
        ...


@dataclass(frozen=True)
class Signer:
    """Signer with a private key; `key_id` is the `keyId` by which OCI identifies the public key or session token."""

    key_id: str
    private_key: RSAPrivateKey

    def __repr__(self) -> str:
        """Return a text without the key and without `key_id`, which may contain a session token."""
        return "Signer(…)"

    def headers(
        self,
        method: str,
        url: str,
        *,
        now: datetime | None = None,
        body: bytes | None = None,
    ) -> dict[str, str]:
        """Return the headers of a signed request: `date`, `authorization`, and those of the body if there is one."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        values = {
            "date": http_date(now or datetime.now(UTC)),
            "(request-target)": f"{method.lower()} {target}",
            "host": parts.netloc,
        }
        signed = GENERIC_HEADERS
        if body is not None:
            values |= {
                "content-length": str(len(body)),
                "content-type": "application/json",
                "x-content-sha256": base64.b64encode(hashlib.sha256(body).digest()).decode(),
            }
            signed = (*GENERIC_HEADERS, *BODY_HEADERS)
        text = "\n".join(f"{name}: {values[name]}" for name in signed)
        signature = self.private_key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        authorization = (
            f'Signature algorithm="rsa-sha256",headers="{" ".join(signed)}",keyId="{self.key_id}"'
            f',signature="{base64.b64encode(signature).decode()}",version="1"'
        )
        sent = {name: value for name, value in values.items() if name not in {"(request-target)", "host"}}
        return {**sent, "authorization": authorization}


def http_date(when: datetime) -> str:
    """Return a time in the format of HTTP headers: `Sat, 21 Nov 2026 08:00:00 GMT`."""
    return format_datetime(when.astimezone(UTC), usegmt=True)


def config_file() -> Path:
    """Return the path of OCI's configuration file: `$OCI_CLI_CONFIG_FILE`, `$OCI_CONFIG_FILE` or `~/.oci/config`."""
    named = os.environ.get("OCI_CLI_CONFIG_FILE") or os.environ.get("OCI_CONFIG_FILE") or DEFAULT_FILE
    return Path(named).expanduser()


def profile_name() -> str:
    """Return the name of the profile of OCI's configuration file: `$OCI_CLI_PROFILE`, `$OCI_CONFIG_PROFILE` or
    `DEFAULT`.
    """
    return os.environ.get("OCI_CLI_PROFILE") or os.environ.get("OCI_CONFIG_PROFILE") or DEFAULT_PROFILE


def api_key_signer(file: Path | None = None, profile: str | None = None) -> Signer:
    """Return the signer of a profile of OCI's configuration file, with its API key, or with the token of `oci session
    authenticate`.

    Raises:
        KitError: the file, the profile or its key can't be used. The message has no values of the profile.
    """
    file, profile = file or config_file(), profile or profile_name()
    values = _profile(file, profile)
    where = f"profile {profile} of {file}"
    key = load_key(_read(values, "key_file", where), values.get("pass_phrase"), where)
    if values.get("security_token_file"):
        return Signer(f"ST${_read(values, 'security_token_file', where).strip()}", key)
    return Signer("/".join(_value(values, name, where) for name in ("tenancy", "user", "fingerprint")), key)


@dataclass(frozen=True)
class ProfileHome:
    """Tenancy and region of a profile of OCI's configuration file, None where it names none."""

    tenancy_id: str | None
    region: str | None


def profile_home(profile: str | None = None) -> ProfileHome:
    """Return the tenancy and the region that a profile of OCI's configuration file names.

    Raises:
        KitError: the file or the profile can't be used.
    """
    values = _profile(config_file(), profile or profile_name())
    return ProfileHome(values.get("tenancy"), values.get("region"))


def load_key(pem: str, pass_phrase: str | None, where: str) -> RSAPrivateKey:
    """Return the RSA key in a PEM text; `where` names the key's source in messages.

    Raises:
        KitError: the text has no RSA private key, or the pass phrase is wrong or missing.
    """
    try:
        key = load_pem_private_key(pem.strip().encode(), pass_phrase.encode() if pass_phrase else None)
    except TypeError as error:
        raise KitError(f"The key of {where} needs a pass phrase.", "Give pass_phrase in the profile.") from error
    except ValueError as error:
        raise KitError(f"The key of {where} is no private key, or its pass phrase is wrong.") from error
    if not isinstance(key, RSAPrivateKey):
        raise KitError(f"The key of {where} is no RSA key.", "OCI takes RSA keys only.")
    return key


def _profile(file: Path, profile: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        files = parser.read(file)
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        raise KitError(f"{file} can't be read as OCI's configuration file.") from error
    if not files:
        remedy = "Run `oci setup config`, or choose --auth instance-principal or workload-identity."
        raise KitError(f"There is no OCI configuration file {file}.", remedy)
    if profile != DEFAULT_PROFILE and not parser.has_section(profile):
        known = ", ".join([DEFAULT_PROFILE, *parser.sections()])
        raise KitError(f"{file} has no profile {profile}.", f"Profiles: {known}.")
    return dict(parser[profile])


def _value(values: dict[str, str], name: str, where: str) -> str:
    if not values.get(name):
        raise KitError(f"There is no {name} in {where}.")
    return values[name].strip()


def _read(values: dict[str, str], name: str, where: str) -> str:
    path = Path(_value(values, name, where)).expanduser()
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise KitError(f"The {name} of {where}, {path}, can't be read.") from error


def cluster_token(signer: RequestSigner, cluster_id: str, region: str, now: datetime) -> str:
    """Return the bearer token for a cluster's API server: the base64 of a signed request, which OKE sends to OCI to
    verify the identity.
    """
    url = f"https://containerengine.{region}.oraclecloud.com/cluster_request/{cluster_id}"
    signed = signer.headers("GET", url, now=now)
    query = urlencode({"authorization": signed["authorization"], "date": signed["date"]})
    return base64.urlsafe_b64encode(f"{url}?{query}".encode()).decode()


def exec_credential(signer: RequestSigner, cluster_id: str, region: str, now: datetime | None = None) -> dict[str, Any]:
    """Return a cluster token as ExecCredential, the output of exec plug-ins for kubectl and client-go."""
    now = now or datetime.now(UTC)
    return {
        "apiVersion": EXEC_API_VERSION,
        "kind": "ExecCredential",
        "status": {
            "token": cluster_token(signer, cluster_id, region, now),
            "expirationTimestamp": (now + TOKEN_LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    }
