"""Accuracy of a deployment: the kit's own questions, their grading, floors, and comparison with a baseline.

The questions are made from the figures in `values/evals/builtin.yaml`. Every question has one right answer that follows
from the prompt, so that any instruction-tuned model gives it.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from math import comb, sqrt
from pathlib import Path
from random import Random
from typing import Literal

from llmd_base.errors import KitError
from llmd_base.row import Basis
from pydantic import BaseModel, ConfigDict

from llmd_bench.load.workload import WORDS

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
        name = random.choice(list(register))
        lines = "\n".join(f"{name}: bin {place}" for name, place in register.items())
        yield Item(
            f"recall-{figures.register_lines}-{index}",
            "recall",
            f"This is a register of parts.\n\n{lines}\n\nIn which bin is {name}? Answer with the number only.",
            register[name],
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


_NUMBER = re.compile(r"\d[\d,]*")
_WORD = re.compile(r"[a-z]+")


def right(item: Item, answer: str) -> bool:
    """Numbers: the last one in the answer is meant. Words: all of them, in order, at the end of the answer."""
    if item.kind == "repetition":
        expected = item.answer.split()
        return _WORD.findall(answer.lower())[-len(expected) :] == expected
    numbers = _NUMBER.findall(answer)
    return bool(numbers) and numbers[-1].replace(",", "") == item.answer


SIGNIFICANCE = 0.05
"""Chance at which a deployment that is as good as its baseline is called worse."""

_NORMAL_QUANTILE_95 = 1.959964


@dataclass(frozen=True)
class PairedComparison:
    """Two deployments on the same questions: how many only one of them got right, and how likely that is by chance.

    `p_value` is that of the exact one-sided McNemar test: the chance of at least so many questions lost among those on
    which the two differ, were both equally good (McNemar, Psychometrika 12, 1947; exact form by the binomial).
    """

    questions: int
    lost: int
    won: int

    @property
    def difference(self) -> float:
        """Change of the score, as a share; negative where this deployment is worse."""
        return (self.won - self.lost) / self.questions

    @property
    def p_value(self) -> float:
        """See the class."""
        differing = self.lost + self.won
        return sum(comb(differing, count) for count in range(self.lost, differing + 1)) / 2**differing

    @property
    def worse(self) -> bool:
        """Whether it lost more questions than chance explains."""
        return self.p_value < SIGNIFICANCE


def pair(these: Sequence[bool], those: Sequence[bool]) -> PairedComparison:
    """`these` answers against the baseline's to the same questions in the same order.

    Raises:
        ValueError: there are not as many of them.
    """
    both = list(zip(these, those, strict=True))
    return PairedComparison(
        questions=len(both),
        lost=sum(other and not this for this, other in both),
        won=sum(this and not other for this, other in both),
    )


def interval(right: int, questions: int) -> tuple[float, float]:
    """Where the true score lies with 95 % confidence (Wilson, JASA 22, 1927)."""
    if not questions:
        return 0.0, 1.0
    squared, score = _NORMAL_QUANTILE_95**2, right / questions
    middle = (score + squared / (2 * questions)) / (1 + squared / questions)
    half = _NORMAL_QUANTILE_95 * sqrt(score * (1 - score) / questions + squared / (4 * questions**2))
    half /= 1 + squared / questions
    return max(0.0, middle - half), min(1.0, middle + half)


EVAL_FILE = "eval-{name}.json"


@dataclass(frozen=True)
class BuiltinResult:
    """What became of the kit's own questions. `answers` has a letter for each, in the set's order: 1 right, 0 wrong.

    `unanswered` of the wrong ones had no answer at all; `examples` are a few wrong ones in words.
    """

    question_set: str
    started: datetime
    wall_s: float
    answers: str
    unanswered: int
    examples: tuple[str, ...]

    @property
    def score(self) -> float:
        """Share of right answers."""
        return self.answers.count("1") / len(self.answers)


class EvalResult(BaseModel):
    """What a deployment got right. `answers` has a letter for each question, in the set's order: 1 right, 0 wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    evaluation: str
    question_set: str
    """Fingerprint of the questions; results can be compared where it is equal."""
    model: str
    image: str
    topology: str
    config_hash: str
    basis: Basis
    simulated: tuple[str, ...] = ()
    started: str
    wall_s: float
    answers: str
    unanswered: int = 0
    examples: tuple[str, ...] = ()
    """A few wrong answers, to see what went wrong."""

    @property
    def right(self) -> list[bool]:
        """Question by question."""
        return [letter == "1" for letter in self.answers]

    @property
    def score(self) -> float:
        """Share of right answers."""
        return self.answers.count("1") / len(self.answers) if self.answers else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true score lies with 95 % confidence."""
        return interval(self.answers.count("1"), len(self.answers))


class Judgement(BaseModel):
    """Whether an evaluation passed, and what it was held against."""

    model_config = ConfigDict(frozen=True)

    floor: float | None
    failures: tuple[str, ...]
    baseline_score: float | None = None
    difference: float | None = None
    p_value: float | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures


def judge(result: EvalResult, floor: float | None, baseline: EvalResult | None) -> Judgement:
    """Holds a result against its floor and, where there is one, against the baseline. What is unknown fails.

    Raises:
        KitError: the baseline answered other questions, or is another model or image.
    """
    paired = _paired(result, baseline) if baseline else None
    return Judgement(
        floor=floor,
        failures=tuple(_failures(result, floor, paired)),
        baseline_score=baseline.score if baseline else None,
        difference=paired.difference if paired else None,
        p_value=paired.p_value if paired else None,
    )


def _failures(result: EvalResult, floor: float | None, paired: PairedComparison | None) -> list[str]:
    failures: list[str] = []
    if not result.answers:
        failures.append("no question was answered")
    if floor is None:
        failures.append(f"no floor is known for {result.model} in {result.evaluation}: give one with --floor")
    elif result.score < floor:
        failures.append(f"score {result.score:.1%} is below the floor of {floor:.1%}")
    if paired and paired.worse:
        failures.append(
            f"worse than the baseline on the same questions: {paired.lost} lost, {paired.won} won "
            f"(p = {paired.p_value:.2g})"
        )
    return failures


def _paired(result: EvalResult, baseline: EvalResult) -> PairedComparison:
    for what in ("evaluation", "question_set", "model", "image"):
        mine, other = getattr(result, what), getattr(baseline, what)
        if mine != other:
            raise KitError(
                f"The baseline's {what.replace('_', ' ')} is {other}, this one's is {mine}.",
                "Evaluate a baseline of the same model and image with the same questions.",
            )
    return pair(result.right, baseline.right)


def write_result(result: EvalResult, folder: Path) -> Path:
    """Writes the result into a folder of reports."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / EVAL_FILE.format(name=result.evaluation)
    path.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return path


def read_result(path: Path) -> EvalResult:
    """Reads a result back.

    Raises:
        KitError: there is none, or it is no result of an evaluation.
    """
    try:
        return EvalResult.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KitError(f"{path} holds no result of an evaluation: {error}") from error
