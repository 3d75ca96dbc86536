"""A real registry on the loopback interface: CNCF's distribution, which wants tokens, and who gives them out.

Tests push what they need into it, by the OCI Distribution Specification.
"""

import base64
import hashlib
import json
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx2
import pytest
from certificates_for_tests import certificate, private_key
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from free_ports import free_port
from http_for_tests import HttpAnswer, HttpRequest, address_of, http_server
from llmd_rehearsal.programs import locate
from registry_for_tests import INDEX, MANIFEST

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
HELM_CONFIG = "application/vnd.cncf.helm.config.v1+json"
HELM_CHART = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
SERVICE = "registry-for-tests"
STARTS_IN_S = 20.0


class TokenService:
    """A service that gives anybody a token to pull, but for `private` repositories; a user with a password may push."""

    def __init__(self) -> None:
        self.key = private_key()
        self.certificate = certificate(self.key, SERVICE)
        self.private: set[str] = set()
        self.asked: list[str] = []

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request for a token."""
        scopes = parse_qs(request.url.query).get("scope", [])
        token = self.token(scopes, pushes="Authorization" in request.headers)
        return HttpAnswer(200, {"token": token, "access_token": token})

    def token(self, scopes: Sequence[str], *, pushes: bool) -> str:
        """A token by distribution's token specification; what is denied is left out of it."""
        self.asked += scopes
        access: list[dict[str, object]] = []
        for scope in " ".join(scopes).split():
            kind, name, actions = scope.split(":")
            allowed = actions.split(",") if pushes else ["pull"] * (name not in self.private)
            access.append({"type": kind, "name": name, "actions": allowed})
        now = int(time.time())
        claims = {"iss": SERVICE, "sub": "", "aud": SERVICE, "iat": now, "nbf": now - 10, "exp": now + 300, "jti": "1"}
        der = self.certificate.certificate.public_bytes(Encoding.DER)
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(der).decode()]}
        text = f"{_segment(header)}.{_segment({**claims, 'access': access})}"
        r, s = decode_dss_signature(self.key.key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _segment(value: object) -> str:
    return _base64(json.dumps(value).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def digest_of(content: bytes) -> str:
    """Return how registries name content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class RegistryProgram:
    """The running registry at `address`; `tokens` says who may pull."""

    def __init__(self, address: str, tokens: TokenService) -> None:
        self.address = address
        self.tokens = tokens
        self._http = httpx2.Client(base_url=f"http://{address}", timeout=30)

    @property
    def private(self) -> set[str]:
        """Repositories that are given to nobody."""
        return self.tokens.private

    def push(self, repository: str, tag: str, *layers: int, media_type: str = MANIFEST) -> str:
        """Push an image of layers with these sizes; return the manifest's digest."""
        contents = [bytes([i % 256]) * size for i, size in enumerate(layers)]
        return self.push_artifact(repository, tag, (CONFIG, b"{}"), [(LAYER, item) for item in contents], media_type)

    def push_index(self, repository: str, tag: str, *platforms: Mapping[str, str], bytes_each: int = 1000) -> str:
        """Push an index with an image for each platform; return the index's digest."""
        entries: list[dict[str, Any]] = []
        for i, platform in enumerate(platforms):
            config = json.dumps(dict(platform)).encode()
            manifest = self._manifest(repository, (CONFIG, config), [(LAYER, b"x" * (bytes_each + i))], MANIFEST)
            digest = self.put(repository, digest_of(manifest), manifest, MANIFEST)
            entries.append({"mediaType": MANIFEST, "digest": digest, "size": len(manifest), "platform": dict(platform)})
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
        return self.put(repository, tag, index, INDEX)

    def push_chart(self, repository: str, version: str, archive: bytes) -> str:
        """Push a chart's archive as `helm push` does; return the manifest's digest."""
        name = repository.rpartition("/")[2]
        config = json.dumps({"name": name, "version": version, "apiVersion": "v2"}).encode()
        return self.push_artifact(repository, version, (HELM_CONFIG, config), [(HELM_CHART, archive)])

    def push_artifact(
        self,
        repository: str,
        tag: str,
        config: tuple[str, bytes],
        layers: Sequence[tuple[str, bytes]],
        media_type: str = MANIFEST,
        annotations: Sequence[Mapping[str, str]] = (),
    ) -> str:
        """Push anything that is a manifest with a config and layers; `annotations` are the layers'."""
        manifest = self._manifest(repository, config, layers, media_type, annotations)
        return self.put(repository, tag, manifest, media_type)

    def put(self, repository: str, tag: str, manifest: bytes, media_type: str) -> str:
        """Put a manifest under a tag or its digest; return the digest."""
        url = f"/v2/{repository}/manifests/{tag}"
        answer = self._http.put(url, content=manifest, headers={"Content-Type": media_type, **self._may(repository)})
        answer.raise_for_status()
        return answer.headers["docker-content-digest"]

    def delete(self, repository: str, digest: str) -> None:
        """Delete a manifest."""
        url = f"/v2/{repository}/manifests/{digest}"
        self._http.delete(url, headers=self._may(repository)).raise_for_status()

    def manifest(self, repository: str, name: str) -> bytes:
        """Return what lies under a tag or digest."""
        accepted = {"Accept": f"{MANIFEST}, {INDEX}", **self._may(repository)}
        answer = self._http.get(f"/v2/{repository}/manifests/{name}", headers=accepted)
        return answer.raise_for_status().content

    def _manifest(
        self,
        repository: str,
        config: tuple[str, bytes],
        layers: Sequence[tuple[str, bytes]],
        media_type: str,
        annotations: Sequence[Mapping[str, str]] = (),
    ) -> bytes:
        described = [self._blob(repository, kind, content) for kind, content in (config, *layers)]
        for layer, notes in zip(described[1:], annotations, strict=False):
            layer["annotations"] = dict(notes)
        document = {"schemaVersion": 2, "mediaType": media_type, "config": described[0], "layers": described[1:]}
        return json.dumps(document).encode()

    def _blob(self, repository: str, kind: str, content: bytes) -> dict[str, Any]:
        digest = digest_of(content)
        headers = self._may(repository)
        begun = self._http.post(f"/v2/{repository}/blobs/uploads/", headers=headers).raise_for_status()
        place = httpx2.URL(begun.headers["location"]).copy_merge_params({"digest": digest})
        octets = {"Content-Type": "application/octet-stream", **headers}
        self._http.put(place, content=content, headers=octets).raise_for_status()
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def _may(self, repository: str) -> dict[str, str]:
        token = self.tokens.token([f"repository:{repository}:pull,push,delete"], pushes=True)
        return {"Authorization": f"Bearer {token}"}


@contextmanager
def running_registry(folder: Path) -> Generator[RegistryProgram]:
    """The registry until the end of the block; skips the test where it isn't built."""
    program = locate("registry")
    if program is None:
        pytest.skip("no registry: llmd-oke rehearse programs --tests builds it")
    tokens = TokenService()
    with http_server(tokens.answer) as server:
        realm = f"{address_of(server)}/token"
        with _running(folder, program.path, tokens, realm) as address:
            yield RegistryProgram(address, tokens)


@contextmanager
def _running(folder: Path, program: Path, tokens: TokenService, realm: str) -> Generator[str]:
    address = f"127.0.0.1:{free_port()}"
    (folder / "certificate.pem").write_text(tokens.certificate.chain)
    auth = {"realm": realm, "service": SERVICE, "issuer": SERVICE}
    config = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"inmemory": {}, "delete": {"enabled": True}},
        "http": {"addr": address},
        "auth": {"token": {**auth, "rootcertbundle": str(folder / "certificate.pem")}},
    }
    (folder / "config.yml").write_text(json.dumps(config))
    log = folder / "registry.log"
    with log.open("wb") as output:
        argv = [program, "serve", folder / "config.yml"]
        environment = {"OTEL_TRACES_EXPORTER": "none", "PATH": "/usr/bin"}
        process = subprocess.Popen(argv, stdout=output, stderr=output, env=environment)
    try:
        _await_answer(address, process, log)
        yield address
    finally:
        process.terminate()
        process.wait(10)


def _await_answer(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + STARTS_IN_S
    while process.poll() is None and time.monotonic() < until:
        try:
            if httpx2.get(f"http://{address}/v2/", timeout=1).status_code == 401:
                return
        except httpx2.HTTPError:
            time.sleep(0.02)
    raise AssertionError(f"the registry does not answer within {STARTS_IN_S:.0f} s: {log.read_text()}")
