"""The command `python -m prewarm`."""

import argparse
import json
import os
import re
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .places import Place, UnsafeNameError, fill_lock
from .sources import ENCODINGS, REHEARSED_VOCABULARY, Listing, RemoteFile, list_hugging_face, list_object_storage
from .transfer import Transfer
from .web import PrewarmError, Web, say, secret_of

WRITABLE = (
    "its folder has to be this user's, or its export has to map all users to the owner (File Storage: squash all)"
)
"""What a cache needs that this program can't write to."""

_ADDRESS = re.compile(r"https?://[^/?#@\s]+/[^?#\s]*")


def fill(place: Place, listing: Listing, web: Web, connections: int) -> None:
    """Downloads all files of a listing and writes down that they are there."""
    if not any(file.path.endswith(".safetensors") for file in listing.files):
        raise PrewarmError(f"{place.repository} at {place.revision} has no weights (*.safetensors)")
    Transfer(web, place.cache, place.snapshot(listing.commit), place.repository, listing.files).run(connections)
    place.finish(listing)


def ensure(
    place: Place,
    list_files: Callable[[], Listing],
    web: Web,
    connections: int,
    vocabulary: Sequence[RemoteFile] = (),
    poll_s: float = 5.0,
) -> None:
    """Returns as soon as the model is complete, whoever completed it. No token goes to where the vocabulary is."""
    while not (place.is_complete() and place.has(vocabulary)):
        with fill_lock(place) as is_holder:
            if is_holder and not place.is_complete():
                fill(place, list_files(), web, connections)
            if is_holder and not place.has(vocabulary):
                Transfer(Web(), place.cache, place.cache, "vocabulary", vocabulary).run(connections)
        if not is_holder:
            say(f"{place.repository}: another pod fills the cache")
            time.sleep(poll_s)
    say(f"{place.repository}: complete in {place.folder}, commit {place.commit}")


def main(argv: Sequence[str] | None = None) -> int:
    """Fills the cache as the command line and the environment say; 1 and the reason where it can't be."""
    parser = argparse.ArgumentParser(description="Puts the weights of one model into a cache.")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--revision", default="main")
    parser.add_argument("--source", choices=["hugging-face", "object-storage"], default="hugging-face")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--vocabulary", type=_vocabulary, help="JSON: file, url, sha256 and bytes of a vocabulary")
    options = parser.parse_args(argv)
    place = Place(options.cache, options.repository, options.revision)
    try:
        web, list_files = _source(options)
        ensure(place, list_files, web, options.connections, _vocabulary_files(options))
    except PermissionError as error:
        folder = Path(error.filename or place.cache).parent
        print(f"error user {os.getuid()} can't write to {folder}: {WRITABLE} ({error})", file=sys.stderr, flush=True)
        return 1
    except (PrewarmError, UnsafeNameError, OSError) as error:
        print(f"error {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _vocabulary(text: str) -> RemoteFile:
    facts = json.loads(text)
    sha256 = os.environ.get(REHEARSED_VOCABULARY) or facts["sha256"]
    return RemoteFile(f"{ENCODINGS}/{facts['file']}", facts["bytes"], facts["url"], "sha256", sha256)


def _vocabulary_files(options: argparse.Namespace) -> list[RemoteFile]:
    """Where weights come from a bucket, the vocabulary does too: such pods may reach nothing else."""
    if options.vocabulary is None:
        return []
    if options.source == "hugging-face":
        return [options.vocabulary]
    bucket = secret_of(os.environ, "MODEL_SOURCE_URL").rstrip("/")
    return [replace(options.vocabulary, url=f"{bucket}/{urllib.parse.quote(options.vocabulary.path, safe='')}")]


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


if __name__ == "__main__":
    os.umask(0o002)  # the group, root's, may write too: see `owner`
    sys.exit(main())
