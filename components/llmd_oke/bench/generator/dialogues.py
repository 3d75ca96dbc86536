"""The turns of conversations: which request waits for which answer, and what has been said so far."""

from collections.abc import Callable, Sequence

from llmd_oke.bench.generator.requests import Turn
from llmd_oke.bench.workload.workloads import Place, Question

Asked = tuple[Question, Sequence[Turn], int]
"""A question, the turns before it and their tokens."""


class Dialogues:
    """Asks the questions of a load; `place` puts requests into conversations, None where each stands alone.

    One sender has all turns of a conversation, and sends or holds them in their order.
    """

    def __init__(self, question: Callable[[int], Question], place: Callable[[int], Place] | None = None) -> None:
        self.remember = place is not None
        self._question = question
        self._place = place
        self._said: dict[int, list[Turn]] = {}
        self._tokens: dict[int, int] = {}
        self._asked: dict[int, Question] = {}
        self._ended: set[int] = set()
        self._held: dict[int, Callable[[], None]] = {}

    def hold(self, index: int, go: Callable[[], None]) -> bool:
        """Whether the turn before `index` hasn't been answered; then `go` is called once it has."""
        previous = self._place(index).previous if self._place else None
        if previous is None:
            return False
        if previous in self._ended:
            self._ended.remove(previous)
            return False
        self._held[previous] = go
        return True

    def ask(self, index: int) -> Asked:
        """The question of a request, and what was said before."""
        question = self._question(index)
        if self._place is None:
            return question, (), 0
        place = self._place(index)
        self._asked[index] = question
        said = self._said.setdefault(place.conversation, [])
        return question, said, self._tokens.get(place.conversation, 0)

    def note_answer(self, index: int, text: str, tokens: int) -> None:
        """Request `index` has ended with this answer, empty if it failed; the turn that waits for it goes on."""
        if self._place is None:
            return
        place, question = self._place(index), self._asked.pop(index)
        if place.is_last:
            self._said.pop(place.conversation, None)
            self._tokens.pop(place.conversation, None)
            return
        self._said[place.conversation].append((question.text, text))
        before = self._tokens.get(place.conversation, 0)
        self._tokens[place.conversation] = before + question.input_tokens + tokens
        go = self._held.pop(index, None)
        if go:
            go()
        else:
            self._ended.add(index)

    def forget(self) -> int:
        """Drop what is held; its number."""
        held = len(self._held)
        self._held.clear()
        return held
