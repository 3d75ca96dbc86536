"""What files a model has, by those who have them."""

import hashlib
import json
import re
import urllib.parse
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .web import PrewarmError, Web, without_secrets

ENCODINGS = "encodings"
"""Folder of vocabularies in a cache, and prefix of their names in a bucket."""

REHEARSED_VOCABULARY = "LLMD_OKE_REHEARSED_VOCABULARY_SHA256"
"""Variable with the digest of the file that a rehearsal has in place of the real vocabulary."""

SKIPPED_FOLDERS = ("original", "metal")
"""Weights in formats that vLLM doesn't read; it leaves `original` out too."""


MOST_PAGES = 1000
"""Of a listing: a thousand files each."""

_COMMIT = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True)
class RemoteFile:
    """A file to be had. `check` is how its content is judged (`sha256`, `git`, `md5`, or not), `digest` by what."""

    path: str
    size: int
    url: str
    check: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Listing:
    """All files of a model at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


def list_hugging_face(web: Web, endpoint: str, repository: str, revision: str) -> Listing:
    """The files of a repository at a revision."""
    model = f"{endpoint}/api/models/{repository}"
    with _expected(f"{model}/revision/{revision}"):
        commit = str(web.read_json(f"{model}/revision/{urllib.parse.quote(revision, safe='')}")[0]["sha"])
        if not _COMMIT.fullmatch(commit):
            raise ValueError(f"{commit[:80]!r} is no commit")
    files: list[RemoteFile] = []
    page = f"{model}/tree/{commit}?recursive=true"
    for _ in range(MOST_PAGES):
        with _expected(page):
            entries, following = web.read_json(page)
            files += [
                _of_hugging_face(entry, f"{endpoint}/{repository}/resolve/{commit}")
                for entry in entries
                if entry["type"] == "file" and entry["path"].split("/")[0] not in SKIPPED_FOLDERS
            ]
            if following and not following.startswith(f"{endpoint}/"):
                raise ValueError("its next page lies with another host, which the token is not for")
        if not following:
            return Listing(commit, tuple(files))
        page = following
    raise PrewarmError(f"{model} has more than {MOST_PAGES} pages of files")


@contextmanager
def _expected(what: str) -> Generator[None]:
    """What is no listing is refused in words."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise PrewarmError(f"{without_secrets(what)} is no listing of files: {error!r}") from error


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no size of a file")
    return value


def _of_hugging_face(entry: dict[str, Any], base: str) -> RemoteFile:
    url = f"{base}/{urllib.parse.quote(entry['path'])}"
    large = entry.get("lfs")
    if large:
        return RemoteFile(entry["path"], _size(large["size"]), url, "sha256", large["oid"])
    return RemoteFile(entry["path"], _size(entry["size"]), url, "git", entry["oid"])


def list_object_storage(web: Web, source_url: str, repository: str) -> Listing:
    """The files under a repository's name in a bucket, by a pre-authenticated request that may list.

    A bucket has no commits, so the listing itself makes one.
    """
    base, prefix = source_url.rstrip("/") + "/", f"{repository}/"
    files: list[RemoteFile] = []
    start = prefix
    for _ in range(MOST_PAGES):
        query = urllib.parse.urlencode({"prefix": prefix, "start": start, "fields": "name,size,md5"})
        with _expected(base):
            document, _ = web.read_json(f"{base}?{query}")
            files += [_of_object_storage(entry, base, prefix) for entry in document["objects"] if entry["size"]]
            start = document.get("nextStartWith") or ""
        if not start:
            break
    else:
        raise PrewarmError(f"{without_secrets(base)} has more than {MOST_PAGES} pages of files for {repository}")
    facts = json.dumps([(file.path, file.size, file.digest) for file in files])
    return Listing(hashlib.sha256(facts.encode()).hexdigest()[:40], tuple(files))


def _of_object_storage(entry: dict[str, Any], base: str, prefix: str) -> RemoteFile:
    """Objects that were uploaded in parts have no MD5 of their content (`<md5>-<parts>`)."""
    if not entry["name"].startswith(prefix):
        raise ValueError(f"{entry['name'][:80]!r} is not below {prefix}")
    digest = entry.get("md5") or ""
    whole = bool(digest) and "-" not in digest
    url = base + urllib.parse.quote(entry["name"], safe="")
    path = entry["name"].removeprefix(prefix)
    return RemoteFile(path, _size(entry["size"]), url, "md5" if whole else "", digest if whole else "")
