"""Accuracy of a deployment: the kit's own questions, their grading, floors, and comparison with a baseline.

The questions are those of RULER's retrieval of several values (Hsieh et al., arXiv 2404.06654, multi-query NIAH), made
from the figures in `values/evals/builtin.yaml` and judged as lm-eval judges exact matches: each answer follows from its
prompt, so that any instruction-tuned model gives it.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from math import comb, sqrt
from pathlib import Path
from random import Random

from llmd_base.errors import KitError
from llmd_base.row import Basis
from pydantic import BaseModel, ConfigDict

from llmd_bench.load.workload import WORDS


class BuiltinSet(BaseModel):
    """Figures that the kit's own set of questions is made from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int
    registers: dict[int, int]
    """Number of questions, by the number of lines of their registers."""
    names: int
    """Number of lines that each question asks for."""
    max_output_tokens: int


@dataclass(frozen=True)
class Item:
    """One question. `answer` has the numbers that a right answer ends in, with blanks between them."""

    id: str
    prompt: str
    answer: str


def builtin_items(figures: BuiltinSet) -> tuple[Item, ...]:
    """Make the questions of the set; the same figures give the same ones. Each has a register of its own, so that no
    prefix cache answers it.
    """
    random, items = Random(figures.seed), list[Item]()  # noqa: S311 - questions, not secrets
    for lines, index in ((lines, index) for lines, count in figures.registers.items() for index in range(count)):
        parts = [f"{random.choice(WORDS)}-{number}" for number in random.sample(range(1000, 10000), lines)]
        register = {part: str(random.randrange(10000, 100000)) for part in parts}
        names = random.sample(parts, figures.names)
        text = "\n".join(f"{part}: bin {place}" for part, place in register.items())
        question = f"In which bins are {', '.join(names)}? Answer with the numbers only, in this order."
        prompt = f"This is a register of parts.\n\n{text}\n\n{question}"
        items.append(Item(f"register-{lines}-{index}", prompt, " ".join(register[part] for part in names)))
    return tuple(items)


def fingerprint(items: tuple[Item, ...]) -> str:
    """Return the name of a set of questions: results can be compared where it is equal."""
    return hashlib.sha256(json.dumps([asdict(item) for item in items]).encode()).hexdigest()[:16]


_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


def right(item: Item, answer: str) -> bool:
    """Check that the last numbers of an answer are the right ones, in order."""
    expected = item.answer.split()
    return re.findall(r"\d+", _THOUSANDS.sub("", answer))[-len(expected) :] == expected


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
        """True if this deployment lost more questions than chance explains."""
        return self.p_value < SIGNIFICANCE


def pair(these: Sequence[bool], those: Sequence[bool]) -> PairedComparison:
    """Compare `these` answers with the baseline's to the same questions in the same order.

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
    """Return the interval that holds the true score with 95 % confidence (Wilson, JASA 22, 1927)."""
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
    """Answers to the kit's own questions. `answers` has a letter for each, in the set's order: 1 right, 0 wrong.

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
    """Result of an evaluation. `answers` has a letter for each question, in the set's order: 1 right, 0 wrong."""

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
        """Rightness of each answer, question by question."""
        return [letter == "1" for letter in self.answers]

    @property
    def score(self) -> float:
        """Share of right answers."""
        return self.answers.count("1") / len(self.answers) if self.answers else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Interval that holds the true score with 95 % confidence."""
        return interval(self.answers.count("1"), len(self.answers))


class EvaluationJudgement(BaseModel):
    """Verdict on an evaluation, with the floor and the baseline that it was held against."""

    model_config = ConfigDict(frozen=True)

    floor: float | None
    failures: tuple[str, ...]
    baseline_score: float | None = None
    difference: float | None = None
    p_value: float | None = None

    @property
    def passed(self) -> bool:
        """True if nothing failed."""
        return not self.failures


def judge(result: EvalResult, floor: float | None, baseline: EvalResult | None) -> EvaluationJudgement:
    """Hold a result against its floor and, where there is one, against the baseline. What is unknown fails.

    Raises:
        KitError: the baseline answered other questions, or is another model or image.
    """
    paired = _paired(result, baseline) if baseline else None
    return EvaluationJudgement(
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
    """Write the result into a folder of reports, and return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / EVAL_FILE.format(name=result.evaluation)
    path.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return path


def read_result(path: Path) -> EvalResult:
    """Read a result back.

    Raises:
        KitError: there is none, or it is no result of an evaluation.
    """
    try:
        return EvalResult.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KitError(f"{path} holds no result of an evaluation: {error}") from error
