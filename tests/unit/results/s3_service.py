"""A small S3 service on the loopback: one bucket in memory, paged lists, and signatures checked from what arrives."""

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode
from xml.sax.saxutils import escape

from http_for_tests import HttpAnswer, HttpRequest
from llmd_bench.s3 import BucketStore, s3_store

SECRET = "s3cret"
PAGE = 2


class Bucket:
    url: str

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.status = 200

    def answer(self, request: HttpRequest) -> HttpAnswer:
        key = unquote(request.url.path).removeprefix("/").partition("/")[2]
        if self.status != 200:
            return _answer(self.status, b"<Error><Code>SlowDown</Code></Error>")
        if not _is_signed(request):
            return _answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        if request.method == "PUT":
            self.files[key] = request.body
            return _answer(200, b"")
        if not key:
            return self._list({name: values[0] for name, values in parse_qs(request.url.query).items()})
        if key in self.files:
            return _answer(200, self.files[key])
        return _answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _list(self, query: Mapping[str, str]) -> HttpAnswer:
        names = sorted(name for name in self.files if name.startswith(query["prefix"]))
        first = int(query.get("continuation-token", 0))
        keys = "".join(map(self._entry, names[first : first + PAGE]))
        more = first + PAGE < len(names)
        token = f"<NextContinuationToken>{first + PAGE}</NextContinuationToken>" if more else ""
        space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        return _answer(200, f"<ListBucketResult {space}>{keys}{token}</ListBucketResult>".encode())

    def _entry(self, name: str) -> str:
        content = self.files[name]
        about = f"<LastModified>2026-03-01T12:00:00.000Z</LastModified><ETag>{_etag(content)}</ETag>"
        return f"<Contents><Key>{escape(name)}</Key>{about}<Size>{len(content)}</Size></Contents>"


def _is_signed(request: HttpRequest) -> bool:
    """Sign again what arrived, and compare."""
    given = request.headers["authorization"]
    names = given.split("SignedHeaders=")[1].split(",")[0]
    scope = given.split("Credential=")[1].split(",")[0].split("/", 1)[1]
    lines = [f"{name}:{request.headers[name]}" for name in names.split(";")]
    query = urlencode(sorted(parse_qsl(request.url.query, keep_blank_values=True)), quote_via=quote, safe="")
    digest = hashlib.sha256(request.body).hexdigest()
    canonical = "\n".join([request.method, request.url.path, query, *lines, "", names, digest])
    signed = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    text = f"AWS4-HMAC-SHA256\n{request.headers['x-amz-date']}\n{scope}\n{signed}"
    return given.endswith(hmac.new(key, text.encode(), "sha256").hexdigest())


def _answer(status: int, body: bytes) -> HttpAnswer:
    return HttpAnswer(status, body, {"etag": _etag(body), "last-modified": "Sun, 01 Mar 2026 12:00:00 GMT"})


def _etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()}"'


def store_in(url: str, prefix: str = "team a", secret: str = SECRET) -> BucketStore:
    """A history in the bucket at an address."""
    keys = {"AWS_REGION": "us-ashburn-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": secret}
    return s3_store(f"s3://results/{prefix}", {**keys, "AWS_ENDPOINT_URL_S3": url})
