"""What Object Storage says of a file behind a link, and texts that anyone may read there."""

import base64
import binascii
import zlib
from dataclasses import dataclass

import httpx

from llmd_oke.access.oci_client import OciError

TIMEOUT_S = 30.0
LONGEST_TEXT_BYTES = 8 * 2**20

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


class TooLongError(ValueError):
    """A file is longer than anybody wants to read."""


def bounded_content(http: httpx.Client, uri: str, most_bytes: int, *, raw: bool = False) -> bytes:
    """What anyone may read there; with `raw` as it was sent, where a server may have packed it for the way.

    Raises:
        httpx.HTTPError: nothing answers, or with an error.
        TooLongError: there is more than `most_bytes`.
    """
    content = bytearray()
    with http.stream("GET", uri, follow_redirects=True) as answer:
        answer.raise_for_status()
        for part in answer.iter_raw() if raw else answer.iter_bytes():
            content += part
            if len(content) > most_bytes:
                raise TooLongError(f"{uri} has more than {most_bytes // 2**20} MiB")
    return bytes(content)


def stored_text(uri: str, http: httpx.Client | None = None) -> str:
    """A text that anyone may read, of at most `LONGEST_TEXT_BYTES`; what ends in `.gz` is unpacked.

    Raises:
        OciError: nothing answers, or with an error, or with more than that, or with something else.
    """
    packed = uri.endswith(".gz")
    too_long = OciError(0, "TooLong", f"{uri} is longer than {LONGEST_TEXT_BYTES} bytes")
    try:
        content = bounded_content(http or httpx.Client(timeout=TIMEOUT_S), uri, LONGEST_TEXT_BYTES, raw=packed)
        if packed:
            content = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(content, LONGEST_TEXT_BYTES + 1)
    except TooLongError:
        raise too_long from None
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise OciError(status, "", f"{uri} is answered with {status}") from error
    except (httpx.HTTPError, httpx.InvalidURL, zlib.error) as error:
        raise OciError(0, "NoAnswer", f"{uri} can't be read: {type(error).__name__}") from error
    if len(content) > LONGEST_TEXT_BYTES:
        raise too_long
    return content.decode(errors="replace")


def _checksum(kind: str, header: str) -> str | None:
    """`md5:<hex>` for a header in base 64; the number of parts behind a hyphen is left out."""
    try:
        return f"{kind}:{base64.b64decode(header.partition('-')[0], validate=True).hex()}" if header else None
    except binascii.Error:
        return None
