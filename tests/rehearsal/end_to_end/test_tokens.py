"""A front door whose clients send tokens of an identity provider, in a whole rehearsal."""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from llmd_rehearsal.front_door import CLIENT
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "tokens"
SERVED = "openai/gpt-oss-120b"
ADDRESS = "https://front-door.llm-d.svc.cluster.local/v1/completions"
ISSUER, AUDIENCE = "https://id.example.com", "models"


@dataclass(frozen=True)
class Door:
    """The front door of the rehearsal, and the key that its identity provider signs with."""

    project: Project
    folder: Path

    def token(self, **changes: object) -> str:
        """A token of now for a client of the provider, with changes."""
        known = json.loads((self.folder / "secrets.json").read_text())
        key = load_pem_private_key(known["frontDoorCertificate"]["key"].encode(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "team-a", "exp": int(time.time()) + 600, **changes}
        parts = [_part({"alg": "ES256", "kid": CLIENT}), _part(claims)]
        r, s = decode_dss_signature(key.sign(".".join(parts).encode(), ECDSA(SHA256())))
        return ".".join([*parts, _encoded(r.to_bytes(32) + s.to_bytes(32))])

    def ask(self, token: str) -> tuple[int, dict[str, Any]]:
        """Status and document of an answer to one completion."""
        body = json.dumps({"model": SERVED, "prompt": "hello", "max_tokens": 4})
        headers = ("-H", "content-type: application/json", "-H", f"authorization: Bearer {token}")
        sent = ("curl", "-sS", "--cacert", str(self.folder / "chain.pem"), "-w", "\n%{http_code}", *headers)
        done = self.project.inside(STACK, *sent, "-d", body, ADDRESS)
        text, _, status = done.output.rpartition("\n")
        return int(status), json.loads(text)


def _part(content: Mapping[str, object]) -> str:
    return _encoded(json.dumps(content).encode())


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


@pytest.fixture(scope="module")
def door(project: Project) -> Door:
    authentication = {"kind": "jwt", "issuer": ISSUER, "audiences": [AUDIENCE]}
    own = {
        "host": "llm.example.com",
        "tls": {"kind": "config"},
        "authentication": authentication,
        "uncheckedPods": "accepted",
    }
    project.write(STACK, models=[model(topology="agg-tp1-1r")], frontDoor=own)
    ended = project.rehearse(STACK)
    assert ended.status == 0, ended.errors
    return Door(project, project.folder / ".rehearsal" / STACK / "front-door")


def test_the_front_door_accepts_a_token_of_the_identity_provider(door: Door):
    status, document = door.ask(door.token())
    assert (status, document["model"]) == (200, SERVED)


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"exp": 1_600_000_000}, 401, "invalid_api_key"),
        ({"iss": "https://evil.example.com"}, 401, "invalid_api_key"),
        ({"aud": "other"}, 403, "permission_denied"),
    ],
)
def test_the_front_door_refuses_an_invalid_token_with_an_explanation(
    door: Door, changes: dict[str, Any], status: int, code: str
):
    answered, document = door.ask(door.token(**changes))
    assert (answered, document["error"]["code"]) == (status, code)


def test_a_front_door_with_tokens_does_not_accept_an_api_key(door: Door):
    status, document = door.ask("sk-wrong-0123456789abcdef")
    assert (status, document["error"]["code"]) == (401, "invalid_api_key")
