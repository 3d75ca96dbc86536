"""Prompts as the simulation sees them: a number of tokens and a chain of block hashes.

There is no tokenizer: four characters are a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

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


def completion_prompts(value: str | list[int] | list[list[int]] | list[str] | None) -> list[Prompt]:
    """The prompts of a completion: one as text or token ids, or a list of such."""
    if isinstance(value, str):
        return [Prompt(value)]
    items = value or []
    if ids := [item for item in items if isinstance(item, int)]:
        return [Prompt(tuple(ids))]
    return [Prompt(item if isinstance(item, str) else tuple(item)) for item in items if not isinstance(item, int)]


def chat_prompt(messages: Sequence[Mapping[str, object]]) -> Prompt:
    """The prompt of a chat: each role and its text, one after the other."""
    return Prompt("".join(f"<|{message.get('role', '')}|>{_text(message.get('content'))}" for message in messages))


def responses_prompt(instructions: str | None, given: str | Sequence[Mapping[str, object]]) -> Prompt:
    """The prompt of a response: instructions, then the user's text, or messages, tool calls and their results."""
    head = [] if instructions is None else [{"role": "system", "content": instructions}]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else [_as_message(item) for item in given]
    return chat_prompt([*head, *items])


def _as_message(item: Mapping[str, object]) -> Mapping[str, object]:
    """A tool call has arguments, its result an output, where a message has content."""
    content = next((item[key] for key in ("content", "arguments", "output") if key in item), None)
    return {"role": item.get("role", item.get("type", "")), "content": content}


def _text(content: object) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    parts = cast("list[dict[str, object]]", content) if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts)
