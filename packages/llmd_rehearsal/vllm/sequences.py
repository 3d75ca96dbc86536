"""Prompts, and the sequences of tokens that an engine generates for them.

A prompt is a number of tokens and a chain of block hashes. There is no tokenizer: four characters count as a token.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast
from zlib import crc32

CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class Prompt:
    """Content of a request's prompt: text or token ids."""

    content: str | tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Number of the prompt's tokens: of ids, or of groups of four characters, rounded up."""
        return -(-len(self.content) // CHARACTERS_PER_TOKEN) if isinstance(self.content, str) else len(self.content)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt's token ids; those of a text are checksums of its groups of four characters, as there is no
        tokenizer.
        """
        if not isinstance(self.content, str):
            return self.content
        starts = range(0, len(self.content), CHARACTERS_PER_TOKEN)
        return tuple(crc32(self.content[start : start + CHARACTERS_PER_TOKEN].encode()) for start in starts)

    def block_hashes(self, block_size: int, salt: str | None = None) -> list[int]:
        """Return a hash of each full block, over the block, all blocks before it and the request's `cache_salt`; hashes
        of different processes are equal only with the same PYTHONHASHSEED.
        """
        width = block_size * (CHARACTERS_PER_TOKEN if isinstance(self.content, str) else 1)
        previous, hashes = 0 if salt is None else hash(salt), list[int]()
        for start in range(0, len(self.content) - width + 1, width):
            previous = hash((previous, self.content[start : start + width]))
            hashes.append(previous)
        return hashes


def completion_prompts(value: str | list[int] | list[list[int]] | list[str] | None) -> list[Prompt]:
    """Return the prompts of a completion's field `prompt`: text, token ids, or a list of either."""
    if isinstance(value, str):
        return [Prompt(value)]
    items = value or []
    if ids := [item for item in items if isinstance(item, int)]:
        return [Prompt(tuple(ids))]
    return [Prompt(item if isinstance(item, str) else tuple(item)) for item in items if not isinstance(item, int)]


def chat_prompt(messages: Iterable[Mapping[str, object]]) -> Prompt:
    """Return the prompt of a chat: each message's role and text, one after the other."""
    return Prompt("".join(f"<|{message.get('role', '')}|>{_text(message.get('content'))}" for message in messages))


def responses_prompt(instructions: str | None, content: str | Iterable[Mapping[str, object]]) -> Prompt:
    """Return the prompt of `/v1/responses`: instructions, then the user's text, or messages, tool calls and results."""
    head = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(content, str):
        return chat_prompt([*head, {"role": "user", "content": content}])
    # A tool call has arguments, its result an output, where a message has content.
    keys = ("content", "arguments", "output")
    messages = [
        {
            "role": item.get("role", item.get("type", "")),
            "content": next((item[key] for key in keys if key in item), None),
        }
        for item in content
    ]
    return chat_prompt([*head, *messages])


def _text(content: object) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    parts = cast("list[dict[str, object]]", content) if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts)


class Finish(StrEnum):
    """Reasons why an engine ended a sequence, with vLLM's names."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class RemoteBlocks:
    """Location of a prompt's KV cache at a prefill server, from the `kv_transfer_params` that this server answered."""

    engine_id: str
    request_id: str
    host: str
    port: int


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt and the tokens that are generated for it by a simulated engine. Times are model seconds (seconds on
    real hardware); 0 before the event.

    `computed` is the number of tokens in the KV cache, `generated` of emitted tokens, `cached_blocks` of blocks in the
    prefix cache, `loading_blocks` of blocks that are loaded from the node's memory, `reading_blocks` of those of them
    that its disks have alone, and `cached_tokens` of the prompt's tokens found in caches (-1: not looked up yet).
    `emit` is called for every step with its `latest` tokens, and once without a token if the sequence is aborted or
    fails; at the last call `finish` is set. `drafts` counts the drafts that were checked. `adapter` is the name of the
    LoRA adapter that answers, None for the model itself; `cache_salt` is the request's. `token_ids` are those of the
    prompt, empty unless the server publishes KV cache events. `corrupted` tells whether the prompt's KV cache arrived
    corrupted, which changes only the text.
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
    adapter: str | None = None
    cache_salt: str | None = None
    token_ids: tuple[int, ...] = ()
    blocks: list[int] = field(default_factory=list[int])
    computed: int = 0
    generated: int = 0
    latest: int = 0
    drafts: int = 0
    cached_blocks: int = 0
    cached_tokens: int = -1
    loading_blocks: int = 0
    reading_blocks: int = 0
    queued_s: float = 0.0
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    finish: Finish | None = None
    corrupted: bool = False

    @property
    def tokens(self) -> int:
        """Number of the sequence's tokens: prompt and generated ones."""
        return self.prompt_tokens + self.generated
