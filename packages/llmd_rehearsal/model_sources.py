"""Hosts outside the cluster that models are downloaded from, and the tiny files that a rehearsal serves in their place.

Repositories are described in the formats of Hugging Face and Object Storage; `model_server` serves them. The hosts are
those of `values/rehearsal/outside.yaml`.
"""

import base64
import hashlib
import json
import re
import struct
from collections.abc import Mapping

from llmd_oke.catalogue import model_of_repository
from llmd_oke.values import Entry, entry_reader

PORT = 443
COMMIT = re.compile(r"[0-9a-f]{40}")
"""Pattern of a full commit id."""
_WEIGHTS = ".safetensors"
ADAPTER_FILES = {"adapter_config.json": 256, "adapter_model.safetensors": 4096}
"""Files of a simulated LoRA adapter with their sizes in bytes. A repository that the catalogue lacks counts as an
adapter if it is asked for at a commit.
"""

_INDEX = "model.safetensors.index.json"
_POINTER_BYTES = 135
"""Size in bytes of a Git LFS pointer file that stands for a file of 100 MB to 1 GB (Git LFS, docs/spec.md)."""

_SLACK = 16
"""Bytes reserved for the digits of sizes in a header, which is padded with blanks."""


class SourceHosts(Entry):
    """Hosts outside the cluster that pods download models from: their names, the path of the bucket's objects, and the
    sizes in bytes of a model's files by path.
    """

    hugging_face: str
    vocabularies: str
    object_storage: str
    bucket: str
    files: Mapping[str, int]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names of Hugging Face, of the published vocabularies, and of Object Storage."""
        return self.hugging_face, self.vocabularies, self.object_storage

    def bucket_path(self, request: str) -> str:
        """Return the path by which a pre-authenticated request, named by its secret part, reaches the bucket."""
        return f"/p/{request}{self.bucket}"

    def link(self, request: str) -> str:
        """Return the URL of a pre-authenticated request, named by its secret part, for the bucket."""
        return f"https://{self.object_storage}{self.bucket_path(request)}"


source_hosts = entry_reader("rehearsal", "outside", SourceHosts)
"""Return the hosts of `values/rehearsal/outside.yaml`."""


def commit(repository: str, revision: str) -> str:
    """Return the commit id of a simulated repository's revision; a revision that is a commit id is returned itself."""
    return revision if COMMIT.fullmatch(revision) else _git_digest(f"{repository}@{revision}".encode())


def content(repository: str, path: str, size: int) -> bytes:
    """Return the bytes of a synthetic file of a model repository, in the format of its file name; they are the same at
    every commit.
    """
    if path.endswith(_WEIGHTS):
        return _weights(f"{repository}/{path}", size)
    document: dict[str, object] = {"_name_or_path": repository}
    if path == "config.json" and (model := model_of_repository(repository)):
        sizes = model.architecture
        document |= {"num_hidden_layers": sizes.layers, "hidden_size": sizes.hidden_size}
    elif path == "adapter_config.json":
        document = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "base_model_name_or_path": "any"}
    elif path == _INDEX:
        weights = [file for file in source_hosts().files if file.endswith(_WEIGHTS)]
        names = {_tensor(f"{repository}/{file}"): file for file in weights}
        document = {"metadata": {"repository": repository}, "weight_map": names}
    return json.dumps(document).encode().ljust(size)


def vocabulary(file: str, size: int) -> bytes:
    """Return a synthetic file of `size` bytes in place of a tokenizer's vocabulary."""
    return _lines(f"encodings/{file}", size)


def _lines(name: str, size: int) -> bytes:
    line = f"{name}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def _tensor(name: str) -> str:
    return f"{name.removesuffix(_WEIGHTS)}.weight"


def _weights(name: str, size: int) -> bytes:
    """Return a file of `size` bytes in the safetensors format, with one tensor of type U8."""

    def header(count: int) -> bytes:
        tensor = {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}
        return json.dumps({_tensor(name): tensor}).encode()

    room = size - 8 - len(header(size)) - _SLACK
    text = header(room).ljust(size - 8 - room)
    return struct.pack("<Q", len(text)) + text + _lines(name, room)


def tree(files: Mapping[str, bytes]) -> list[dict[str, object]]:
    """Return the list of a repository's files as Hugging Face answers `/api/models/<repository>/tree/<commit>`, with
    weights as Git LFS files.
    """
    entries: list[dict[str, object]] = []
    for path, data in files.items():
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(data), "oid": _git_digest(data)}
        if path.endswith(_WEIGHTS):
            entry["lfs"] = {"oid": digest(path, data), "size": len(data), "pointerSize": _POINTER_BYTES}
        entries.append(entry)
    return entries


def digest(path: str, data: bytes) -> str:
    """Return the digest that identifies a file's content: SHA-256 for weights (Git LFS), Git's blob id for other
    files.
    """
    return hashlib.sha256(data).hexdigest() if path.endswith(_WEIGHTS) else _git_digest(data)


def listing(repositories: Mapping[str, Mapping[str, bytes]], prefix: str) -> dict[str, object]:
    """Return the objects whose names begin with `prefix`, as Object Storage lists a bucket: with name, size and MD5."""

    def md5(data: bytes) -> str:
        return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()

    return {
        "objects": [
            {"name": f"{repository}/{path}", "size": len(data), "md5": md5(data)}
            for repository, files in repositories.items()
            for path, data in files.items()
            if f"{repository}/{path}".startswith(prefix)
        ]
    }


def _git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
