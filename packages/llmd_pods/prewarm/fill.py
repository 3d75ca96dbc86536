"""Filling of a model's place in a cache: the source of its files, and the lock that lets one program at a time work."""

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
    """Fill the place as the command line and the environment say.

    Raises:
        PrewarmError: a person has to look at it.
        UnsafeNameError: a file would lie elsewhere.
        OSError: the cache can't be written to.
    """
    web, list_files = _source(options)
    vocabulary: list[RemoteFile] = [options.vocabulary] if options.vocabulary else []
    if options.source != "hugging-face":  # pods that get weights from a bucket may reach nothing else
        bucket = secret_of(os.environ, "MODEL_SOURCE_URL").rstrip("/")
        vocabulary = [replace(file, url=f"{bucket}/{urllib.parse.quote(file.path, safe='')}") for file in vocabulary]
    ensure(place, list_files, web, options.connections, vocabulary)


def fill(place: CacheFolder, listing: Listing, web: Web, connections: int) -> None:
    """Download all files of a listing and write down that they are there."""
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
    """Return as soon as the model is complete, whoever completed it. No token goes to where the vocabulary is."""
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
    """Yield True if this program is the one that fills the model's folder. The lock of one that died is taken over.

    It is a file with a pulse, because locks of the operating system don't reach over every network file system.
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
    """Return a lock's age by the file system's own clock."""
    probe = lock.with_name(f"{lock.name}.{os.urandom(16).hex()}")
    probe.touch()
    try:
        return probe.stat().st_mtime - lock.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink()
