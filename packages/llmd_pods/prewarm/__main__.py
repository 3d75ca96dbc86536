"""The command `python -m prewarm`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import PrewarmError, say
from .places import ENCODINGS, REHEARSED_VOCABULARY, CacheFolder, RemoteFile, UnsafeNameError

WRITABLE = (
    "its folder has to be this user's, or its export has to map all users to the owner (File Storage: squash all)"
)
"""Requirements for write access to a cache, for error messages."""


def main(argv: Sequence[str] | None = None) -> int:
    """Fill the cache according to the command line and the environment; return 1 after an error, which is printed."""
    parser = argparse.ArgumentParser(description="Puts the weights of one model into a cache.")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--revision", default="main")
    parser.add_argument("--source", choices=["hugging-face", "object-storage"], default="hugging-face")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--vocabulary", type=_vocabulary, help="JSON: file, url, sha256 and bytes of a vocabulary")
    parser.add_argument("--draft", action="append", default=[], help="repository and revision of a draft, with an @")
    parser.add_argument("--adapters", help="JSON: name, maxRank and adapters; or @ and the path of a file with it")
    options = parser.parse_args(argv)
    place = CacheFolder(options.cache, options.repository, options.revision)
    try:
        if not (place.is_complete() and place.has([options.vocabulary] if options.vocabulary else [])):
            from . import fill  # noqa: PLC0415 - most runs find a complete cache, and this import takes longer

            fill.run(place, options)
        for draft in options.draft:
            _fetch(CacheFolder(options.cache, *draft.rsplit("@", 1)), options)
        if options.adapters:
            _place_adapters(place, options)
        say(f"{place.repository}: complete in {place.folder}, commit {place.commit}")
    except PermissionError as error:
        folder = Path(error.filename or place.cache).parent
        print(f"error user {os.getuid()} can't write to {folder}: {WRITABLE} ({error})", file=sys.stderr, flush=True)
        return 1
    except (PrewarmError, UnsafeNameError, OSError) as error:
        print(f"error {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _place_adapters(base: CacheFolder, options: argparse.Namespace) -> None:
    """Install a model's adapters one after the other, except those that are installed already."""
    from . import adapters  # noqa: PLC0415 - most models have none

    room = adapters.read_room(options.adapters)
    adapters.folder(base, room)
    for adapter in room.adapters:
        if adapters.is_placed(base, room, adapter):
            continue
        _fetch(CacheFolder(base.cache, adapter.repository, adapter.revision), options)
        adapters.place(base, room, adapter)


def _fetch(source: CacheFolder, options: argparse.Namespace) -> None:
    """Put a repository beside the model's own into the cache."""
    if not source.is_complete():
        from . import fill  # noqa: PLC0415 - see above

        own = {"repository": source.repository, "revision": source.revision, "vocabulary": None}
        fill.run(source, argparse.Namespace(**{**vars(options), **own}))


def _vocabulary(text: str) -> RemoteFile:
    facts = json.loads(text)
    sha256 = os.environ.get(REHEARSED_VOCABULARY) or facts["sha256"]
    return RemoteFile(f"{ENCODINGS}/{facts['file']}", facts["bytes"], facts["url"], "sha256", sha256)


if __name__ == "__main__":
    os.umask(0o002)  # the group, root's, may write too: see `owner`
    sys.exit(main())
