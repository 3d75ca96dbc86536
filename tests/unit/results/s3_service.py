"""A small S3 service on the loopback: one bucket in memory, paged lists, and signatures checked from what arrives."""

import hashlib
import hmac
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

SECRET = "s3cret"
PAGE = 2


class Bucket(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Bucket  # pyright: ignore[reportIncompatibleVariableOverride] - only a bucket makes one

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if not self._signed(b""):
            return
        _, _, key = unquote(parts.path).removeprefix("/").partition("/")
        if not key:
            self._list({name: values[0] for name, values in parse_qs(parts.query).items()})
        elif key in self.server.files:
            self._answer(200, self.server.files[key])
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self._signed(body):
            self.server.files[unquote(self.path).removeprefix("/").partition("/")[2]] = body
            self._answer(200, b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""

    def _list(self, query: Mapping[str, str]) -> None:
        names = sorted(name for name in self.server.files if name.startswith(query["prefix"]))
        first = int(query.get("continuation-token", 0))
        keys = "".join(map(self._entry, names[first : first + PAGE]))
        more = first + PAGE < len(names)
        token = f"<NextContinuationToken>{first + PAGE}</NextContinuationToken>" if more else ""
        space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        self._answer(200, f"<ListBucketResult {space}>{keys}{token}</ListBucketResult>".encode())

    def _entry(self, name: str) -> str:
        content = self.server.files[name]
        about = f"<LastModified>2026-03-01T12:00:00.000Z</LastModified><ETag>{_etag(content)}</ETag>"
        return f"<Contents><Key>{escape(name)}</Key>{about}<Size>{len(content)}</Size></Contents>"

    def _signed(self, body: bytes) -> bool:
        """Sign again what arrived, and compare."""
        if self.server.status != 200:
            self._answer(self.server.status, b"<Error><Code>SlowDown</Code></Error>")
            return False
        given = self.headers["authorization"]
        names = given.split("SignedHeaders=")[1].split(",")[0]
        scope = given.split("Credential=")[1].split(",")[0].split("/", 1)[1]
        parts, digest = urlsplit(self.path), hashlib.sha256(body).hexdigest()
        lines = [f"{name}:{self.headers[name]}" for name in names.split(";")]
        pairs = sorted(parse_qsl(parts.query, keep_blank_values=True))
        query = urlencode(pairs, quote_via=quote, safe="")
        canonical = "\n".join([self.command, parts.path, query, *lines, "", names, digest])
        text = (
            f"AWS4-HMAC-SHA256\n{self.headers['x-amz-date']}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        )
        key = f"AWS4{SECRET}".encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), "sha256").digest()
        if given.endswith(hmac.new(key, text.encode(), "sha256").hexdigest()):
            return True
        self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        return False

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", _etag(body))
        self.send_header("last-modified", "Sun, 01 Mar 2026 12:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)


def _etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()}"'


@contextmanager
def bucket() -> Generator[Bucket]:
    with Bucket() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
