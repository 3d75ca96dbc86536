"""Listings of a model's files, from Hugging Face or a bucket."""

import base64
import binascii
import hashlib
import json
import re
import urllib.parse
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from . import PrewarmError
from .places import Listing, RemoteFile
from .web import Web, without_secrets

SKIPPED_FOLDERS = ("original", "metal")
"""Directories with weights in formats that vLLM doesn't read; vLLM skips `original` too."""

MAX_PAGES = 1000
"""Maximum number of pages of a listing, of a thousand files each."""

SUMS = "SHA256SUMS"
"""Name of an optional file among a model's objects with their SHA-256 digests, in the format of `sha256sum`."""

MAX_SUMS_BYTES = 2**20

_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_PARTS_DIGEST = re.compile(r"[A-Za-z0-9+/]{22}==-[1-9][0-9]{0,4}")
_SUM = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")


def list_hugging_face(web: Web, endpoint: str, repository: str, revision: str) -> Listing:
    """Return the files of a Hugging Face repository at a revision, with sizes and checksums."""
    model = f"{endpoint}/api/models/{repository}"
    with _listing_errors(f"{model}/revision/{revision}"):
        commit = str(web.read_json(f"{model}/revision/{urllib.parse.quote(revision, safe='')}")[0]["sha"])
        if not _COMMIT.fullmatch(commit):
            raise ValueError(f"{commit[:80]!r} is no commit")
        if _COMMIT.fullmatch(revision) and commit != revision:
            raise ValueError(f"it answers with commit {commit[:80]}")
    files: list[RemoteFile] = []
    page = f"{model}/tree/{commit}?recursive=true"
    for _ in range(MAX_PAGES):
        with _listing_errors(page):
            entries, next_page = web.read_json(page)
            for entry in entries:
                path, lfs = entry["path"], entry.get("lfs")
                if entry["type"] == "file" and path.split("/")[0] not in SKIPPED_FOLDERS:
                    url = f"{endpoint}/{repository}/resolve/{commit}/{urllib.parse.quote(path)}"
                    check, facts = ("sha256", lfs) if lfs else ("git", entry)
                    files.append(RemoteFile(path, _size(facts["size"]), url, check, facts["oid"]))
            if next_page and not next_page.startswith(f"{endpoint}/"):
                raise ValueError("its next page lies with another host, which the token is not for")
        if not next_page:
            return Listing(commit, tuple(files))
        page = next_page
    raise PrewarmError(f"{model} has more than {MAX_PAGES} pages of files")


@contextmanager
def _listing_errors(url: str) -> Generator[None]:
    """Convert errors in the parsing of a listing into a `PrewarmError`."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise PrewarmError(f"{without_secrets(url)} is no listing of files: {error!r}") from error


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no size of a file")
    return value


def list_object_storage(web: Web, source_url: str, repository: str, revision: str = "main") -> Listing:
    """Return the files whose names begin with the repository's name in a bucket, by a pre-authenticated request that
    permits listing.

    A bucket has no commits; a hash of names, sizes and checksums serves as commit. A `SHA256SUMS` among the files takes
    precedence over the checksums of Object Storage.

    Raises:
        PrewarmError: `revision` is a commit that differs from the files' hash.
    """
    base, prefix = source_url.rstrip("/") + "/", f"{repository}/"
    files: list[RemoteFile] = []
    start = prefix
    for _ in range(MAX_PAGES):
        query = urllib.parse.urlencode({"prefix": prefix, "start": start, "fields": "name,size,md5"})
        with _listing_errors(base):
            document, _ = web.read_json(f"{base}?{query}")
            for entry in document["objects"]:
                if not entry["size"]:
                    continue
                name: str = entry["name"]
                if not name.startswith(prefix):
                    raise ValueError(f"{name[:80]!r} is not below {prefix}")
                url = base + urllib.parse.quote(name, safe="")
                check, digest = _by_md5(entry.get("md5") or "")
                files.append(RemoteFile(name.removeprefix(prefix), _size(entry["size"]), url, check, digest))
            start = document.get("nextStartWith") or ""
        if not start:
            break
    else:
        raise PrewarmError(f"{without_secrets(base)} has more than {MAX_PAGES} pages of files for {repository}")
    files = _with_checksums(web, files)
    facts = json.dumps([(file.path, file.size, file.digest) for file in files])
    commit = hashlib.sha256(facts.encode()).hexdigest()[:40]
    if _COMMIT.fullmatch(revision) and commit != revision:
        raise PrewarmError(f"the bucket's files of {repository} are {commit}, not the pinned {revision}")
    return Listing(commit, tuple(files))


def _by_md5(digest: str) -> tuple[str, str]:
    """Return check method and digest from an MD5 of Object Storage. An object that was uploaded in parts has no MD5 of
    its content but of the parts' MD5s, in the form `<md5>-<parts>`.
    """
    if _PARTS_DIGEST.fullmatch(digest):
        return "md5-of-parts", digest
    try:
        whole = len(base64.b64decode(digest, validate=True)) == hashlib.md5(usedforsecurity=False).digest_size
    except binascii.Error:
        whole = False
    return ("md5", digest) if whole else ("", "")


def _with_checksums(web: Web, files: list[RemoteFile]) -> list[RemoteFile]:
    sums = next((file for file in files if file.path == SUMS), None)
    if sums is None:
        return [file if file.check else replace(file, **_of_headers(web, file.url)) for file in files]
    if sums.size > MAX_SUMS_BYTES:
        raise PrewarmError(f"{SUMS} has {sums.size} bytes, more than {MAX_SUMS_BYTES}")
    lines = web.read_text(sums.url, MAX_SUMS_BYTES).splitlines()
    by_path = {line[2]: line[1] for text in lines if (line := _SUM.fullmatch(text))}
    return [
        replace(file, check="sha256", digest=by_path[file.path]) if file.path in by_path else replace(file, check="")
        for file in files
        if file is not sums
    ]


def _of_headers(web: Web, url: str) -> dict[str, str]:
    """Return check method and digest from an object's headers, which contain checksums that the listing lacks."""
    headers = web.head(url)
    try:
        sha256 = base64.b64decode(headers.get("opc-content-sha256", ""), validate=True)
    except binascii.Error:
        sha256 = b""
    if len(sha256) == hashlib.sha256().digest_size:
        return {"check": "sha256", "digest": sha256.hex()}
    check, digest = _by_md5(headers.get("opc-multipart-md5") or headers.get("content-md5") or "")
    return {"check": check, "digest": digest}
