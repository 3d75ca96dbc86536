"""Workload identity federation: a CI job signs in to OCI with its own OIDC token instead of a stored key.

GitHub and GitLab issue each job a JSON Web Token with its repository and branch. An identity domain that trusts this
issuer (identity propagation trust) exchanges the token for a user principal session token (UPST), bound to a key pair
that exists only during the job (OCI documentation, Token Exchange Grant Type: Exchanging a JSON Web Token for a UPST).
The kit and OCI's provider read the UPST as a profile of OCI's configuration file.
"""

import base64
import binascii
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import httpx2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from llmd_base.errors import KitError
from llmd_base.private_files import write_private

DOMAIN, CLIENT_ID, CLIENT_SECRET = (
    f"OCI_TOKEN_EXCHANGE_{name}" for name in ("DOMAIN_URL", "CLIENT_ID", "CLIENT_SECRET")
)
"""Environment variables of the token exchange, under the names that OCI's provider (8.22 and later) and SDKs use too.
"""

JOB_URL, JOB_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
"""Environment variables that GitHub sets for a job with the permission `id-token: write`."""

GITLAB_TOKENS = ("LLMD_OKE_OCI_ID_TOKEN", "LLMD_OKE_PULUMI_ID_TOKEN")
"""Environment variables with the tokens that GitLab issues a job by `id_tokens`, each for one audience."""

PROFILE = "llmd-oke"
TIMEOUT_S = 30.0
KEY_BITS = 2048

RENEWED_AFTER_S = 300.0
"""Longest use of a session token in seconds before it is renewed; half of its remaining lifetime if that is shorter."""

AGAIN_S = 30.0
"""Pause in seconds after a failed renewal of the session token."""


@dataclass(frozen=True)
class TokenExchange:
    """Identity domain of OCI that trusts the issuer of a CI job's token, and the domain's OAuth client that exchanges
    tokens.
    """

    domain_url: str
    client_id: str
    client_secret: str = field(repr=False)

    @property
    def token_url(self) -> str:
        """URL of the token endpoint of the identity domain."""
        return f"{self.domain_url.rstrip('/')}/oauth2/v1/token"


def exchange_of(environment: Mapping[str, str]) -> TokenExchange | None:
    """Return the token exchange that the environment variables configure; None if none of them is set. Empty variables
    count as not set.

    Raises:
        KitError: some of the variables are missing, OCI_AUTH selects another sign-in, or the domain's URL isn't valid.
            The message never contains the client's secret.
    """
    values = {name: environment.get(name) or "" for name in (DOMAIN, CLIENT_ID, CLIENT_SECRET)}
    missing = [name for name, value in values.items() if not value]
    if len(missing) == len(values):
        return None
    if missing:
        raise KitError(f"{', '.join(missing)} is missing: a job that signs in to OCI by its token needs all three.")
    if environment.get("OCI_AUTH") not in {None, "", "SecurityToken"}:
        raise KitError(
            f"OCI_AUTH={environment['OCI_AUTH']} and {DOMAIN} are two ways to sign in to OCI.",
            "A runner of OCI has the first, a job that signs in by its token the second.",
        )
    address = urlsplit(values[DOMAIN])
    local = address.hostname in {"127.0.0.1", "::1", "localhost"}
    if not address.hostname or address.scheme not in ({"https", "http"} if local else {"https"}):
        remedy = "The address of an identity domain, such as https://idcs-....identity.oraclecloud.com"
        raise KitError(f"{DOMAIN}={values[DOMAIN]} is no address of an identity domain.", remedy)
    return TokenExchange(values[DOMAIN], values[CLIENT_ID], values[CLIENT_SECRET])


def job_token(audience: str, environment: Mapping[str, str], http: httpx2.Client) -> str:
    """Return the OIDC token of this job, issued for `audience`: requested from GitHub, or one that GitLab has given it.

    Raises:
        KitError: the job lacks the permission `id-token: write`, GitHub doesn't issue a token, or none of GitLab's is
            for this audience.
    """
    given = [text for name in GITLAB_TOKENS if (text := environment.get(name))]
    if given and JOB_URL not in environment:
        if own := next((text for text in given if audience in _audiences(text)), None):
            return own
        raise KitError(f"None of the job's tokens is for {audience}.", "`id_tokens` in the job's file names audiences.")
    url, token = environment.get(JOB_URL), environment.get(JOB_TOKEN)
    if not url or not token:
        raise KitError("This job may have no token of its own.", "It needs the right `id-token: write`.")
    try:
        answer = http.get(url, params={"audience": audience}, headers={"Authorization": f"bearer {token}"})
        return str(answer.raise_for_status().json()["value"])
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        raise KitError(f"GitHub gives the job no token: {type(error).__name__}.") from error


def user_token(exchange: TokenExchange, subject: str, key: RSAPrivateKey, http: httpx2.Client) -> str:
    """Exchange the job's token `subject` for a user principal session token that is bound to `key`.

    Raises:
        KitError: the domain doesn't answer, refuses, or answers without a token.
    """
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:oci:token-type:oci-upst",
        "subject_token": subject,
        "subject_token_type": "jwt",
        "public_key": base64.b64encode(public).decode(),
    }
    try:
        answer = http.post(exchange.token_url, data=form, auth=(exchange.client_id, exchange.client_secret))
    except httpx2.HTTPError as error:
        raise KitError(f"{exchange.token_url} does not answer: {type(error).__name__}.") from error
    if answer.is_error:
        raise KitError(
            f"{exchange.token_url} refuses the job's token with {answer.status_code}.",
            "Its identity propagation trust says whose tokens it takes: issuer, audience, and the job's `sub`.",
        )
    try:
        return str(answer.json()["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise KitError(f"{exchange.token_url} answered without a token.") from error


@contextmanager
def signed_in(
    exchange: TokenExchange,
    report: Callable[[str], None],
    http: httpx2.Client | None = None,
    renewed_after_s: float = RENEWED_AFTER_S,
) -> Generator[None]:
    """Sign this process and its child processes in to OCI during the block, as the user to which the domain's trust
    maps the job.

    A thread renews the session token; the key, the profile and the environment variables are removed at the end of the
    block. `report` is called with a message for each failed renewal.

    Raises:
        KitError: GitHub or the domain doesn't issue a token.
    """
    http = http or httpx2.Client(timeout=TIMEOUT_S)
    key = generate_private_key(public_exponent=65537, key_size=KEY_BITS)

    def new_token() -> str:
        return user_token(exchange, job_token(exchange.domain_url, os.environ, http), key, http)

    with TemporaryDirectory(prefix="llmd-oke-") as folder:  # mode 0700
        home = Path(folder)
        token = new_token()
        _write_profile(home, key, token)
        ended = threading.Event()
        renewal = threading.Thread(target=_renew, args=(home, token, new_token, ended, report, renewed_after_s))
        variables = _variables(home)
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        renewal.start()
        try:
            yield
        finally:
            ended.set()
            renewal.join()
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _variables(home: Path) -> dict[str, str]:
    """Return the environment variables by which the kit, OCI's command line and OCI's provider use the profile. The
    provider reads `.oci/config` in the home directory, which only `TF_HOME_OVERRIDE` changes (terraform-provider-oci,
    internal/utils/helpers.go).
    """
    config = str(home / ".oci" / "config")
    return {
        "TF_HOME_OVERRIDE": str(home),
        "OCI_AUTH": "SecurityToken",
        "OCI_CONFIG_FILE_PROFILE": PROFILE,
        "OCI_CLI_AUTH": "security_token",
        "OCI_CLI_CONFIG_FILE": config,
        "OCI_CLI_PROFILE": PROFILE,
    }


def _write_profile(home: Path, key: RSAPrivateKey, token: str) -> None:
    folder = home / ".oci"
    folder.mkdir(mode=0o700)
    digest = hashes.Hash(hashes.MD5())  # noqa: S303 - OCI's name for a key, no secret
    digest.update(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    lines = {
        "fingerprint": ":".join(f"{byte:02x}" for byte in digest.finalize()),
        "key_file": str(folder / "key.pem"),
        "security_token_file": str(folder / "token"),
        "tenancy": str(_claims(token).get("tenant") or ""),
    }
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(folder / "key.pem", pem)
    write_private(folder / "token", token)
    write_private(folder / "config", "\n".join([f"[{PROFILE}]", *(f"{k} = {v}" for k, v in lines.items() if v)]) + "\n")


def _renew(
    home: Path,
    token: str,
    new_token: Callable[[], str],
    ended: threading.Event,
    report: Callable[[str], None],
    most_s: float,
) -> None:
    """Replace the session token's file before the token expires, until `ended` is set. Signers read the file for each
    request.
    """
    wait_s = _use_s(token, most_s)
    while not ended.wait(wait_s):
        try:
            token = new_token()
        except KitError as error:
            report(f"the sign-in to OCI was not renewed, and is tried again: {error.message}")
            wait_s = min(AGAIN_S, most_s)
            continue
        write_private(home / ".oci" / "token", token)
        wait_s = _use_s(token, most_s)


def _use_s(token: str, most_s: float) -> float:
    """Return the seconds after which a token is renewed: half of its remaining lifetime, at most `most_s`."""
    ends_s = _claims(token).get("exp")
    left_s = ends_s - time.time() if isinstance(ends_s, int | float) else most_s
    return min(most_s, max(1.0, left_s / 2))


def _audiences(token: str) -> Sequence[object]:
    audience = _claims(token).get("aud")
    return audience if isinstance(audience, list) else [audience]  # pyright: ignore[reportUnknownVariableType]


def _claims(token: str) -> Mapping[str, object]:
    """Return the claims of a JSON Web Token, unverified; empty for a token of another form, which
    OCI doesn't rule out.
    """
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}  # pyright: ignore[reportUnknownVariableType]
