"""A loopback stand-in for Hugging Face and for a bucket, with faults on request."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from http_for_tests import HttpAnswer, HttpRequest
from llmd_pods.prewarm import __main__ as program

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

    url: str

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.requests: list[tuple[str, str | None, str | None]] = []
        self.broken: dict[str, int] = {}
        self.status: dict[str, list[int]] = {}
        self.wrong: dict[str, bytes] = {}
        self.part_bytes: dict[str, int] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.unlisted: set[str] = set()

    def asked_for(self, part: str) -> list[tuple[str, str | None, str | None]]:
        return [request for request in self.requests if part in request[0]]

    def answer(self, request: HttpRequest) -> HttpAnswer:
        path = unquote(request.url.path)
        if request.method == "HEAD":
            return HttpAnswer(200, b"", self.headers.get(path.partition(f"/o/{REPOSITORY}/")[2], {}))
        self.requests.append((path, request.headers.get("Range"), request.headers.get("Authorization")))
        if self.status.get(path):
            return HttpAnswer(self.status[path].pop(0), b"")
        for prefix, reply in self._routes().items():
            if path.startswith(prefix):
                return reply(request, path[len(prefix) :])
        return HttpAnswer(404, b"")

    def _routes(self) -> dict[str, Callable[[HttpRequest, str], HttpAnswer]]:
        return {
            f"/api/models/{REPOSITORY}/revision/": lambda _request, _rest: HttpAnswer(200, {"sha": COMMIT}),
            f"/api/models/{REPOSITORY}/tree/{COMMIT}": lambda _request, _rest: HttpAnswer(200, self._tree()),
            f"/{REPOSITORY}/resolve/{COMMIT}/": self._file,
            "/p/secret/n/ns/b/bucket/o/": self._object,
            "/encodings/": lambda _request, _rest: HttpAnswer(200, self.wrong.pop("vocabulary", VOCABULARY)),
        }

    def _tree(self) -> list[dict[str, Any]]:
        folders = [{"type": "directory", "path": "sub", "size": 0, "oid": "d"}]
        return [*folders, *(self._entry(path, content) for path, content in self.files.items())]

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
        if path.endswith(".safetensors"):
            return {**entry, "oid": "x", "lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}}
        return {**entry, "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}  # noqa: S324

    def _object(self, request: HttpRequest, name: str) -> HttpAnswer:
        if name == "encodings/o200k_base.tiktoken":
            return HttpAnswer(200, VOCABULARY)
        if name:
            return self._file(request, name.removeprefix(f"{REPOSITORY}/"))
        prefix = parse_qs(request.url.query)["prefix"][0]
        objects = [
            {"name": prefix + path, "size": len(content), "md5": self._listed_md5(path, content)}
            for path, content in self.files.items()
        ]
        return HttpAnswer(200, {"objects": objects})

    def _listed_md5(self, path: str, content: bytes) -> str | None:
        """Return the MD5 that Object Storage lists: of the content, or of the MD5s of the parts it was uploaded in."""
        if path in self.unlisted:
            return None
        size = self.part_bytes.get(path)
        return base64.b64encode(_md5(content)).decode() if size is None else md5_of_parts(content, size)

    def _file(self, request: HttpRequest, path: str) -> HttpAnswer:
        content = self.wrong.pop(path, None) or self.files[path]
        start = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        body = content[start:]
        length = {"Content-Length": str(len(body)), "Connection": "close"}
        return HttpAnswer(206 if start else 200, body[: self.broken.pop(path, len(body))], length)


def run(cache: Path, *arguments: str) -> int:
    """Fill a cache with the repository; return the program's exit code."""
    return program.main([f"--cache={cache}", f"--repository={REPOSITORY}", *arguments])


def snapshot(cache: Path) -> Path:
    """Return where a cache has the repository's files."""
    return cache / "hub" / "models--owner--model" / "snapshots" / COMMIT


def md5_of_parts(content: bytes, size: int) -> str:
    """Return `opc-multipart-md5` of the parts, by Oracle's description of it."""
    parts = [_md5(content[start : start + size]) for start in range(0, len(content), size)]
    return f"{base64.b64encode(_md5(b''.join(parts))).decode()}-{len(parts)}"


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()
