"""Client of OCI's REST API with signed requests, without OCI's SDK or command line, and unsigned downloads."""

import base64
import binascii
import json
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlencode

import httpx2
from llmd_base.errors import KitError

if TYPE_CHECKING:  # it loads cryptography, which a stand-in for OCI's API doesn't need
    from llmd_oke.access.signing import RequestSigner

TIMEOUT_S = 30.0
TRIES = 4
MAX_PAGES = 100
_AGAIN = {409, 429, 500, 502, 503, 504}
LONGEST_TEXT_BYTES = 8 * 2**20

_HEADERS = {"content-md5": "md5", "opc-multipart-md5": "md5", "opc-content-sha256": "sha256"}
"""Response headers with an object's checksum, and their hash functions (OCI API reference, HeadObject). An object that
was uploaded in parts has the hash of its parts' hashes instead of an MD5, and a SHA-256 only if the upload requested
one."""


@dataclass(frozen=True)
class StoredFile:
    """Size and checksums of a file in Object Storage; checksums have the stack file's form (`md5:…`, `sha256:…`)."""

    size_bytes: int
    checksums: tuple[str, ...]


def stored_file(uri: str, http: httpx2.Client | None = None) -> StoredFile:
    """Request size and checksums of the file at a URI (a pre-authenticated request, which needs no signature).

    Raises:
        OciError: the URI has no file or has expired, or the host doesn't answer. The message never contains the URI,
            which is a secret.
    """
    try:
        answer = (http or httpx2.Client(timeout=TIMEOUT_S)).head(uri, follow_redirects=True)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise OciError(0, "NoAnswer", f"the image's link does not answer: {type(error).__name__}") from error
    if answer.is_error:
        raise OciError(answer.status_code, "", f"the image's link is answered with {answer.status_code}")
    checksums = (_checksum(kind, answer.headers.get(name, "")) for name, kind in _HEADERS.items())
    size_bytes = int(answer.headers.get("content-length", 0))
    return StoredFile(size_bytes, tuple(checksum for checksum in checksums if checksum is not None))


class TooLongError(ValueError):
    """Error for a download that is longer than its limit."""


def bounded_content(http: httpx2.Client, uri: str, most_bytes: int, *, raw: bool = False) -> bytes:
    """Download a public file of at most `most_bytes`; with `raw`, its HTTP content encoding isn't decoded.

    Raises:
        httpx2.HTTPError: the host doesn't answer, or answers with an error status.
        TooLongError: the file is longer than `most_bytes`.
    """
    content = bytearray()
    with http.stream("GET", uri, follow_redirects=True) as answer:
        answer.raise_for_status()
        for part in answer.iter_raw() if raw else answer.iter_bytes():
            content += part
            if len(content) > most_bytes:
                raise TooLongError(f"{uri} has more than {most_bytes // 2**20} MiB")
    return bytes(content)


def stored_text(uri: str, http: httpx2.Client | None = None) -> str:
    """Download a public text of at most `LONGEST_TEXT_BYTES`; a URI that ends in `.gz` is decompressed.

    Raises:
        OciError: the host doesn't answer or answers with an error status, or the text is too long or can't be
            decompressed.
    """
    packed = uri.endswith(".gz")
    too_long = OciError(0, "TooLong", f"{uri} is longer than {LONGEST_TEXT_BYTES} bytes")
    try:
        content = bounded_content(http or httpx2.Client(timeout=TIMEOUT_S), uri, LONGEST_TEXT_BYTES, raw=packed)
        if packed:
            content = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(content, LONGEST_TEXT_BYTES + 1)
    except TooLongError:
        raise too_long from None
    except httpx2.HTTPStatusError as error:
        status = error.response.status_code
        raise OciError(status, "", f"{uri} is answered with {status}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, zlib.error) as error:
        raise OciError(0, "NoAnswer", f"{uri} can't be read: {type(error).__name__}") from error
    if len(content) > LONGEST_TEXT_BYTES:
        raise too_long
    return content.decode(errors="replace")


def _checksum(kind: str, header: str) -> str | None:
    """Return `<kind>:<hex>` for a header in base64, without the number of parts behind a hyphen; None if the header is
    empty or isn't base64.
    """
    try:
        return f"{kind}:{base64.b64decode(header.partition('-')[0], validate=True).hex()}" if header else None
    except binascii.Error:
        return None


HOSTS = {
    "bastion": "https://bastion.{region}.oci.oraclecloud.com/20210331",
    "compute": "https://iaas.{region}.oraclecloud.com/20160918",
    "containerengine": "https://containerengine.{region}.oci.oraclecloud.com/20180222",
    "filestorage": "https://filestorage.{region}.oraclecloud.com/20171215",
    "identity": "https://identity.{region}.oci.oraclecloud.com/20160918",
    "limits": "https://limits.{region}.oci.oraclecloud.com/20190729",
    "loadbalancer": "https://iaas.{region}.oraclecloud.com/20170115",
    "lustre": "https://lustre-file-storage.{region}.oci.oraclecloud.com/20250228",
    "networkloadbalancer": "https://network-load-balancer-api.{region}.oci.oraclecloud.com/20200501",
}
"""Base URL with API version of each OCI service (OCI documentation, API Reference and Endpoints)."""


class OciError(KitError):
    """Error for a request that OCI refused or didn't answer. `status` is the HTTP status, 0 without an answer; `code`
    is OCI's error code.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class OciClient(Protocol):
    """Interface of clients of OCI's API."""

    def get(self, service: str, path: str, **query: str) -> Any:
        """Return the JSON document at `path` of a service; for a list, or a document with a list `items`, all pages.

        Raises:
            OciError: OCI refuses, or doesn't answer.
        """
        ...

    def send(self, method: str, service: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request that may change resources; return the JSON document of the answer, None if empty.

        Raises:
            OciError: OCI refuses, or doesn't answer.
        """
        ...


class SignedOciClient:
    """Client of OCI's API that signs each request."""

    def __init__(
        self,
        signer: "RequestSigner",
        region: str,
        http: httpx2.Client | None = None,
        pause: Callable[[float], None] = time.sleep,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        self._signer = signer
        self._region = region
        self._http = http or httpx2.Client(timeout=TIMEOUT_S)
        self._pause = pause
        self._hosts = hosts or HOSTS

    def get(self, service: str, path: str, **query: str) -> Any:
        """Return the JSON document at `path` of a service; for a list, or a document with a list `items`, all pages."""
        document, page = self._page(service, path, query)
        items = _items(document)
        for _ in range(MAX_PAGES):
            if not page or items is None:
                break
            more, page = self._page(service, path, {**query, "page": page})
            items += _items(more) or []
        else:
            raise OciError(0, "TooManyPages", f"{service} {path} has more than {MAX_PAGES} pages.")
        return document

    def send(self, method: str, service: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request that may change resources; return the JSON document of the answer, None if empty."""
        content = json.dumps(body or {}).encode() if method in {"POST", "PUT"} else None
        answer = self._ask(method, self._url(service, path), content)
        return answer.json() if answer.content else None

    def _page(self, service: str, path: str, query: Mapping[str, str]) -> tuple[Any, str]:
        url = self._url(service, path) + (f"?{urlencode(query)}" if query else "")
        answer = self._ask("GET", url, None)
        return answer.json(), answer.headers.get("opc-next-page", "")

    def _url(self, service: str, path: str) -> str:
        return self._hosts[service].format(region=self._region) + path

    def _ask(self, method: str, url: str, body: bytes | None) -> httpx2.Response:
        """Send a request, up to `TRIES` times while OCI is busy: GET for all statuses of `_AGAIN`, other methods for
        429 only, which means that OCI didn't process the request.

        Raises:
            OciError: OCI refuses, or doesn't answer.
        """
        for attempt in range(1, TRIES + 1):
            try:
                headers = self._signer.headers(method, url, body=body)
                answer = self._http.request(method, url, content=body, headers=headers)
            except httpx2.HTTPError as error:
                raise OciError(0, "NoAnswer", f"{url.split('?', maxsplit=1)[0]} does not answer: {error}") from error
            busy = answer.status_code in _AGAIN if method == "GET" else answer.status_code == 429
            if not busy or attempt == TRIES:
                return _accepted(answer, url)
            self._pause(2.0**attempt)
        raise AssertionError


def _items(document: Any) -> list[Any] | None:
    """Return a document that is a list, or its list `items`: OCI services use both forms. None for other documents."""
    match document:
        case list() | {"items": list()}:
            return cast("list[Any]", document if isinstance(document, list) else document["items"])
        case _:
            return None


def _accepted(answer: httpx2.Response, url: str) -> httpx2.Response:
    """Return an answer with a success status.

    Raises:
        OciError: the answer has an error status; the message has OCI's code and reason.
    """
    if not answer.is_error:
        return answer
    try:
        document = answer.json()
        code, message = str(document.get("code", "")), str(document.get("message", ""))
    except (ValueError, AttributeError):
        code, message = "", answer.text[:200]
    status = answer.status_code
    raise OciError(status, code, f"OCI refuses {url.split('?', maxsplit=1)[0]}: {status} {code}: {message}")
