"""Speculative decoding: drafts of the catalogue's models, their memory, and the vLLM argument that selects them."""

import json
from dataclasses import dataclass
from typing import Literal

from llmd_bench.deployment import Parallelism
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from llmd_oke.config.base import Commit, HttpsUrl, Repository
from llmd_oke.values import Entry

DraftMethod = Literal["mtp", "eagle3"]
"""Methods of speculative decoding in vLLM's `--speculative-config`. Names such as `deepseek_mtp` and `qwen3_next_mtp`
are older ones of `mtp` (vllm/config/speculative.py of 0.26 and 0.30).
"""

DRAFT_TENSOR_PARALLEL_SIZE = "draft_tensor_parallel_size"


class DraftWeights(Entry):
    """Size of a draft's weights in GiB. `expert_gib` of them are experts, which all ranks of a server share."""

    gib: PositiveFloat
    expert_gib: NonNegativeFloat = 0.0


class Draft(Entry):
    """Draft for speculative decoding of a model, by vLLM's `method`, which proposes `tokens` tokens at each step.
    `repository` has its weights, at the commit `revision`; without one they are layers of the model's own files, which
    servers load for speculation alone. `key_value_bytes_per_token` is the KV cache of its own layers in BF16, before
    copies. `options` are further keys of `--speculative-config`, `arguments` are vLLM's other arguments in the draft's
    source. `verified_on` are GPUs on which the source says that the draft, not only the model, was run.
    """

    method: DraftMethod
    tokens: PositiveInt
    repository: Repository | None = None
    revision: Commit | None = None
    weights: DraftWeights
    key_value_bytes_per_token: NonNegativeInt
    options: dict[str, str | int] = Field(default_factory=dict[str, str | int])
    arguments: tuple[str, ...] = ()
    source: HttpsUrl
    verified_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerDraft:
    """Draft that the servers of a stack use, with the number of `tokens` to propose in each step. `revision` is the
    commit of the draft's repository that the stack file sets, None for the catalogue's.
    """

    draft: Draft
    tokens: int
    revision: str | None

    def gib(self, parallelism: Parallelism) -> float:
        """Return the memory of the draft's weights over all GPUs of a server, in GiB. Ranks share the experts, and each
        has its own copy of all other weights. A draft with tensor parallel size 1 is counted on each GPU, which is an
        upper bound.
        """
        weights = self.draft.weights
        whole = self.draft.options.get(DRAFT_TENSOR_PARALLEL_SIZE) == 1
        copies = parallelism.tensor_parallel_size if whole else 1
        own_gib = (weights.gib - weights.expert_gib) * parallelism.data_parallel_size * copies
        return weights.expert_gib + own_gib

    def argument(self, model: str | None, revision: str | None) -> str:
        """Return vLLM's argument `--speculative-config`, whose value is JSON. `model` is the repository or folder of
        the draft's files, None for a draft in the model's own files.
        """
        place = {"model": model, "revision": revision}
        given = {name: value for name, value in place.items() if value is not None}
        config = {"method": self.draft.method, **given, "num_speculative_tokens": self.tokens, **self.draft.options}
        return f"--speculative-config={json.dumps(config)}"
