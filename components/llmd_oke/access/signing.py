"""OCI's request signatures (draft-cavage-http-signatures-08, as OCI's documentation, Request Signatures, has them)."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

GENERIC_HEADERS = ("date", "(request-target)", "host")
BODY_HEADERS = ("content-length", "content-type", "x-content-sha256")


@dataclass(frozen=True)
class Signer:
    """A private key, and the name that OCI knows its public half by (`keyId`)."""

    key_id: str
    private_key: RSAPrivateKey

    def __repr__(self) -> str:
        """Nothing of the key, and nothing of a session's token, which is part of its `key_id`."""
        return "Signer(…)"

    def headers(
        self,
        method: str,
        url: str,
        *,
        now: datetime | None = None,
        body: bytes | None = None,
        generic: Sequence[str] = GENERIC_HEADERS,
    ) -> dict[str, str]:
        """The headers of a signed request: `date`, `authorization`, and those of the body where there is one."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        values = {
            "date": http_date(now or datetime.now(UTC)),
            "(request-target)": f"{method.lower()} {target}",
            "host": parts.netloc,
        }
        signed = list(generic)
        if body is not None:
            values |= _body_headers(body)
            signed += BODY_HEADERS
        text = "\n".join(f"{name}: {values[name]}" for name in signed)
        sent = {name: value for name, value in values.items() if name not in {"(request-target)", "host"}}
        return {**sent, "authorization": self._authorization(signed, text)}

    def _authorization(self, signed: Sequence[str], text: str) -> str:
        signature = self.private_key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return (
            f'Signature algorithm="rsa-sha256",headers="{" ".join(signed)}",keyId="{self.key_id}"'
            f',signature="{base64.b64encode(signature).decode()}",version="1"'
        )


def http_date(when: datetime) -> str:
    """A time as HTTP has it: `Sat, 21 Nov 2026 08:00:00 GMT`."""
    return format_datetime(when.astimezone(UTC), usegmt=True)


def _body_headers(body: bytes) -> dict[str, str]:
    return {
        "content-length": str(len(body)),
        "content-type": "application/json",
        "x-content-sha256": base64.b64encode(hashlib.sha256(body).digest()).decode(),
    }
