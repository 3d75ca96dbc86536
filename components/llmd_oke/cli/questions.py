"""Answers of a command, from options, from a terminal, or assumed; missing and wrong answers are reported all
at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from llmd_base.documents import ACCEPTED
from llmd_base.errors import InvalidStack, KitError, Problem
from pydantic import TypeAdapter, ValidationError

from llmd_oke.cli import console
from llmd_oke.operations.tenancy_offers import Offer

NOT_WRITTEN = "no stack file is written"
"""Verdict on invalid answers of a first stack."""

MOST_OFFERS = 9
"""Maximum number of offers that a question lists."""


@dataclass(frozen=True)
class Question:
    """Question to the user, with the command's option for the same answer. `accepts` returns a description of valid
    answers if an answer is invalid, otherwise None.
    """

    option: str
    text: str
    accepts: Callable[[str], str | None] = lambda _: None


def form_of(type_: Any) -> Callable[[str], str | None]:
    """Return a function for `Question.accepts` that checks answers against a type of stack files."""
    adapter: TypeAdapter[str] = TypeAdapter(type_)

    def check(text: str) -> str | None:
        try:
            adapter.validate_python(text)
        except ValidationError as error:
            details = error.errors()[0]
            return ACCEPTED.get(details["type"], lambda _: "another text")(details.get("ctx", {}))
        return None

    return check


@dataclass
class Answers:
    """Answers of the user to a command's questions. `asks` tells whether questions may be asked on the terminal;
    `assumptions` are the defaults that the user didn't choose, as text.
    """

    asks: bool
    assumptions: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    problems: list[Problem] = field(default_factory=list[Problem])

    def answer(
        self,
        question: Question,
        given: str | None,
        default: str | None = None,
        why: str = "",
        offers: Callable[[], Sequence[Offer]] = tuple,
        *,
        is_example: bool = False,
    ) -> str:
        """Return the answer to a question: the option's value (`given`), otherwise the answer on the terminal,
        otherwise the first offer or the default, which is recorded as assumed for the reason `why`. If there is none,
        the option is recorded as missing, and the answer is empty. An invalid value of the option is recorded as a
        problem, and the default is returned, if there is one, so that the other answers can be judged. With
        `is_example` the default is recorded as assumed even if it was accepted on the terminal.
        """
        if given is not None:
            if (accepted := question.accepts(given)) is not None:
                self.problems.append(Problem(question.option, given, accepted, f"it answers: {question.text}"))
                return default or given
            return given
        offered = list(offers())
        if offered:
            first = offered[0]
            default, why = first.value, f"{first.label}: OCI offers it first" if first.label else "OCI offers it first"
        if self.asks:
            text = self._ask(question, default, offered[:MOST_OFFERS])
            if is_example and not offered and text == default:
                self._assume(question, text, why)
            return text
        if default is None:
            self.missing.append(question.option)
        elif why:
            self._assume(question, default, why)
        return default or ""

    def require(self) -> None:
        """Check that no answer is missing; `problems` are the invalid ones.

        Raises:
            InvalidStack: answers are missing, and others are invalid; contains all problems.
            KitError: answers are missing; the message names their options.
        """
        options = ", ".join(dict.fromkeys(self.missing))
        if self.missing and self.problems:
            needed = Problem(options, None, "values of these options", "answers are missing")
            raise InvalidStack([*self.problems, needed], NOT_WRITTEN)
        if self.missing:
            raise KitError(f"Answers are missing: {options}.", "Give these options, or run the command on a terminal.")

    def _assume(self, question: Question, text: str, why: str) -> None:
        self.assumptions.append(f"{question.option} {text}: {why}")

    def _ask(self, question: Question, default: str | None, offered: Sequence[Offer]) -> str:
        for number, offer in enumerate(offered, 1):
            console.tell(f"  {number}  {offer.label}  {offer.value}")
        while True:
            hint = f" ({question.option})" if default is not None else f" ({question.option}, needed)"
            text = str(typer.prompt(question.text + hint, default=default, err=True)).strip()
            if text.isdecimal() and 0 < int(text) <= len(offered):
                text = offered[int(text) - 1].value
            accepted = question.accepts(text)
            if accepted is None:
                return text
            console.errors().print(f"accepted: {accepted}", markup=False)
