"""A request inside an engine: the sequence of tokens that is made of its prompt.

A prompt is a number of tokens and a chain of block hashes. There is no tokenizer: four characters are a token.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class Prompt:
    """A prompt's content, as text or as token ids."""

    content: str | tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Number of the prompt's tokens: four characters of text, or a rest of fewer, are a token."""
        return -(-len(self.content) // CHARACTERS_PER_TOKEN) if isinstance(self.content, str) else len(self.content)

    def block_hashes(self, block_size: int, salt: str | None = None) -> list[int]:
        """A hash for each full block, over it and everything before it, a request's `cache_salt` too; equal only within
        one process.
        """
        width = block_size * (CHARACTERS_PER_TOKEN if isinstance(self.content, str) else 1)
        previous, hashes = 0 if salt is None else hash(salt), list[int]()
        for start in range(0, len(self.content) - width + 1, width):
            previous = hash((previous, self.content[start : start + width]))
            hashes.append(previous)
        return hashes


def completion_prompts(value: str | list[int] | list[list[int]] | list[str] | None) -> list[Prompt]:
    """The prompts of a completion: one as text or token ids, or a list of such."""
    if isinstance(value, str):
        return [Prompt(value)]
    items = value or []
    if ids := [item for item in items if isinstance(item, int)]:
        return [Prompt(tuple(ids))]
    return [Prompt(item if isinstance(item, str) else tuple(item)) for item in items if not isinstance(item, int)]


def chat_prompt(messages: Iterable[Mapping[str, object]]) -> Prompt:
    """The prompt of a chat: each role and its text, one after the other."""
    return Prompt("".join(f"<|{message.get('role', '')}|>{_text(message.get('content'))}" for message in messages))


def responses_prompt(instructions: str | None, content: str | Iterable[Mapping[str, object]]) -> Prompt:
    """The prompt of a response: instructions, then the user's text, or messages, tool calls and their results."""
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
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    parts = cast("list[dict[str, object]]", content) if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts)


class Finish(StrEnum):
    """Reasons for a sequence's end, by vLLM's names."""

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

    `computed` counts tokens that are in the KV cache, `generated` tokens that were emitted, `cached_blocks` blocks that
    are in the prefix cache, `loading_blocks` those that come from the node's memory, `cached_tokens` the hits of its
    prompt (-1: not looked up yet). `emit` is called for every
    step with its `latest` tokens, and once more without one where the sequence ends by abort or error; `finish` is set
    at the last call. `drafts` counts those that were checked.
    `corrupted` says that the KV cache of its prompt came damaged, which only its text can show.
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
    latest: int = 0
    drafts: int = 0
    cached_blocks: int = 0
    cached_tokens: int = -1
    loading_blocks: int = 0
    queued_s: float = 0.0
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    finish: Finish | None = None
    corrupted: bool = False

    @property
    def tokens(self) -> int:
        """Number of prompt and generated tokens."""
        return self.prompt_tokens + self.generated
