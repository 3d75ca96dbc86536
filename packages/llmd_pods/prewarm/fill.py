"""Download of a model into a cache: the source of its files, and the lock by which one program at a time downloads."""

import argparse
import os
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from . import PrewarmError, repeated, say
from .places import CacheFolder, Listing, RemoteFile
from .sources import list_hugging_face, list_object_storage
from .transfer import Download
from .web import Web, secret_of

HEARTBEAT_S = 10.0
STALE_AFTER_S = 120.0

_ADDRESS = re.compile(r"https?://[^/?#@\s]+/[^?#\s]*")


def run(place: CacheFolder, options: argparse.Namespace) -> None:
    """Fill the model's directory in a cache according to the command line and the environment.

    Raises:
        PrewarmError: an operator's attention is needed.
        UnsafeNameError: a file's name leads out of the cache.
        OSError: the cache isn't writable.
    """
    web, list_files = _source(options)
    vocabulary: list[RemoteFile] = [options.vocabulary] if options.vocabulary else []
    if options.source != "hugging-face":  # pods that get weights from a bucket may reach nothing else
        bucket = secret_of(os.environ, "MODEL_SOURCE_URL").rstrip("/")
        vocabulary = [replace(file, url=f"{bucket}/{urllib.parse.quote(file.path, safe='')}") for file in vocabulary]
    ensure(place, list_files, web, options.connections, vocabulary)


def fill(place: CacheFolder, listing: Listing, web: Web, connections: int) -> None:
    """Download all files of a listing into the model's directory, and record there that the model is complete."""
    if not any(file.path.endswith(".safetensors") for file in listing.files):
        raise PrewarmError(f"{place.repository} at {place.revision} has no weights (*.safetensors)")
    Download(web, place, place.snapshot(listing.commit), place.repository, listing.files).run(connections)
    place.finish(listing)


def ensure(
    place: CacheFolder,
    list_files: Callable[[], Listing],
    web: Web,
    connections: int,
    vocabulary: Sequence[RemoteFile] = (),
    poll_s: float = 5.0,
) -> None:
    """Return as soon as the model and its vocabulary are complete, whichever program completed them. The Hugging Face
    token isn't sent to the vocabulary's source.
    """
    while not (place.is_complete() and place.has(vocabulary)):
        with fill_lock(place) as is_holder:
            if is_holder and not place.is_complete():
                fill(place, list_files(), web, connections)
            if is_holder and not place.has(vocabulary):
                Download(Web(), place, place.cache, "vocabulary", vocabulary).run(connections)
        if not is_holder:
            say(f"{place.repository}: another pod fills the cache")
            time.sleep(poll_s)


def _source(options: argparse.Namespace) -> tuple[Web, Callable[[], Listing]]:
    if options.source == "object-storage":
        url = secret_of(os.environ, "MODEL_SOURCE_URL")
        if not url:
            raise PrewarmError("MODEL_SOURCE_URL is not set: the secret with the pre-authenticated request is missing")
        if not _ADDRESS.fullmatch(url):
            raise PrewarmError(
                "MODEL_SOURCE_URL is no address as https://host/p/.../n/.../b/.../o/ (its value isn't shown)"
            )
        web = Web()
        return web, lambda: list_object_storage(web, url, options.repository, options.revision)
    web = Web(secret_of(os.environ, "HF_TOKEN") or None)
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    return web, lambda: list_hugging_face(web, endpoint, options.repository, options.revision)


@contextmanager
def fill_lock(place: CacheFolder) -> Generator[bool]:
    """Yield whether this program holds the lock on the model's directory. A lock whose holder died is taken over.

    The lock is a file whose modification time the holder renews, because not every network file system supports locks
    of the operating system across nodes.
    """
    place.lock.parent.mkdir(parents=True, exist_ok=True)
    if not _take(place.lock):
        yield False
        return
    try:
        with repeated(lambda: place.lock.exists() and place.lock.touch(), HEARTBEAT_S):
            yield True
    finally:
        place.lock.unlink(missing_ok=True)


def _take(lock: Path) -> bool:
    if lock.exists() and _age_s(lock) > STALE_AFTER_S:
        lock.unlink(missing_ok=True)
    try:
        with lock.open("x") as file:
            file.write(socket.gethostname())
    except FileExistsError:
        return False
    return True


def _age_s(lock: Path) -> float:
    """Return a lock's age in seconds by the file system's own clock."""
    probe = lock.with_name(f"{lock.name}.{os.urandom(16).hex()}")
    probe.touch()
    try:
        return probe.stat().st_mtime - lock.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink()
