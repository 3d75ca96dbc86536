"""A store of files in a bucket of an S3-compatible service, such as OCI Object Storage, over `httpx2`.

Requests are signed with AWS Signature Version 4 (AWS, "Signature Calculations for the Authorization Header"). Address
and keys come from the variables that all S3 tools read: AWS_ENDPOINT_URL_S3, AWS_REGION, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. With OCI these are `https://<namespace>.compat.objectstorage.<region>.oraclecloud.com`,
the region, and a customer secret key.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree as ET

import httpx2
from llmd_base.errors import KitError
from llmd_pods.prewarm.places import relative

from llmd_bench.files import MOST_REQUEST_BYTES
from llmd_bench.history import safe_names

TIMEOUT_S = 30.0
MOST_PAGES = 1000

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Keys:
    """What requests are signed with."""

    access_key: str
    secret_key: str = field(repr=False)
    region: str
    session_token: str | None = field(default=None, repr=False)

    def headers(self, method: str, url: str, body: bytes, now: datetime) -> dict[str, str]:
        """The headers of a signed request."""
        moment = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        parts, digest = urlsplit(url), hashlib.sha256(body).hexdigest()
        sent = {"host": parts.netloc, "x-amz-content-sha256": digest, "x-amz-date": moment}
        if self.session_token:
            sent["x-amz-security-token"] = self.session_token
        names = ";".join(sorted(sent))
        lines = [method, parts.path or "/", parts.query, *(f"{name}:{sent[name]}" for name in sorted(sent)), "", names]
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        request = hashlib.sha256("\n".join([*lines, digest]).encode()).hexdigest()
        signature = hmac.new(self._key(scope), f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{request}".encode(), "sha256")
        credential = f"Credential={self.access_key}/{scope}, SignedHeaders={names}, Signature={signature.hexdigest()}"
        return {**sent, "authorization": f"AWS4-HMAC-SHA256 {credential}"}

    def _key(self, scope: str) -> bytes:
        key = f"AWS4{self.secret_key}".encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), "sha256").digest()
        return key


class S3Store:
    """The files of a bucket whose names begin with a prefix."""

    def __init__(self, endpoint: str, bucket: str, prefix: str, keys: Keys, http: httpx2.Client | None = None) -> None:
        self._base = f"{endpoint.rstrip('/')}/{quote(bucket, safe='-_.~')}"
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._keys = keys
        self._http = http or httpx2.Client(timeout=TIMEOUT_S)

    def names(self, below: str) -> list[str]:
        """The names of all files below a folder."""
        files: list[str] = []
        more: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            prefix = self._prefix + (f"{below.strip('/')}/" if below.strip("/") else "")
            query = {**more, "list-type": "2", "prefix": prefix}
            answer = self._ask("GET", f"{self._base}?{urlencode(sorted(query.items()), quote_via=quote, safe='')}")
            page = _page(answer)
            files += [name.removeprefix(self._prefix) for name in page.names if not name.endswith("/")]
            if not page.next:
                return sorted(files)
            more = {"continuation-token": page.next}
        raise KitError(f"{self._base} has more than {MOST_PAGES} pages of files.", "Choose a narrower prefix.")

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return self._ask("GET", self._url(name))

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file."""
        self._ask("PUT", self._url(name), content)

    def _url(self, name: str) -> str:
        with safe_names(self._base):
            relative(name)
        return f"{self._base}/{quote(self._prefix + name, safe='/-_.~')}"

    def _ask(self, method: str, url: str, body: bytes = b"") -> bytes:
        where = url.split("?", 1)[0]
        headers = self._keys.headers(method, url, body, datetime.now(UTC))
        try:
            with self._http.stream(method, url, content=body or None, headers=headers) as answer:
                content = _bounded(answer, where)
        except httpx2.HTTPError as error:
            raise KitError(f"{where} does not answer: {error}") from error
        if answer.is_error:
            reason = _text(content, "Code") or answer.reason_phrase
            raise KitError(f"{where} refuses: {answer.status_code} {reason}.", _remedy(answer.status_code))
        return content


def _bounded(answer: httpx2.Response, where: str) -> bytes:
    """The content of an answer, as far as a file of results goes."""
    content = bytearray()
    for piece in answer.iter_bytes():
        content += piece
        if len(content) > MOST_REQUEST_BYTES:
            raise KitError(f"{where} is larger than {MOST_REQUEST_BYTES // 2**20} MiB, which no file of results is.")
    return bytes(content)


def s3_store(address: str, environment: Mapping[str, str]) -> S3Store:
    """The store of `s3://<bucket>/<prefix>`, with endpoint and keys from the environment.

    Raises:
        KitError: something of it is missing, or keys would go over a connection without TLS.
    """
    parts = urlsplit(address)
    needed = ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    missing = [name for name in needed if not environment.get(name)]
    if missing or not parts.netloc:
        what = f"Set {', '.join(missing)}." if missing else "An address reads s3://<bucket>/<prefix>."
        raise KitError(f"{address} can't be used as a store of results.", what)
    endpoint = urlsplit(environment["AWS_ENDPOINT_URL_S3"])
    if endpoint.scheme != "https" and endpoint.hostname not in _LOOPBACK:
        raise KitError(f"{endpoint.geturl()} is no https address.", "Results and signatures need TLS.")
    keys = Keys(
        environment["AWS_ACCESS_KEY_ID"],
        environment["AWS_SECRET_ACCESS_KEY"],
        environment["AWS_REGION"],
        environment.get("AWS_SESSION_TOKEN"),
    )
    return S3Store(endpoint.geturl(), parts.netloc, parts.path, keys)


@dataclass(frozen=True)
class _Page:
    names: list[str]
    next: str | None


def _page(content: bytes) -> _Page:
    try:
        root = ET.fromstring(content)  # noqa: S314 - expat loads nothing from outside; the store is the user's
    except ET.ParseError as error:
        raise KitError(f"The store's list of files is no XML: {error}") from error
    names = [element.text or "" for element in root.iter() if _local(element.tag) == "Key"]
    token = next((element.text for element in root.iter() if _local(element.tag) == "NextContinuationToken"), None)
    return _Page(names, token)


def _text(content: bytes, tag: str) -> str | None:
    try:
        root = ET.fromstring(content)  # noqa: S314 - as above
    except ET.ParseError:
        return None
    return next((element.text for element in root.iter() if _local(element.tag) == tag), None)


def _local(tag: str) -> str:
    """A tag without its namespace."""
    return tag.rsplit("}", 1)[-1]


def _remedy(status: int) -> str | None:
    match status:
        case 401 | 403:
            return "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and this machine's clock."
        case 404:
            return "Check bucket, prefix and AWS_ENDPOINT_URL_S3."
        case _:
            return None
