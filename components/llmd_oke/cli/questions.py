"""Answers of a command: by an option, on a terminal, or assumed; what is missing or wrong is told all at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from llmd_base.documents import ACCEPTED
from llmd_base.errors import InvalidStack, KitError, Problem
from pydantic import TypeAdapter, ValidationError

from llmd_oke.cli import console
from llmd_oke.operations.tenancy_offers import Offer

MOST_OFFERS = 9
"""Offers that a question lists."""


@dataclass(frozen=True)
class Question:
    """Question and the `option` that answers it too. `accepts` returns what is wrong with an answer, or None."""

    option: str
    text: str
    accepts: Callable[[str], str | None] = lambda _: None


def form_of(type_: Any) -> Callable[[str], str | None]:
    """Return a check of texts against a type of stack files, whose words a user gets."""
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
    """Answers of one run. `asks` says that a terminal is there to ask on; `assumptions` are defaults that nobody chose,
    in words.
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
        """Return what was given, else the answer on the terminal, else the first offer or the default, which is
        assumed because of `why`. Without any of them the option is `missing`, and the answer empty. A default that
        `is_example` is told as assumed on a terminal too.
        """
        if given is not None:
            self._judge(question, given)
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
        """End where something is missing or wrong.

        Raises:
            InvalidStack: answers that can't be; carries every problem.
            KitError: answers are missing; names their options.
        """
        if self.problems:
            raise InvalidStack(self.problems, "no stack file is written")
        if self.missing:
            options = ", ".join(dict.fromkeys(self.missing))
            raise KitError(f"Answers are missing: {options}.", "Give these options, or run the command on a terminal.")

    def _judge(self, question: Question, text: str) -> None:
        accepted = question.accepts(text)
        if accepted is not None:
            self.problems.append(Problem(question.option, text, accepted, f"it answers: {question.text}"))

    def _assume(self, question: Question, text: str, why: str) -> None:
        self.assumptions.append(f"{question.option} {text}: {why}")

    def _ask(self, question: Question, default: str | None, offered: Sequence[Offer]) -> str:
        for number, offer in enumerate(offered, 1):
            console.errors().print(f"  {number}  {offer.label}  {offer.value}", markup=False, soft_wrap=True)
        while True:
            hint = f" ({question.option})" if default is not None else f" ({question.option}, needed)"
            text = str(typer.prompt(question.text + hint, default=default, err=True)).strip()
            if text.isdecimal() and 0 < int(text) <= len(offered):
                text = offered[int(text) - 1].value
            accepted = question.accepts(text)
            if accepted is None:
                return text
            console.errors().print(f"accepted: {accepted}", markup=False)
