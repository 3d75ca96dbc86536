"""The questions of the kit's own set, made from the figures in `values/evals/builtin.yaml`.

Every question has one right answer that follows from the prompt, so that any instruction-tuned model gives it.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import Random
from typing import Literal

from pydantic import BaseModel, ConfigDict

from llmd_oke.bench.workload.prompts import WORDS

Kind = Literal["recall", "arithmetic", "repetition"]


class _Figures(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecallFigures(_Figures):
    """Questions about one line of a register of that many lines."""

    register_lines: int
    questions: int


class ArithmeticFigures(_Figures):
    """Sums."""

    questions: int


class RepetitionFigures(_Figures):
    """Words to be repeated."""

    questions: int
    words: int


class BuiltinSet(_Figures):
    """How the kit's own set is made."""

    seed: int
    recall: tuple[RecallFigures, ...]
    arithmetic: ArithmeticFigures
    repetition: RepetitionFigures
    max_output_tokens: int


@dataclass(frozen=True)
class Item:
    """One question. `answer` is what a right answer comes down to; `kind` says how it is judged."""

    id: str
    kind: Kind
    prompt: str
    answer: str


def builtin_items(figures: BuiltinSet) -> tuple[Item, ...]:
    """The set; the same figures give the same questions."""
    random = Random(figures.seed)  # noqa: S311 - questions, not secrets
    recalled = (item for part in figures.recall for item in _recall(part, random))
    return (
        *recalled,
        *_arithmetic(figures.arithmetic.questions, random),
        *_repetition(figures.repetition.questions, figures.repetition.words, random),
    )


def fingerprint(items: tuple[Item, ...]) -> str:
    """Names a set: results can be compared where this is equal."""
    return hashlib.sha256(json.dumps([asdict(item) for item in items]).encode()).hexdigest()[:16]


def _recall(figures: RecallFigures, random: Random) -> Iterator[Item]:
    """Each question has a register of its own, so that no prefix cache answers it."""
    for index in range(figures.questions):
        names = random.sample(range(1000, 10000), figures.register_lines)
        register = {f"{random.choice(WORDS)}-{name}": str(random.randrange(10000, 100000)) for name in names}
        asked = random.choice(list(register))
        lines = "\n".join(f"{name}: bin {place}" for name, place in register.items())
        yield Item(
            f"recall-{figures.register_lines}-{index}",
            "recall",
            f"This is a register of parts.\n\n{lines}\n\nIn which bin is {asked}? Answer with the number only.",
            register[asked],
        )


def _arithmetic(questions: int, random: Random) -> Iterator[Item]:
    for index in range(questions):
        one, other = random.randrange(100, 1000), random.randrange(100, 1000)
        prompt = f"What is {one} + {other}? Answer with the number only."
        yield Item(f"arithmetic-{index}", "arithmetic", prompt, str(one + other))


def _repetition(questions: int, words: int, random: Random) -> Iterator[Item]:
    for index in range(questions):
        text = " ".join(random.choices(WORDS, k=words))
        prompt = f"Repeat these words in the same order, and nothing else: {text}"
        yield Item(f"repetition-{index}", "repetition", prompt, text)
