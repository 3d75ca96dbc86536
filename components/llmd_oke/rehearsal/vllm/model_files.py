"""What an offline vLLM reads as it starts: a model's folder in Hugging Face's cache, and Harmony's vocabulary.

Nothing is asked of anybody. In the order of vLLM: `snapshot_download` finds the folder without a network, then come the
model's config, its tokenizer, the index of its weights with all files that it names, and the vocabulary of its API.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from llmd_oke.catalogue import Model
from llmd_oke.rehearsal.vllm.refusal import Refusal

_NO_SNAPSHOT = (
    "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
    "specified revision on the local disk and outgoing traffic has been disabled."
)
_NO_VOCABULARY = (
    "openai_harmony.HarmonyError: error downloading or loading vocab file: failed to download or load vocab"
)
_INDEX = "model.safetensors.index.json"
_HEADER_BYTES = struct.Struct("<Q")


@dataclass(frozen=True)
class ContainerFiles:
    """The files of a container: folders of this machine by the paths that they are mounted at."""

    mounts: Mapping[str, str]

    def place(self, path: str) -> Path | None:
        """Where a path of the container lies on this machine, or None where nothing is mounted."""
        wanted = PurePosixPath(path)
        for target in sorted(map(PurePosixPath, self.mounts), key=lambda each: -len(each.parts)):
            if wanted.is_relative_to(target):
                return Path(self.mounts[str(target)]) / wanted.relative_to(target)
        return None

    def read(self, path: str) -> bytes:
        """The content of a file.

        Raises:
            Refusal: it can't be read.
        """
        place = self.place(path)
        try:
            return (place or Path("/nonexistent")).read_bytes()
        except OSError as error:
            raise Refusal(1, f"OSError: [Errno {error.errno}] {error.strerror}: {path!r}") from None


def read_model(model: Model, environment: Mapping[str, str], files: ContainerFiles, revision: str | None = None) -> str:
    """Reads all of it, at a commit or at what the cache says is the head of `main`, and says where it was.

    Raises:
        Refusal: vLLM would not start: something is missing, or is another model's.
    """
    home = environment.get("HF_HOME") or f"{environment.get('HOME', '')}/.cache/huggingface"
    hub = environment.get("HF_HUB_CACHE") or f"{home}/hub"
    repository = f"{hub}/models--{model.repository.replace('/', '--')}"
    try:
        commit = revision or files.read(f"{repository}/refs/main").decode().strip()
    except Refusal:
        raise Refusal(1, _NO_SNAPSHOT) from None
    folder = f"{repository}/snapshots/{commit}"
    place = files.place(folder)
    if place is None or not place.is_dir():
        raise Refusal(1, _NO_SNAPSHOT)
    _check_config(model, _object(files, f"{folder}/config.json"))
    _object(files, f"{folder}/tokenizer.json")
    _check_weights(files, folder)
    _check_vocabulary(model, environment, files)
    return folder


def _check_config(model: Model, config: Mapping[str, Any]) -> None:
    sizes = model.architecture
    for name, size in {"num_hidden_layers": sizes.layers, "hidden_size": sizes.hidden_size}.items():
        if config.get(name) != size:
            raise Refusal(1, f"llmd-oke rehearsal: config.json has {name} {config.get(name)}, {model.name} has {size}.")


def _check_weights(files: ContainerFiles, folder: str) -> None:
    """Every tensor of the index is in the file that it names, whole."""
    weights = cast("dict[str, str]", _object(files, f"{folder}/{_INDEX}").get("weight_map", {}))
    if not weights:
        raise Refusal(1, f"RuntimeError: Cannot find any model weights with `{folder}`")
    for name in sorted(set(weights.values())):
        content = files.read(f"{folder}/{name}")
        tensors = _tensors(content, f"{folder}/{name}")
        missing = [tensor for tensor, file in weights.items() if file == name and tensor not in tensors]
        if missing:
            raise Refusal(1, f"safetensors_rust.SafetensorError: File does not contain tensor {missing[0]}: {name}")


def _tensors(content: bytes, path: str) -> Mapping[str, Any]:
    """The header of a file in the format of safetensors: its length, then JSON, then as many bytes as that says."""
    try:
        (length,) = _HEADER_BYTES.unpack_from(content)
        begin = _HEADER_BYTES.size + length
        tensors = cast("dict[str, Any]", json.loads(content[_HEADER_BYTES.size : begin]))
        whole = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise Refusal(1, f"safetensors_rust.SafetensorError: Error while deserializing header: {path}") from None
    if len(content) != begin + whole:
        raise Refusal(1, f"safetensors_rust.SafetensorError: incomplete metadata, file not fully covered: {path}")
    return tensors


def _check_vocabulary(model: Model, environment: Mapping[str, str], files: ContainerFiles) -> None:
    """Harmony asks the internet for it unless a variable names the folder that it is in."""
    vocabulary = model.vocabulary
    if vocabulary is None:
        return
    folder = environment.get(vocabulary.variable)
    if folder is None or len(files.read(f"{folder}/{vocabulary.file}")) != vocabulary.bytes:
        raise Refusal(1, _NO_VOCABULARY)


def _object(files: ContainerFiles, path: str) -> Mapping[str, Any]:
    try:
        read = json.loads(files.read(path))
    except ValueError as error:
        raise Refusal(1, f"json.decoder.JSONDecodeError: {error}: {path}") from None
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}
