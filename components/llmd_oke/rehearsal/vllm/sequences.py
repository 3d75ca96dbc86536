"""A request inside an engine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


class Finish(StrEnum):
    """Why a sequence ended, in vLLM's words."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class RemoteBlocks:
    """`kv_transfer_params` that a prefill server answered with: where the KV cache of a prompt waits to be pulled."""

    engine_id: str
    request_id: str
    host: str
    port: int


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt and the tokens that are generated for it. Times are model seconds; 0 where they are still to come.

    `computed` counts tokens that are in the KV cache, `generated` tokens that were emitted, `kept` blocks that are in
    the prefix cache, `cached_tokens` the hits of its prompt (-1: not looked up yet). `emit` is called for every token,
    and once more without a new one where the sequence ends by abort or error; `finish` is set at the last call.
    `corrupted` says that the KV cache of its prompt came damaged, which only what it says can show.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    hashes: list[int]
    emit: Callable[["Sequence"], None]
    arrival_s: float
    end: Finish = Finish.LENGTH
    remote: RemoteBlocks | None = None
    hold: bool = False
    blocks: list[int] = field(default_factory=list[int])
    computed: int = 0
    generated: int = 0
    kept: int = 0
    cached_tokens: int = -1
    queued_s: float = 0.0
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    finish: Finish | None = None
    corrupted: bool = False

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_tokens + self.generated
