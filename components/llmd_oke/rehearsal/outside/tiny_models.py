"""Repositories with tiny files, described as Hugging Face and Object Storage describe theirs. Pure."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

_COMMIT = re.compile(r"[0-9a-f]{40}")
_WEIGHTS = ".safetensors"


def commit(repository: str, revision: str) -> str:
    """The commit that a revision of a repository names; one that is a commit names itself."""
    return revision if _COMMIT.fullmatch(revision) else _git_digest(f"{repository}@{revision}".encode())


def content(repository: str, path: str, size: int) -> bytes:
    """The bytes of a file, the same at every commit."""
    line = f"{repository}/{path}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def vocabulary(file: str, size: int) -> bytes:
    """What stands for the vocabulary of that name, as large as it is."""
    return content("encodings", file, size)


def tree(repository: str, files: Mapping[str, int]) -> list[dict[str, Any]]:
    """The files as `/api/models/<repository>/tree/<commit>` lists them: weights are large files (LFS)."""
    return [_tree_entry(path, content(repository, path, size)) for path, size in files.items()]


def listing(repositories: Iterable[str], files: Mapping[str, int], prefix: str) -> dict[str, Any]:
    """The objects whose names begin with `prefix`, as a bucket lists them with name, size and MD5."""
    names = {f"{repository}/{path}": (repository, path) for repository in repositories for path in files}
    return {
        "objects": [
            {"name": name, "size": files[path], "md5": _md5(content(repository, path, files[path]))}
            for name, (repository, path) in names.items()
            if name.startswith(prefix)
        ]
    }


def _tree_entry(path: str, bytes_: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": path, "size": len(bytes_), "oid": _git_digest(bytes_)}
    if not path.endswith(_WEIGHTS):
        return entry
    return {**entry, "lfs": {"oid": hashlib.sha256(bytes_).hexdigest(), "size": len(bytes_)}}


def _git_digest(bytes_: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(bytes_) + bytes_, usedforsecurity=False).hexdigest()


def _md5(bytes_: bytes) -> str:
    return base64.b64encode(hashlib.md5(bytes_, usedforsecurity=False).digest()).decode()
