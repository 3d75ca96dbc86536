"""GitHub's issuer of jobs' tokens, an identity domain that exchanges them, Pulumi Cloud's sign-in: on this machine."""

import base64
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from http_for_tests import HttpAnswer, HttpRequest

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

    def answer(self, request: HttpRequest) -> HttpAnswer:
        path, said, body = request.url.path, request.headers["Authorization"], request.body.decode()
        match path:
            case "/github/token":
                if said != f"bearer {REQUEST_TOKEN}":
                    return HttpAnswer(401, {})
                audience = dict(parse_qsl(request.url.query))["audience"]
                token = self.signed(aud=audience, sub=f"repo:o/r:environment:{self.environment}")
                return HttpAnswer(200, {"value": token})
            case "/domain/oauth2/v1/token":
                return HttpAnswer(*self._exchanged(said, dict(parse_qsl(body))))
            case "/pulumi/api/oauth/token":
                form = dict(parse_qsl(body)) or json.loads(body)
                claims = self.read(form["subject_token"])
                right = form["audience"] == claims["aud"] == "urn:pulumi:org:acme"
                answer = {"access_token": "pul-short-lived", "expires_in": 7200}
            case "/pulumi/api/user":
                right = said == "token pul-short-lived"
                answer = {"githubLogin": "ci", "organizations": [{"githubLogin": "acme"}]}
            case _:
                return HttpAnswer(200 if path.startswith("/pulumi/") else 404, {})
        return HttpAnswer(200, answer) if right else HttpAnswer(401, {})

    def _exchanged(self, said: str | None, form: dict[str, str]) -> tuple[int, object]:
        basic = base64.b64encode(CLIENT.encode()).decode()
        claims = self.read(form["subject_token"])
        user = self.environments.get(claims["sub"].rpartition(":")[2])
        asked = (form["grant_type"], form["requested_token_type"], form["subject_token_type"])
        wanted = ("urn:ietf:params:oauth:grant-type:token-exchange", "urn:oci:token-type:oci-upst", "jwt")
        trusted = said == f"Basic {basic}" and claims["aud"] == f"{self.url}/domain"
        if self.refuses or not trusted or user is None or asked != wanted:
            return 401, {"error": "invalid_grant"}
        self.public_keys.append(form["public_key"])
        token = self.signed(sub=user, tenant=TENANCY, number=len(self.issued))
        self.issued.append(token)
        return 200, {"token": token}
