"""Files of other projects with a SHA-256 in the catalogue, read from a local copy or over HTTPS."""

import hashlib
from pathlib import Path

from llmd_base.errors import KitError

TIMEOUT_S = 60.0


def pinned_file(url: str, sha256: str, cached: Path, local: Path | None = None) -> Path:
    """Return the path of a file after verifying its SHA-256.

    Args:
        url: URL to download the file from, if there is no local copy.
        sha256: expected checksum in hexadecimal digits.
        cached: path for the downloaded file, which is reused.
        local: path of a copy that may exist, for example in a Go module.

    Raises:
        KitError: the file can't be read, or has a different SHA-256.
    """
    path = local if local is not None and local.is_file() else _downloaded(url, cached)
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != sha256:
        raise KitError(
            f"{path} has SHA-256 {actual}, but the catalogue names {sha256}.",
            "Delete the file and try again; if that does not help, it was changed at its source.",
        )
    return path


def _downloaded(url: str, path: Path) -> Path:
    if path.is_file():
        return path
    import httpx2  # noqa: PLC0415 - slow to load, and only where a file has to come over the network

    try:
        content = httpx2.get(url, timeout=TIMEOUT_S, follow_redirects=True).raise_for_status().content
    except httpx2.HTTPError as error:
        raise KitError(
            f"{url} can't be read: {error}", f"Put the file at {path} by hand, or open the way to it."
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)
    return path
