"""Repositories with tiny files, described as Hugging Face and Object Storage describe theirs."""

import base64
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmd_oke.catalogue import model_of_repository
from llmd_oke.rehearsal.outside.facts import outside

_COMMIT = re.compile(r"[0-9a-f]{40}")
_WEIGHTS = ".safetensors"
_INDEX = "model.safetensors.index.json"
_SLACK = 16
"""For the digits of sizes in a header, which is filled up with blanks."""


def commit(repository: str, revision: str) -> str:
    """The commit that a revision of a repository names; one that is a commit names itself."""
    return revision if _COMMIT.fullmatch(revision) else _git_digest(f"{repository}@{revision}".encode())


def content(repository: str, path: str, size: int) -> bytes:
    """The bytes of a file, the same at every commit, in the format of its name."""
    if path.endswith(_WEIGHTS):
        return _weights(f"{repository}/{path}", size)
    documents: dict[str, Callable[[str], dict[str, Any]]] = {"config.json": _config, _INDEX: _index}
    return json.dumps(documents.get(path, _named)(repository)).encode().ljust(size)


def vocabulary(file: str, size: int) -> bytes:
    """What stands for the vocabulary of that name, as large as it is."""
    return _lines(f"encodings/{file}", size)


def _lines(name: str, size: int) -> bytes:
    line = f"{name}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def _config(repository: str) -> dict[str, Any]:
    """Sizes by the names of Hugging Face."""
    model = model_of_repository(repository)
    sizes = (
        {"num_hidden_layers": model.architecture.layers, "hidden_size": model.architecture.hidden_size} if model else {}
    )
    return {**_named(repository), **sizes}


def _named(repository: str) -> dict[str, Any]:
    return {"_name_or_path": repository}


def _index(repository: str) -> dict[str, Any]:
    files = [path for path in outside().files if path.endswith(_WEIGHTS)]
    return {
        "metadata": {"repository": repository},
        "weight_map": {_tensor(f"{repository}/{path}"): path for path in files},
    }


def _tensor(name: str) -> str:
    return f"{name.removesuffix(_WEIGHTS)}.weight"


def _weights(name: str, size: int) -> bytes:
    """One tensor of bytes in the format of safetensors."""

    def header(count: int) -> bytes:
        tensor = {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}
        return json.dumps({_tensor(name): tensor}).encode()

    room = size - 8 - len(header(size)) - _SLACK
    text = header(room).ljust(size - 8 - room)
    return struct.pack("<Q", len(text)) + text + _lines(name, room)


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
