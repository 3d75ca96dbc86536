"""Anonymous queries of container registries for images, as of a node without credentials; only manifests are pulled.

The protocol is that of the OCI Distribution Specification, and of its predecessor, Docker Registry HTTP API V2.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from pydantic import BaseModel, ValidationError

from llmd_oke.catalogue.container_images import PLATFORM, ContainerImage

Answer = TypeVar("Answer")

TIMEOUT_S = 20.0
TRIES = 3
MAX_RETRY_AFTER_S = 10.0
MAX_MANIFEST_BYTES = 4 * 2**20
"""Longest manifest that is read: the size that registries must accept at least (OCI Distribution Specification, Pushing
Manifests)."""

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ACCEPT = ", ".join((*_INDEXES, *_MANIFESTS))
_HOSTS = {"docker.io": "registry-1.docker.io"}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
"""Host names of registries that are queried over HTTP instead of HTTPS, as by Docker and CRI-O."""

_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class Refusal(StrEnum):
    """Reason why a registry doesn't return an image."""

    UNREACHABLE = "unreachable"
    DENIED = "denied"
    NOT_FOUND = "no such tag"
    BUSY = "too many requests"
    OTHER_PLATFORM = "not for linux/amd64"
    UNSOUND = "unsound answer"


class RegistryError(KitError):
    """Error for an image that a registry doesn't return."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True)
class StoredImage:
    """Image or chart in a registry.

    `digest` is that of the manifest, or of the index of an image for several platforms; `download_bytes` is the sum of
    the compressed layers for linux/amd64, None if it wasn't requested.
    """

    digest: str
    download_bytes: int | None = None


class _Platform(BaseModel):
    os: str = ""
    architecture: str = ""


class _Listed(BaseModel):
    """Entry of an index: the manifest's digest and its platform."""

    digest: str
    platform: _Platform = _Platform()


class Layer(BaseModel):
    """Layer of an image or of another artifact: size in bytes, digest and annotations."""

    size: int
    digest: str = ""
    annotations: dict[str, str] = {}


class _Body(BaseModel):
    """The fields that are read of a manifest or an index of manifests (OCI Image Format Specification)."""

    mediaType: str | None = None  # noqa: N815 - as the specification spells it
    manifests: tuple[_Listed, ...] = ()
    layers: tuple[Layer, ...] = ()


class _Token(BaseModel):
    """Answer of a token server, with the token in either field (distribution, docs/spec/auth/token.md)."""

    token: str = ""
    access_token: str = ""


@dataclass(frozen=True)
class _Manifest:
    digest: str
    media_type: str
    body: _Body

    @property
    def layer_bytes(self) -> int | None:
        """The sum of the compressed layers' sizes in bytes; None if the manifest lists no layers."""
        return sum(layer.size for layer in self.body.layers) if self.body.layers else None


class RegistryClient:
    """Anonymous client of container registries. Not thread-safe."""

    def __init__(self, http: httpx2.Client | None = None, pause: Callable[[float], None] = time.sleep) -> None:
        self._http = http or httpx2.Client(timeout=TIMEOUT_S, follow_redirects=True, max_redirects=3)
        self._pause = pause
        self._tokens: dict[tuple[str, str], str] = {}

    def stored(self, image: ContainerImage, *, by_digest: bool = False, with_size: bool = False) -> StoredImage:
        """Look up an image in its registry, by tag or by digest.

        A tag that still has the image's digest takes a HEAD request alone, which Docker Hub counts as no pull (docs of
        Docker Hub, "Pull usage and limits").

        Args:
            image: the image.
            by_digest: use the image's digest, if known, as nodes do, instead of its tag.
            with_size: also request the size of the layers.

        Raises:
            RegistryError: the registry doesn't return the image, or has none for linux/amd64.
        """
        name = image.digest if by_digest and image.digest else image.tag
        digest, media_type = self._head(image, name)
        is_known = not by_digest and digest == image.digest
        if digest and not with_size and (is_known or media_type in _MANIFESTS):
            return StoredImage(digest)
        manifest = self._manifest(image, digest or name)
        if manifest.media_type not in _INDEXES:
            return StoredImage(manifest.digest, manifest.layer_bytes)
        child = _for_platform(image, manifest)
        if not with_size:
            self._head(image, child)
            return StoredImage(manifest.digest)
        return StoredImage(manifest.digest, self._manifest(image, child).layer_bytes)

    def layers(self, image: ContainerImage) -> tuple[Layer, ...]:
        """Return the layers of an image for linux/amd64, or of a chart, whose layer is the chart's archive.

        Raises:
            RegistryError: the registry doesn't return the manifest.
        """
        manifest = self._manifest(image, image.digest or image.tag)
        if manifest.media_type in _INDEXES:
            manifest = self._manifest(image, _for_platform(image, manifest))
        return manifest.body.layers

    def blob(self, image: ContainerImage, digest: str, max_bytes: int | None = None) -> bytes:
        """Download a blob (a layer of an image or of another artifact) of at most `max_bytes`; `MAX_MANIFEST_BYTES` if
        left out.

        Raises:
            RegistryError: the registry doesn't return the blob, or returns content of another digest.
        """
        content = self._ask("GET", image, digest, "blobs", max_bytes).content
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise RegistryError(Refusal.UNSOUND, f"{image.registry} answers with something else than {digest}.")
        return content

    def _head(self, image: ContainerImage, name: str) -> tuple[str | None, str]:
        answer = self._ask("HEAD", image, name)
        return answer.headers.get("docker-content-digest"), _media_type(answer)

    def _manifest(self, image: ContainerImage, name: str) -> _Manifest:
        answer = self._ask("GET", image, name)
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        stated = {answer.headers.get("docker-content-digest"), name if name.startswith("sha256:") else None} - {None}
        if stated - {digest}:
            message = f"{image.registry} states {', '.join(map(str, stated))} for a manifest of {digest}."
            raise RegistryError(Refusal.UNSOUND, message)
        try:
            body = _Body.model_validate_json(answer.content)
        except ValidationError as error:
            message = f"{image.registry} answers {image.reference} with no manifest."
            raise RegistryError(Refusal.UNSOUND, message) from error
        return _Manifest(digest, body.mediaType or _media_type(answer), body)

    def _ask(
        self,
        method: str,
        image: ContainerImage,
        name: str,
        kind: str = "manifests",
        max_bytes: int | None = None,
    ) -> httpx2.Response:
        """Request a manifest, or an object of another `kind`, by tag or digest (`name`); return the answer. With a
        token if the registry requires one, and repeated while the registry is busy.

        Raises:
            RegistryError: the registry doesn't answer, or refuses.
        """
        host = _HOSTS.get(image.registry, image.registry)
        scheme = "http" if _is_loopback(host) else "https"
        url = f"{scheme}://{host}/v2/{image.repository}/{kind}/{name}"
        key = host, image.repository
        attempt = 0
        while True:
            attempt += 1
            answer = self._send(method, url, image, self._tokens.get(key), max_bytes)
            if answer.status_code == 401 and key not in self._tokens:
                self._tokens[key] = self._token(answer.headers.get("www-authenticate", ""), image, host)
                answer = self._send(method, url, image, self._tokens[key], max_bytes)
            pause_s = _pause_s(answer, attempt)
            if pause_s is None or attempt == TRIES:
                _judge(answer, image, name)
                return answer
            self._pause(pause_s)

    def _token(self, challenge: str, image: ContainerImage, host: str) -> str:
        """Request an anonymous token from the server that the registry's `challenge` (its header WWW-Authenticate)
        names (distribution, docs/spec/auth/token.md).

        Raises:
            RegistryError: the registry requires credentials, or its token server isn't HTTPS or returns no token.
        """
        scheme, _, rest = challenge.partition(" ")
        parameters = dict(_PARAMETER.findall(rest))
        realm = parameters.get("realm", "")
        if scheme.lower() != "bearer" or not realm:
            raise RegistryError(Refusal.DENIED, f"{image.registry} wants a user and a password for {image.repository}.")
        if urlsplit(realm).scheme != "https" and not _is_loopback(host):
            raise RegistryError(Refusal.UNSOUND, f"{image.registry} gives out tokens at {realm}, which is not HTTPS.")
        query = {"scope": parameters.get("scope") or f"repository:{image.repository}:pull"}
        if "service" in parameters:
            query["service"] = parameters["service"]
        answer = self._send("GET", str(httpx2.URL(realm, params=query)), image, None)
        _judge(answer, image, None)
        try:
            body = _Token.model_validate_json(answer.content)
        except ValidationError as error:
            message = f"{urlsplit(realm).netloc} answers with no token for {image.repository}."
            raise RegistryError(Refusal.UNSOUND, message) from error
        return body.token or body.access_token

    def _send(
        self, method: str, url: str, image: ContainerImage, token: str | None, max_bytes: int | None = None
    ) -> httpx2.Response:
        limit_bytes = max_bytes or MAX_MANIFEST_BYTES
        headers = {"Accept": _ACCEPT, **({"Authorization": f"Bearer {token}"} if token else {})}
        try:
            with self._http.stream(method, url, headers=headers) as answer:
                content = bytearray()
                for chunk in answer.iter_bytes():
                    content += chunk
                    if len(content) > limit_bytes:
                        message = f"{image.registry} answers with more than {limit_bytes} bytes."
                        raise RegistryError(Refusal.UNSOUND, message)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            message = f"{urlsplit(url).netloc} does not answer within {TIMEOUT_S:.0f} s: {reason}."
            raise RegistryError(Refusal.UNREACHABLE, message) from error
        undone = {"content-encoding", "content-length"}  # the content is decoded
        plain = {key: value for key, value in answer.headers.items() if key not in undone}
        return httpx2.Response(answer.status_code, headers=plain, content=bytes(content))


Answers = Mapping[str, StoredImage | RegistryError]
"""The result of the lookup of each image in its registry, by the image's reference."""


def query_registries(
    images: Iterable[ContainerImage], ask: Callable[[RegistryClient, ContainerImage], Answer], progress: Progress
) -> dict[str, Answer]:
    """Call `ask` for each image; return the results by the images' references. Registries are queried in parallel, the
    images of one registry one after the other.
    """

    def of_one_registry(images: Sequence[ContainerImage]) -> list[tuple[str, Answer]]:
        client = RegistryClient()
        answers: list[tuple[str, Answer]] = []
        for image in images:
            progress.detail(image.reference)
            answers.append((image.reference, ask(client, image)))
        return answers

    ordered = sorted(images, key=lambda image: (image.registry, image.reference))
    by_registry = [list(group) for _, group in groupby(ordered, key=lambda image: image.registry)]
    progress.step(f"asking {', '.join(group[0].registry for group in by_registry)} for {len(ordered)} images")
    with ThreadPoolExecutor(max(1, len(by_registry))) as threads:
        return dict(answer for answers in threads.map(of_one_registry, by_registry) for answer in answers)


def stored_image(
    client: RegistryClient, image: ContainerImage, *, with_size: bool = True
) -> StoredImage | RegistryError:
    """Return the image that a registry has under the image's tag, or the error of the lookup."""
    try:
        return client.stored(image, with_size=with_size)
    except RegistryError as error:
        return error


def _judge(answer: httpx2.Response, image: ContainerImage, name: str | None) -> None:
    """Raise an error if the answer's status isn't success; `name` is the requested tag or digest, None for a token.

    Raises:
        RegistryError: the status isn't success.
    """
    status, registry = answer.status_code, image.registry
    if answer.is_success:
        return
    if status in {401, 403}:
        message = f"{registry} gives {image.repository} to nobody who isn't signed in: it is private, or gone."
        raise RegistryError(Refusal.DENIED, message)
    if status == 404:
        mark = "@" if name and name.startswith("sha256:") else ":"
        raise RegistryError(Refusal.NOT_FOUND, f"{registry} has no {image.repository}{mark}{name or image.tag}.")
    if status == 429:
        after = answer.headers.get("retry-after")
        raise RegistryError(
            Refusal.BUSY, f"{registry} takes no more requests" + (f" for {after} s." if after else " for now.")
        )
    raise RegistryError(Refusal.UNREACHABLE, f"{registry} answers with status {status}.")


def _pause_s(answer: httpx2.Response, attempt: int) -> float | None:
    """Return the seconds to wait before a retry; None if a retry doesn't help, or is allowed only after
    `MAX_RETRY_AFTER_S`.
    """
    if answer.status_code == 429:
        after = answer.headers.get("retry-after", "")
        wait_s = float(after) if after.isdigit() else 2.0**attempt
        return wait_s if wait_s <= MAX_RETRY_AFTER_S else None
    return 2.0**attempt if answer.status_code in {500, 502, 503, 504} else None


def _for_platform(image: ContainerImage, index: _Manifest) -> str:
    """Return the digest of the manifest for linux/amd64.

    Raises:
        RegistryError: the index has none.
    """
    for listed in index.body.manifests:
        if (listed.platform.os, listed.platform.architecture) == PLATFORM:
            return listed.digest
    raise RegistryError(Refusal.OTHER_PLATFORM, f"{image.reference} has no manifest for {'/'.join(PLATFORM)}.")


def _media_type(answer: httpx2.Response) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip()


def _is_loopback(host: str) -> bool:
    return host.rpartition(":")[0] in _LOOPBACK or host in _LOOPBACK
