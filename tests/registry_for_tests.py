"""A container registry on the loopback interface: manifests and tokens as the OCI Distribution Specification and
distribution's token specification have them. Nothing else of a registry is needed to ask for digests."""

import hashlib
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from http_for_tests import HttpAnswer, HttpRequest, http_server

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

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request for a token or a manifest."""
        self.requests.append(f"{request.method} {request.url.geturl()}")
        path, query = request.url.path, parse_qs(request.url.query)
        if path == "/token":
            _, repository, actions = query["scope"][0].split(":")
            if repository in self.private or query.get("service") != [self.address] or actions != "pull":
                return _refusal(403, "DENIED")
            return HttpAnswer(200, {"token": f"for-{repository}"})
        if not path.startswith("/v2/") or "/manifests/" not in path:
            return _refusal(404, "NAME_UNKNOWN")
        repository, _, name = path.removeprefix("/v2/").partition("/manifests/")
        if self.wants_token and request.headers["Authorization"] != f"Bearer for-{repository}":
            place = f'realm="http://{self.address}/token",service="{self.address}"'
            value = f'Bearer {place},scope="repository:{repository}:pull"'
            return _refusal(401, "UNAUTHORIZED", WWW_Authenticate=value)
        if self.busy:
            self.busy -= 1
            after = {"Retry_After": self.retry_after} if self.retry_after else {}
            return _refusal(429, "TOOMANYREQUESTS", **after)
        if self.broken:
            self.broken -= 1
            return _refusal(503, "UNAVAILABLE")
        media_type, content = self.repositories.get(repository, {}).get(name, ("", b""))
        if not media_type or media_type not in (request.headers["Accept"] or ""):
            return _refusal(404, "MANIFEST_UNKNOWN" if repository in self.repositories else "NAME_UNKNOWN")
        digest = self.false_digest or f"sha256:{hashlib.sha256(content).hexdigest()}"
        return HttpAnswer(200, content, {"Content-Type": media_type, "Docker-Content-Digest": digest})


@contextmanager
def served(registry: Registry) -> Generator[Registry]:
    """The registry at `registry.address`, until the end of the block."""
    with http_server(registry.answer) as server:
        registry.address = f"127.0.0.1:{server.server_port}"
        yield registry


def _refusal(status: int, code: str, **headers: str) -> HttpAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(status, {"errors": [{"code": code, "message": code.lower()}]}, named)
