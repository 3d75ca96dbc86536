"""Checks that vLLM makes before it serves: model files, memory of the GPUs, attention backend.

An offline server reads a model's folder in Hugging Face's cache and asks nothing of anybody. In the order of vLLM:
`snapshot_download` finds the folder without a network, then come the model's config, its tokenizer, and the index of
its weights with all files that it names. The vocabulary of Harmony's format is read at the first chat.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, cast

from llmd_oke.catalogue import CatalogueModel, model_names
from llmd_oke.catalogue.adapters import slots_gib
from llmd_oke.catalogue.models import host_key_value_copies, key_value_bytes_per_token, weights_gib
from llmd_oke.catalogue.models import model as model_of_name
from llmd_oke.catalogue.releases import release_of_vllm
from llmd_oke.catalogue.shapes import Shape
from llmd_oke.catalogue.speculation import ServerDraft

from llmd_rehearsal.vllm.command import CommandSettings, DraftSettings
from llmd_rehearsal.vllm.flags import StartRefusal

_GIB = 2**30
_NO_SNAPSHOT = (
    "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
    "specified revision on the local disk and outgoing traffic has been disabled."
)
_NO_VOCABULARY = "error downloading or loading vocab file: failed to download or load vocab file"
_NO_VOCABULARY_FILE = "invalid tiktoken vocab file: No such file or directory (os error 2)"
_INDEX = "model.safetensors.index.json"
_HEADER_BYTES = struct.Struct("<Q")


def catalogue_model(name: str) -> CatalogueModel:
    """Return the catalogue's model with this repository or name, or the model of a folder with such a name.

    Raises:
        StartRefusal: the catalogue has no such model.
    """
    folder = name.rstrip("/").rpartition("/")[2]
    models = [model for entry in model_names() if (model := model_of_name(entry))]
    named = (model for model in models if name in {model.repository, model.name})
    called_so = (model for model in models if folder in {model.repository.rpartition("/")[2], model.name})
    if (model := next(chain(named, called_so), None)) is not None:
        return model
    raise StartRefusal(
        1,
        f"OSError: {name} is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'\n"
        f"llmd-oke rehearsal: the catalogue has {', '.join(model_names())}.",
    )


# The memory of the GPUs.


@dataclass(frozen=True)
class CacheSize:
    """Size of a simulated server's KV cache. `bytes_per_token` is the sum over the GPUs, with each token counted once;
    `host_blocks` is the number of blocks in the node's memory.
    """

    blocks: int
    block_size: int
    max_model_len: int
    bytes_per_token: float
    available_gib_per_gpu: float
    host_blocks: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens that fit into the server's KV cache."""
        return self.blocks * self.block_size


def cache_size(settings: CommandSettings, model: CatalogueModel, shape: Shape, gpus: int | None = None) -> CacheSize:
    """Return the size of each rank's KV cache, which vLLM determines by its profiling run. `gpus` is the number of the
    container's GPUs; None for all of the node's.

    Raises:
        StartRefusal: the model can't be split over so many GPUs, or its weights or a sequence of full length don't fit.
    """
    tensor_parallel_size, architecture = settings.parallelism.tensor_parallel_size, model.architecture
    available_gpus = shape.gpus if gpus is None else gpus
    if (gpus_here := settings.parallelism.gpus_per_node) > available_gpus:
        raise StartRefusal(
            1,
            f"ValueError: World size ({gpus_here}) is larger than the number of available GPUs "
            f"({available_gpus}) in this node. If this is intentional and you are using:\n- ray, set "
            "'--distributed-executor-backend ray'.",
        )
    if tensor_parallel_size < 1 or architecture.attention_heads % tensor_parallel_size:
        raise StartRefusal(
            1,
            f"ValueError: Total number of attention heads ({architecture.attention_heads}) must be divisible by tensor "
            f"parallel size ({tensor_parallel_size}).",
        )
    max_model_len = _max_model_len(settings, model)
    available_gib = _available_gib(settings, model, shape)
    whole = key_value_bytes_per_token(model, known_draft(settings, model))
    bytes_per_token = whole * (0.5 if settings.kv_cache_dtype.startswith("fp8") else 1.0)
    # Over how many GPUs a token's KV cache is split: too few heads, and a latent cache, are replicated.
    latent = architecture.latent_attention is not None
    shards = 1 if latent else min(tensor_parallel_size, architecture.key_value_heads)
    token_bytes_per_gpu = bytes_per_token / shards
    blocks = int(available_gib * _GIB / (token_bytes_per_gpu * settings.block_size))
    kept_bytes = bytes_per_token * host_key_value_copies(model, tensor_parallel_size) * settings.block_size
    size = CacheSize(
        settings.num_gpu_blocks_override or blocks,
        settings.block_size,
        max_model_len,
        bytes_per_token,
        available_gib,
        int(settings.host_bytes / kept_bytes),
    )
    if size.tokens < max_model_len:
        needed_gib, usable_gib = (tokens * token_bytes_per_gpu / _GIB for tokens in (max_model_len, size.tokens))
        raise StartRefusal(
            1,
            f"ValueError: To serve at least one request with the models's max seq len ({max_model_len}), "
            f"({needed_gib:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({usable_gib:.2f} GiB). Based on the available memory, the estimated maximum model length is "
            f"{size.tokens}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing "
            "the engine.",
        )
    return size


def _max_model_len(settings: CommandSettings, model: CatalogueModel) -> int:
    length = settings.max_model_len
    if length is None:
        return model.max_model_len
    if length > model.max_model_len and not settings.allow_long_max_model_len:
        raise StartRefusal(
            1,
            f"ValueError: User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"(max_position_embeddings={model.max_model_len} or model_max_length=None in model's config.json). "
            "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
        )
    if not settings.enable_chunked_prefill and settings.max_num_batched_tokens < length:
        raise StartRefusal(
            1,
            f"ValueError: max_num_batched_tokens ({settings.max_num_batched_tokens}) is smaller than max_model_len "
            f"({length}). Please increase max_num_batched_tokens or decrease max_model_len.",
        )
    return length


def known_draft(settings: CommandSettings, model: CatalogueModel) -> ServerDraft | None:
    """Return the catalogue's figures of the draft for speculative decoding that a server uses; None if the server uses
    no draft, or one that the catalogue's model doesn't have.
    """
    draft = settings.draft
    if draft is None or model.draft is None or draft.method != model.draft.method:
        return None
    return ServerDraft(model.draft, draft.tokens, draft.revision)


def _available_gib(settings: CommandSettings, model: CatalogueModel, shape: Shape) -> float:
    draft = known_draft(settings, model)
    loaded_gib = weights_gib(model, settings.parallelism) + (draft.gib(settings.parallelism) if draft else 0.0)
    of_gpu_gib = loaded_gib / settings.parallelism.gpus
    if of_gpu_gib > shape.gpu.memory_gib:
        raise StartRefusal(
            1,
            f"torch.OutOfMemoryError: HIP out of memory. GPU 0 has a total capacity of {shape.gpu.memory_gib:.2f} GiB; "
            f"the weights take {of_gpu_gib:.2f} GiB of each GPU.",
        )
    share_gib, heap_gib = shape.gpu.memory_gib * settings.gpu_memory_utilization, settings.exchange_bytes / _GIB
    if share_gib + heap_gib > shape.gpu.memory_gib:
        raise StartRefusal(
            1,
            f"torch.OutOfMemoryError: HIP out of memory. MoRI's heap takes {heap_gib:.2f} GiB beside the"
            f" {share_gib:.2f} GiB of vLLM on a GPU with {shape.gpu.memory_gib:.2f} GiB.",
        )
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes / _GIB
    room = settings.adapters.room if settings.adapters else None
    adapters_gib = slots_gib(model, room, settings.parallelism) / settings.parallelism.gpus
    beside_gib = model.activation_gib_per_gpu + adapters_gib
    available_gib = share_gib - of_gpu_gib - beside_gib
    if available_gib <= 0:
        raise StartRefusal(
            1,
            f"Available KV cache memory: {available_gib:.2f} GiB\nValueError: No available memory for the cache "
            "blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        )
    return available_gib


# The attention backend (`values/releases`).


def check_backend(settings: CommandSettings, image: str) -> None:
    """Check that the vLLM in the image starts with the attention backend of the settings beside a KV connector.

    Raises:
        StartRefusal: vLLM wouldn't start; images that belong to no release pass.
    """
    release = release_of_vllm(image)
    if release is None or not settings.kv_connector:
        return
    backend = settings.attention_backend
    if backend in release.vllm.attention_backend.refused_with_kv_connector:
        raise StartRefusal(
            1,
            f"ValueError: Selected backend AttentionBackendEnum.{backend} is not valid for this configuration. "
            "Reason: ['KV connector not supported']",
        )


def splits_by_heads(settings: CommandSettings, image: str) -> bool:
    """Tell whether servers of other tensor parallel sizes can read their part of a KV cache of this server; True for
    unknown images, and if vLLM chooses the attention backend.
    """
    release, backend = release_of_vllm(image), settings.attention_backend
    return release is None or backend is None or backend in release.vllm.attention_backend.split_by_heads


# The model's files.


@dataclass(frozen=True)
class ContainerFiles:
    """Files of a container: folders of this machine by their mount paths in the container."""

    mounts: Mapping[str, str]

    def place(self, path: str) -> Path | None:
        """Return the path on this machine of a path in the container's file system; None if no mount contains the
        path.
        """
        container_path = PurePosixPath(path)
        for target in sorted(map(PurePosixPath, self.mounts), key=lambda mount: -len(mount.parts)):
            if container_path.is_relative_to(target):
                return Path(self.mounts[str(target)]) / container_path.relative_to(target)
        return None

    def read(self, path: str) -> bytes:
        """Return the content of a file of the container.

        Raises:
            StartRefusal: the file can't be read.
        """
        file = self.place(path)
        try:
            return (file or Path("/nonexistent")).read_bytes()
        except OSError as error:
            raise StartRefusal(1, f"OSError: [Errno {error.errno}] {error.strerror}: {path!r}") from None


def read_model(
    model: CatalogueModel, environment: Mapping[str, str], files: ContainerFiles, revision: str | None = None
) -> str:
    """Read all files of a model from the container's cache of Hugging Face, at a commit or at the cache's head of
    `main`, and return their folder in the container.

    Raises:
        StartRefusal: vLLM wouldn't start, because a file is missing or belongs to another model.
    """
    folder = _snapshot(model.repository, environment, files, revision)
    config = _object(files, f"{folder}/config.json")
    sizes = {"num_hidden_layers": model.architecture.layers, "hidden_size": model.architecture.hidden_size}
    for name, size in sizes.items():
        if config.get(name) != size:
            raise StartRefusal(
                1, f"llmd-oke rehearsal: config.json has {name} {config.get(name)}, {model.name} has {size}."
            )
    _object(files, f"{folder}/tokenizer.json")
    _check_weights(files, folder)
    return folder


def vocabulary_error(model: CatalogueModel, environment: Mapping[str, str], files: ContainerFiles) -> str | None:
    """Return the error that vLLM reports if the vocabulary of OpenAI's Harmony format isn't in the folder that an
    environment variable names, as a pod can't download it; None if the vocabulary is in the folder or the model has
    another format.

    vLLM 0.26 and 0.30 start in spite of this error.
    """
    vocabulary = model.vocabulary
    if vocabulary is None:
        return None
    if (folder := environment.get(vocabulary.variable)) is None:
        return _NO_VOCABULARY
    file = files.place(f"{folder}/{vocabulary.file}")
    if file is None or not file.is_file():
        return _NO_VOCABULARY_FILE
    return None if file.stat().st_size == vocabulary.bytes else _NO_VOCABULARY


def read_draft(draft: DraftSettings, environment: Mapping[str, str], files: ContainerFiles) -> str:
    """Read the files of a draft model, from its folder or from the cache of Hugging Face, and return the folder in the
    container.

    Raises:
        StartRefusal: vLLM wouldn't start, because a file of the draft is missing.
    """
    name = draft.model or ""
    folder = name if name.startswith("/") else _snapshot(name, environment, files, draft.revision)
    _object(files, f"{folder}/config.json")
    _check_weights(files, folder)
    return folder


def _snapshot(repository: str, environment: Mapping[str, str], files: ContainerFiles, revision: str | None) -> str:
    """The folder of a repository in Hugging Face's cache, at a commit or at the cache's head of `main`.

    Raises:
        Refusal: it isn't there.
    """
    home = environment.get("HF_HOME") or f"{environment.get('HOME', '')}/.cache/huggingface"
    hub = environment.get("HF_HUB_CACHE") or f"{home}/hub"
    place = f"{hub}/models--{repository.replace('/', '--')}"
    try:
        commit = revision or files.read(f"{place}/refs/main").decode().strip()
    except StartRefusal:
        raise StartRefusal(1, _NO_SNAPSHOT) from None
    folder = f"{place}/snapshots/{commit}"
    local_folder = files.place(folder)
    if local_folder is None or not local_folder.is_dir():
        raise StartRefusal(1, _NO_SNAPSHOT)
    return folder


def _check_weights(files: ContainerFiles, folder: str) -> None:
    """Check that each tensor of the index is complete in the file that the index names."""
    weights = cast("dict[str, str]", _object(files, f"{folder}/{_INDEX}").get("weight_map", {}))
    if not weights:
        raise StartRefusal(1, f"RuntimeError: Cannot find any model weights with `{folder}`")
    for name in sorted(set(weights.values())):
        content = files.read(f"{folder}/{name}")
        tensors = _tensors(content, f"{folder}/{name}")
        missing = [tensor for tensor, file in weights.items() if file == name and tensor not in tensors]
        if missing:
            raise StartRefusal(
                1, f"safetensors_rust.SafetensorError: File does not contain tensor {missing[0]}: {name}"
            )


def _tensors(content: bytes, path: str) -> Mapping[str, Any]:
    """Return the header of a safetensors file, after a check that the file has all data that the header describes."""
    try:
        (length,) = _HEADER_BYTES.unpack_from(content)
        begin = _HEADER_BYTES.size + length
        tensors = cast("dict[str, Any]", json.loads(content[_HEADER_BYTES.size : begin]))
        whole = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise StartRefusal(1, f"safetensors_rust.SafetensorError: Error while deserializing header: {path}") from None
    if len(content) != begin + whole:
        raise StartRefusal(1, f"safetensors_rust.SafetensorError: incomplete metadata, file not fully covered: {path}")
    return tensors


def _object(files: ContainerFiles, path: str) -> Mapping[str, Any]:
    try:
        document = json.loads(files.read(path))
    except ValueError as error:
        raise StartRefusal(1, f"json.decoder.JSONDecodeError: {error}: {path}") from None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}
