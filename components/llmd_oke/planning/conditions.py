"""What the vLLM servers of a stack are started with, as far as times depend on it."""

from typing import get_args

from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.releases import Release
from llmd_oke.config.engine import Engine
from llmd_oke.config.stack import QuickReduceFormat
from llmd_oke.values import Entry

QUANTIZATIONS: tuple[QuickReduceFormat, ...] = get_args(QuickReduceFormat)


_QUANTIZATIONS: dict[str, QuickReduceFormat] = {str(each): each for each in QUANTIZATIONS}


def quantization(text: str) -> QuickReduceFormat | None:
    """The quantization of that name, or None."""
    return _QUANTIZATIONS.get(text)


class Conditions(Entry):
    """What servers of one kind were started with; None where that is not told.

    `release` is of the catalogue: vLLM of later ones hands a KV cache over in fewer pieces.
    """

    image: str | None = None
    release: str | None = None
    attention_backend: str | None = None
    quick_reduce: QuickReduceFormat | None = None
    block_size: int | None = None

    @property
    def started_told(self) -> bool:
        """Whether anything is told beside image and release."""
        return any((self.attention_backend, self.quick_reduce, self.block_size))


UNKNOWN_CONDITIONS = Conditions()
"""vLLM's own defaults, as far as they are known."""


class DeployedConditions(Entry):
    """What the servers of a deployment are started with: those that hand KV caches over, and those that do both."""

    handing_over: Conditions = UNKNOWN_CONDITIONS
    aggregated: Conditions = UNKNOWN_CONDITIONS

    def of(self, topology: str | None) -> Conditions:
        """Those of a topology in short form; of servers that hand KV caches over where there is none."""
        return self.aggregated if topology is not None and topology.startswith("agg-") else self.handing_over


VLLM_DEFAULTS = DeployedConditions()
"""Nothing is set."""


def deployed_conditions(release: Release, model: Model, engine: Engine) -> DeployedConditions:
    """What the servers of a stack are started with, as `llmd_oke.serving.vllm` writes it into their pods."""
    of_model = model.quick_reduce.quantization if model.quick_reduce else None
    quick_reduce = engine.env.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION") or release.vllm.quick_reduce or of_model

    def conditions(*, hands_over: bool) -> Conditions:
        started = release.vllm.kv_cache_settings(model, engine.extra_args, engine.block_size, hands_over=hands_over)
        return Conditions(
            image=release.vllm.image.reference,
            release=release.name,
            attention_backend=started.attention_backend,
            quick_reduce=quantization(quick_reduce or "NONE"),
            block_size=started.block_size,
        )

    return DeployedConditions(handing_over=conditions(hands_over=True), aggregated=conditions(hands_over=False))
