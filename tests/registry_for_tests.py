"""A container registry on the loopback interface: manifests and tokens as the OCI Distribution Specification and
distribution's token specification have them. Nothing else of a registry is needed to ask for digests."""

import hashlib
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
AMD64 = {"os": "linux", "architecture": "amd64"}
ARM64 = {"os": "linux", "architecture": "arm64"}


@dataclass
class Registry:
    """Repositories with manifests by tag and by digest. `private` ones get no token, `busy` answers so many requests
    with 429 and this `Retry-After`; every request is kept in `requests`.
    """

    address: str = ""
    repositories: dict[str, dict[str, tuple[str, bytes]]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    wants_token: bool = True
    busy: int = 0
    retry_after: str | None = "1"
    broken: int = 0
    false_digest: str | None = None
    requests: list[str] = field(default_factory=list)

    def push(self, repository: str, tag: str, *layers: int, media_type: str = MANIFEST) -> str:
        """Store an image of layers with these sizes under a tag; return its digest."""
        sizes = [{"mediaType": "layer", "digest": f"sha256:{i:064x}", "size": size} for i, size in enumerate(layers)]
        return self._store(repository, tag, {"schemaVersion": 2, "mediaType": media_type, "layers": sizes}, media_type)

    def push_index(self, repository: str, tag: str, *platforms: Mapping[str, str], bytes_each: int = 1000) -> str:
        """Store an index with an image for each platform; return the index's digest."""
        entries: list[dict[str, Any]] = []
        for i, platform in enumerate(platforms):
            digest = self.push(repository, f"platform-{i}", bytes_each + i)
            entries.append({"mediaType": MANIFEST, "digest": digest, "platform": dict(platform)})
        return self._store(repository, tag, {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}, INDEX)

    def _store(self, repository: str, tag: str, document: Mapping[str, Any], media_type: str) -> str:
        content = json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.repositories.setdefault(repository, {}).update({tag: (media_type, content), digest: (media_type, content)})
        return digest


@contextmanager
def served(registry: Registry) -> Generator[Registry]:
    """The registry at `registry.address`, until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": registry}))
    registry.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""

    def _answer(self) -> None:
        url = urlsplit(self.path)
        self.registry.requests.append(f"{self.command} {self.path}")
        if url.path == "/token":
            self._give_token(parse_qs(url.query))
        elif url.path.startswith("/v2/") and "/manifests/" in url.path:
            repository, _, name = url.path.removeprefix("/v2/").partition("/manifests/")
            self._give_manifest(repository, name)
        else:
            self._refuse(404, "NAME_UNKNOWN")

    def _give_token(self, query: Mapping[str, list[str]]) -> None:
        _, repository, actions = query["scope"][0].split(":")
        if repository in self.registry.private or query.get("service") != [self.registry.address] or actions != "pull":
            self._refuse(403, "DENIED")
        else:
            self._send(200, "application/json", json.dumps({"token": f"for-{repository}"}).encode(), {})

    def _give_manifest(self, repository: str, name: str) -> None:
        if self.registry.wants_token and self.headers.get("Authorization") != f"Bearer for-{repository}":
            self._challenge(repository)
            return
        if self.registry.busy:
            self.registry.busy -= 1
            after = {"Retry-After": self.registry.retry_after} if self.registry.retry_after else {}
            self._refuse(429, "TOOMANYREQUESTS", after)
            return
        if self.registry.broken:
            self.registry.broken -= 1
            self._refuse(503, "UNAVAILABLE")
            return
        stored = self.registry.repositories.get(repository, {}).get(name)
        if stored is None or stored[0] not in self.headers.get("Accept", ""):
            self._refuse(404, "MANIFEST_UNKNOWN" if repository in self.registry.repositories else "NAME_UNKNOWN")
            return
        digest = self.registry.false_digest or f"sha256:{hashlib.sha256(stored[1]).hexdigest()}"
        self._send(200, stored[0], stored[1], {"Docker-Content-Digest": digest})

    def _challenge(self, repository: str) -> None:
        address = self.registry.address
        value = f'Bearer realm="http://{address}/token",service="{address}",scope="repository:{repository}:pull"'
        self._refuse(401, "UNAUTHORIZED", {"WWW-Authenticate": value})

    def _refuse(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps({"errors": [{"code": code, "message": code.lower()}]}).encode()
        self._send(status, "application/json", body, headers or {})

    def _send(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
