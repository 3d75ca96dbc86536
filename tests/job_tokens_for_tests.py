"""GitHub's issuer of jobs' tokens, an identity domain that exchanges them, Pulumi Cloud's sign-in: on this machine."""

import base64
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT = "exchanger:a secret"
REQUEST_TOKEN = "a token of the job's"
TENANCY = "ocid1.tenancy.oc1..jobs"


def _part(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


@dataclass
class Issuers:
    """The servers in one; `environments` are those whose jobs the domain takes for a user, by that user's name."""

    url: str = ""
    environment: str = ""
    environments: dict[str, str] = field(default_factory=lambda: {"reference": "deployer", "preview": "viewer"})
    lives_s: float = 3600.0
    refuses: bool = False
    public_keys: list[str] = field(default_factory=list[str])
    issued: list[str] = field(default_factory=list[str])
    _key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    def variables(self, environment: str) -> dict[str, str]:
        """Return what GitHub gives a job in an environment."""
        self.environment = environment
        request = f"{self.url}/github/token?api-version=2.0"
        return {"ACTIONS_ID_TOKEN_REQUEST_URL": request, "ACTIONS_ID_TOKEN_REQUEST_TOKEN": REQUEST_TOKEN}

    def signed(self, **claims: object) -> str:
        """A token with these claims."""
        parts = [json.dumps({"alg": "RS256", "typ": "JWT"}), json.dumps({**claims, "exp": time.time() + self.lives_s})]
        text = ".".join(_part(part.encode()) for part in parts)
        return f"{text}.{_part(self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def read(self, token: str) -> dict[str, Any]:
        """Return what a token says, where it is one of these.

        Raises:
            InvalidSignature: it is not.
        """
        text, _, signature = token.rpartition(".")
        raw = base64.urlsafe_b64decode(signature + "==")
        self._key.public_key().verify(raw, text.encode(), padding.PKCS1v15(), hashes.SHA256())
        part = text.split(".")[1]
        return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))

    def answer(self, path: str, query: str, headers: Any, body: str) -> tuple[int, Any]:
        match path:
            case "/github/token":
                if headers["Authorization"] != f"bearer {REQUEST_TOKEN}":
                    return 401, {}
                audience = dict(parse_qsl(query))["audience"]
                return 200, {"value": self.signed(aud=audience, sub=f"repo:o/r:environment:{self.environment}")}
            case "/domain/oauth2/v1/token":
                return self._exchanged(headers, dict(parse_qsl(body)))
            case "/pulumi/api/oauth/token":
                form = {name: values[0] for name, values in parse_qs(body).items()} or json.loads(body)
                claims = self.read(form["subject_token"])
                right = form["audience"] == claims["aud"] == "urn:pulumi:org:acme"
                return (200, {"access_token": "pul-short-lived", "expires_in": 7200}) if right else (401, {})
            case "/pulumi/api/user":
                right = headers["Authorization"] == "token pul-short-lived"
                return (200, {"githubLogin": "ci", "organizations": [{"githubLogin": "acme"}]}) if right else (401, {})
            case _:
                return (200, {}) if path.startswith("/pulumi/") else (404, {})

    def _exchanged(self, headers: Any, form: dict[str, str]) -> tuple[int, Any]:
        basic = base64.b64encode(CLIENT.encode()).decode()
        claims = self.read(form["subject_token"])
        user = self.environments.get(claims["sub"].rpartition(":")[2])
        asked = (form["grant_type"], form["requested_token_type"], form["subject_token_type"])
        wanted = ("urn:ietf:params:oauth:grant-type:token-exchange", "urn:oci:token-type:oci-upst", "jwt")
        trusted = headers["Authorization"] == f"Basic {basic}" and claims["aud"] == f"{self.url}/domain"
        if self.refuses or not trusted or user is None or asked != wanted:
            return 401, {"error": "invalid_grant"}
        self.public_keys.append(form["public_key"])
        token = self.signed(sub=user, tenant=TENANCY, number=len(self.issued))
        self.issued.append(token)
        return 200, {"token": token}


@contextmanager
def issuers() -> Generator[Issuers]:
    """The servers, on a free port of 127.0.0.1, until the block ends."""
    there = Issuers()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            url, length = urlsplit(self.path), int(self.headers.get("Content-Length") or 0)
            status, document = there.answer(url.path, url.query, self.headers, self.rfile.read(length).decode())
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    there.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield there
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
