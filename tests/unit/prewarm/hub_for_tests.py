"""A loopback stand-in for Hugging Face and for a bucket, with faults on request."""

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c" * 40
REPOSITORY = "owner/model"

FILES = {
    "config.json": b'{"a": 1}',
    "model-1.safetensors": b"weights-one" * 1000,
    "sub/model-2.safetensors": b"weights-two" * 500,
    "original/model.safetensors": b"not read",
}

VOCABULARY = b"IQ== 0\nIg== 1\n"
"""In tiktoken's format: tokens in base64 and their ranks."""


class Hub:
    """A server of files; `broken[path]` is how many bytes an answer has before the connection ends, once."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.requests: list[tuple[str, str | None, str | None]] = []
        self.broken: dict[str, int] = {}
        self.status: dict[str, list[int]] = {}
        self.wrong: dict[str, bytes] = {}
        self.part_bytes: dict[str, int] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.unlisted: set[str] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def do_HEAD(self) -> None:
                hub.head(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def asked_for(self, part: str) -> list[tuple[str, str | None, str | None]]:
        return [request for request in self.requests if part in request[0]]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)
        self.requests.append((path, handler.headers.get("Range"), handler.headers.get("Authorization")))
        if self.status.get(path):
            return self._send(handler, b"", self.status[path].pop(0))
        for prefix, reply in self._routes().items():
            if path.startswith(prefix):
                return reply(handler, path[len(prefix) :])
        return self._send(handler, b"", 404)

    def head(self, handler: BaseHTTPRequestHandler) -> None:
        name = unquote(urlsplit(handler.path).path).partition(f"/o/{REPOSITORY}/")[2]
        handler.send_response(200)
        for header, value in self.headers.get(name, {}).items():
            handler.send_header(header, value)
        handler.end_headers()

    def _routes(self) -> dict[str, Callable[[BaseHTTPRequestHandler, str], None]]:
        return {
            f"/api/models/{REPOSITORY}/revision/": lambda h, _: self._json(h, {"sha": COMMIT}),
            f"/api/models/{REPOSITORY}/tree/{COMMIT}": lambda h, _: self._json(h, self._tree()),
            f"/{REPOSITORY}/resolve/{COMMIT}/": self._file,
            "/p/secret/n/ns/b/bucket/o/": self._object,
            "/encodings/": lambda h, _: self._send(h, self.wrong.pop("vocabulary", VOCABULARY), 200),
        }

    def _tree(self) -> list[dict[str, Any]]:
        folders = [{"type": "directory", "path": "sub", "size": 0, "oid": "d"}]
        return [*folders, *(self._entry(path, content) for path, content in self.files.items())]

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
        if path.endswith(".safetensors"):
            return {**entry, "oid": "x", "lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}}
        return {**entry, "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}  # noqa: S324

    def _object(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        if name == "encodings/o200k_base.tiktoken":
            self._send(handler, VOCABULARY, 200)
        elif name:
            self._file(handler, name.removeprefix(f"{REPOSITORY}/"))
        else:
            self._list(handler)

    def _list(self, handler: BaseHTTPRequestHandler) -> None:
        prefix = parse_qs(urlsplit(handler.path).query)["prefix"][0]
        objects = [
            {"name": prefix + path, "size": len(content), "md5": self._listed_md5(path, content)}
            for path, content in self.files.items()
        ]
        self._json(handler, {"objects": objects})

    def _listed_md5(self, path: str, content: bytes) -> str | None:
        """Return the MD5 that Object Storage lists: of the content, or of the MD5s of the parts it was uploaded in."""
        if path in self.unlisted:
            return None
        size = self.part_bytes.get(path)
        return base64.b64encode(_md5(content)).decode() if size is None else md5_of_parts(content, size)

    def _file(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        content = self.wrong.pop(path, None) or self.files[path]
        start = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        body = content[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: self.broken.pop(path, len(body))])

    def _json(self, handler: BaseHTTPRequestHandler, document: object) -> None:
        self._send(handler, json.dumps(document).encode(), 200)

    def _send(self, handler: BaseHTTPRequestHandler, body: bytes, status: int) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


def md5_of_parts(content: bytes, size: int) -> str:
    """Return `opc-multipart-md5` of the parts, by Oracle's description of it."""
    parts = [_md5(content[start : start + size]) for start in range(0, len(content), size)]
    return f"{base64.b64encode(_md5(b''.join(parts))).decode()}-{len(parts)}"


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()
