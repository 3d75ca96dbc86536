"""HTTP downloads of release files and of container images' files, verified with their SHA-256 digests."""

import contextlib
import gzip
import hashlib
import io
import tarfile
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke.access.registry import Refusal, RegistryClient, RegistryError
from llmd_oke.catalogue.container_images import ContainerImage

from llmd_rehearsal.downloads import UnreachableError, is_secure

_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S, _WHOLE_TIMEOUT_S = 5.0, 20.0, 900.0
_MAX_BYTES = 2**30
_CHUNK_BYTES = 2**20
_REPORT_S = 10.0


def ask_for_address(url: str) -> None:
    """Check with a HEAD request that the host of a download has something at a URL.

    Raises:
        UnreachableError: the host doesn't answer within five seconds.
        KitError: the host answers with an error status.
    """
    try:
        answer = httpx2.head(url, timeout=_CONNECT_TIMEOUT_S, follow_redirects=True)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise UnreachableError(f"{url} does not answer: {error}") from error
    if not answer.is_success:
        raise KitError(f"{url} answers {answer.status_code}")


def ask_for_image(image: ContainerImage) -> None:
    """Check that a registry has an image with the pinned digest.

    Raises:
        UnreachableError: the registry can't be reached.
        KitError: the registry refuses the request or doesn't have the image.
    """
    with _registry() as client:
        client.stored(image, by_digest=True)


def file_of_release(url: str, sha256: str, file: str | None, folder: Path, progress: Progress) -> bytes | None:
    """Download a file of a program's release; return the content of `file` in the archive, or the whole content if
    `file` is None.

    Returns None if the archive has no such file. While the archive is read, it is in a temporary file in `folder`.

    Raises:
        UnreachableError: the host can't be reached.
        KitError: the download failed, or its digest isn't the pinned one.
    """
    with tempfile.TemporaryFile(dir=folder) as archive:
        _download(url, sha256, archive, progress)
        return archive.read() if file is None else _file_of_archive(archive, file)


def file_of_image(image: ContainerImage, file: str) -> bytes | None:
    """Return a file's content from the topmost layer of a container image that has the file; None if no layer has it.

    Raises:
        UnreachableError: the registry can't be reached.
        KitError: the registry doesn't provide the image.
    """
    with _registry() as client:
        layers = (client.blob(image, layer.digest, _MAX_BYTES) for layer in reversed(client.layers(image)))
        found = (_file_of_archive(io.BytesIO(layer), file) for layer in layers)
        return next((content for content in found if content is not None), None)


def _download(url: str, sha256: str, target: io.BufferedRandom, progress: Progress) -> None:
    """Download a URL into `target`, verify the digest, and rewind `target`."""
    if not is_secure(url):
        raise KitError(f"{url} is not HTTPS, and not on this machine")
    host = urlsplit(url).hostname
    digest, start_s, told_s, size = hashlib.sha256(), time.monotonic(), 0.0, 0
    limits = httpx2.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    try:
        with httpx2.stream("GET", url, follow_redirects=True, timeout=limits) as answer:
            if not answer.is_success:
                raise KitError(f"{host} answers {answer.status_code} for {url}")
            of = f" of {int(length) // 2**20}" if (length := answer.headers.get("content-length")) else ""
            for chunk in answer.iter_bytes(_CHUNK_BYTES):
                size, elapsed_s = size + len(chunk), time.monotonic() - start_s
                if size > _MAX_BYTES or elapsed_s > _WHOLE_TIMEOUT_S:
                    limit = f"{_MAX_BYTES >> 30} GiB or {_WHOLE_TIMEOUT_S / 60:.0f} minutes"
                    raise KitError(f"{url} takes more than {limit}")
                if elapsed_s - told_s > _REPORT_S:
                    told_s = elapsed_s
                    progress.detail(f"{elapsed_s:.0f} s, {size // 2**20}{of} MiB")
                digest.update(chunk)
                target.write(chunk)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise UnreachableError(f"{host} does not answer: {str(error) or type(error).__name__}") from error
    if digest.hexdigest() != sha256:
        raise KitError(f"{url} has the SHA-256 {digest.hexdigest()}, pinned is {sha256}: it is another file")
    target.seek(0)


@contextlib.contextmanager
def _registry() -> Generator[RegistryClient]:
    """Yield a registry client whose errors are raised as `UnreachableError` or `KitError`."""
    limits = httpx2.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    try:
        with httpx2.Client(timeout=limits, follow_redirects=True, max_redirects=3) as http:
            yield RegistryClient(http)
    except RegistryError as error:
        kind = UnreachableError if error.refusal in {Refusal.UNREACHABLE, Refusal.BUSY} else KitError
        raise kind(error.message.rstrip(".")) from error


def _file_of_archive(archive: io.BufferedIOBase | io.BufferedRandom, file: str) -> bytes | None:
    try:
        with tarfile.open(fileobj=archive, mode="r:*") as opened:
            names = (member for member in opened if member.isfile() and member.name.removeprefix("./") == file)
            member = next(names, None)
            content = member and opened.extractfile(member)
            return content.read() if content else None
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, OSError) as error:
        raise KitError(f"what should have {file} is no archive: {error}") from error
