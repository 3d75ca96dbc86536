"""Prompts as the simulation sees them: a number of tokens and a chain of block hashes.

There is no tokenizer: four characters are a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class Prompt:
    """A prompt's content, as text or as token ids."""

    content: str | tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Its length; four characters of text, or what is left of them, are a token."""
        return -(-len(self.content) // CHARACTERS_PER_TOKEN) if isinstance(self.content, str) else len(self.content)

    def block_hashes(self, block_size: int) -> list[int]:
        """A hash for each full block, over it and everything before it; equal only within one process."""
        width = block_size * (CHARACTERS_PER_TOKEN if isinstance(self.content, str) else 1)
        chained, hashes = 0, list[int]()
        for start in range(0, len(self.content) - width + 1, width):
            chained = hash((chained, self.content[start : start + width]))
            hashes.append(chained)
        return hashes


def completion_prompt(value: object) -> Prompt | None:
    """The prompt of a completion: text, token ids, or a list with one of these. None for anything else."""
    if isinstance(value, str):
        return Prompt(value)
    if not isinstance(value, list) or not value:
        return None
    items = cast("list[object]", value)
    if all(type(item) is int for item in items):
        return Prompt(tuple(cast("list[int]", items)))
    return completion_prompt(items[0]) if len(items) == 1 else None


def chat_prompt(messages: Sequence[Mapping[str, Any]]) -> Prompt:
    """The prompt of a chat: each role and its text, one after the other."""
    return Prompt("".join(f"<|{message.get('role', '')}|>{_text(message.get('content'))}" for message in messages))


def _text(content: object) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    parts = cast("list[dict[str, Any]]", content) if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts)
