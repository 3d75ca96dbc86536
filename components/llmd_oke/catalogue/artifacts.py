"""Custom resource definitions of a release, as files on this machine."""

import hashlib
from pathlib import Path
from typing import Any

from llmd_oke.catalogue.cache import cache_folder, module_folder
from llmd_oke.catalogue.files import read_yaml
from llmd_oke.catalogue.releases import Crds
from llmd_oke.errors import KitError

DOWNLOAD_TIMEOUT_S = 60.0


def crd_manifests(crds: Crds) -> list[dict[str, Any]]:
    """The custom resource definitions of a release.

    Each file comes from the release's Go module where that is on the machine, otherwise over HTTPS, and is held
    to its SHA-256.

    Raises:
        KitError: a file can't be had, or isn't the one that the release names.
    """
    return [read_yaml(_crd_file(crds, name, digest)) for name, digest in crds.files.items()]


def _crd_file(crds: Crds, name: str, digest: str) -> Path:
    local = module_folder(crds.module, crds.version) / crds.folder / name
    path = local if local.is_file() else _download(crds, name)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise KitError(
            f"{path} has SHA-256 {found}, but the release names {digest}.",
            "Delete the file and try again; if that does not help, it was changed at its source.",
        )
    return path


def _download(crds: Crds, name: str) -> Path:
    path = cache_folder() / "crds" / crds.version / name
    if path.is_file():
        return path
    import httpx  # noqa: PLC0415 - only where a file has to come over the network; it brings a command line with it

    url = f"{crds.repository}/{crds.version}/{crds.folder}/{name}"
    try:
        content = httpx.get(url, timeout=DOWNLOAD_TIMEOUT_S, follow_redirects=True).raise_for_status().content
    except httpx.HTTPError as error:
        raise KitError(
            f"{url} can't be read: {error}", f"Put the file at {path} by hand, or open the way to it."
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)
    return path
