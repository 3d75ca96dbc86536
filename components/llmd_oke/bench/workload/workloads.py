"""What is asked: prompts with their lengths, prefixes that requests share, and conversations of several turns."""

import uuid
from dataclasses import dataclass, field
from random import Random

from llmd_oke.bench.workload.lengths import Length, draw
from llmd_oke.bench.workload.prompts import PromptSource
from llmd_oke.bench.workload.shapes import TraceEntry


@dataclass(frozen=True)
class SharedPrefix:
    """Each prompt begins with one of `groups` texts of `tokens`, as system prompts do; they come before its length."""

    groups: int
    tokens: int


@dataclass(frozen=True)
class Conversations:
    """`at_a_time` conversations of `turns` turns; a turn has all earlier questions and the answers that really came.

    A turn waits for the answer before it, so that it may be sent later than it was due; that is not counted as slip.
    """

    at_a_time: int
    turns: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a conversation a request stands; `previous` is the request of the turn before it."""

    conversation: int
    turn: int = 0
    previous: int | None = None
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class Question:
    """What one request adds: its text, that text's tokens and how many tokens to answer with."""

    text: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Workload:
    """Says what each request asks.

    Lengths follow from `seed` alone, so that two runs can have the same; texts follow from `run` too, so that no run
    finds another one's prompts in a cache.
    """

    input_tokens: Length
    output_tokens: Length
    seed: int = 0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    prefix: SharedPrefix | None = None
    conversations: Conversations | None = None

    def place(self, index: int) -> Place:
        """Where in the conversations request `index` stands; alone where there are none."""
        if self.conversations is None:
            return Place(index)
        at_a_time, turns = self.conversations.at_a_time, self.conversations.turns
        turn = index // at_a_time % turns
        first = index // at_a_time // turns
        previous = index - at_a_time if turn else None
        return Place(first * at_a_time + index % at_a_time, turn, previous, turn == turns - 1)

    def question(self, index: int, *, label: str = "", recorded: TraceEntry | None = None) -> Question:
        """What request `index` of the load `label` asks; `recorded` lengths go before the workload's."""
        random = Random(f"{self.seed}/{index}")  # noqa: S311 - load, not secrets
        input_tokens, output_tokens = draw(self.input_tokens, random), draw(self.output_tokens, random)
        if recorded:
            input_tokens = recorded.input_tokens or input_tokens
            output_tokens = recorded.output_tokens or output_tokens
        text = PromptSource(input_tokens, self.seed, self.run).prompt(f"{label}/{index}")
        place = self.place(index)
        if self.prefix is None or place.turn:
            return Question(text, input_tokens, output_tokens)
        begin = self._prefix_text(self.prefix, place.conversation)
        return Question(begin + text, self.prefix.tokens + input_tokens, output_tokens)

    def _prefix_text(self, prefix: SharedPrefix, conversation: int) -> str:
        group = Random(f"{self.seed}/group/{conversation}").randrange(prefix.groups)  # noqa: S311 - load, not secrets
        return PromptSource(prefix.tokens, self.seed, self.run).prompt(f"prefix {group}")
