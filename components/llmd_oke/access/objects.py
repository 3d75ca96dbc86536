"""What Object Storage says of a file behind a link, without reading it."""

import base64
import binascii
from dataclasses import dataclass

import httpx

from llmd_oke.access.oci_client import OciError

TIMEOUT_S = 30.0

_HEADERS = {"content-md5": "md5", "opc-multipart-md5": "md5", "opc-content-sha256": "sha256"}
"""OCI API reference, HeadObject. An object that was uploaded in parts has the hash of its parts' hashes in place of an
MD5, and a SHA-256 only where the upload asked for one."""


@dataclass(frozen=True)
class StoredFile:
    """A file's size and its checksums, as a stack file writes them (`md5:…`, `sha256:…`)."""

    size_bytes: int
    checksums: tuple[str, ...]


def stored_file(uri: str, http: httpx.Client | None = None) -> StoredFile:
    """What is behind a link (a pre-authenticated request, which needs no signature).

    Raises:
        OciError: the link leads nowhere, has expired, or nothing answers. It never says the link, which is a secret.
    """
    try:
        answer = (http or httpx.Client(timeout=TIMEOUT_S)).head(uri, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OciError(0, "NoAnswer", f"the image's link does not answer: {type(error).__name__}") from error
    if answer.is_error:
        raise OciError(answer.status_code, "", f"the image's link is answered with {answer.status_code}")
    found = (_checksum(kind, answer.headers.get(name, "")) for name, kind in _HEADERS.items())
    size_bytes = int(answer.headers.get("content-length", 0))
    return StoredFile(size_bytes, tuple(checksum for checksum in found if checksum is not None))


def _checksum(kind: str, header: str) -> str | None:
    """`md5:<hex>` for a header in base 64; the number of parts behind a hyphen is left out."""
    try:
        return f"{kind}:{base64.b64decode(header.partition('-')[0], validate=True).hex()}" if header else None
    except binascii.Error:
        return None
