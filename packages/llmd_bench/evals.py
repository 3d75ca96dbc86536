"""Accuracy of a deployment: questions built into the kit, grading, floors, and comparison with a baseline.

The questions are retrievals of several values as in RULER (Hsieh et al., arXiv 2404.06654, multi-query NIAH), generated
from the figures in `values/evals/builtin.yaml` and graded by exact match as in lm-eval. Each answer follows from its
prompt, so that any instruction-tuned model can answer.
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
    """Parameters from which the kit's built-in questions for evaluations are generated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int
    registers: dict[int, int]
    """Number of questions, by the length of the register in the prompt; a register is a list of parts with their
    places, one part in each line.
    """
    names: int
    """Number of parts whose places each question asks for."""
    max_output_tokens: int


@dataclass(frozen=True)
class Item:
    """One question of an evaluation. `answer` contains the numbers that a right answer must end with, separated by
    blanks.
    """

    id: str
    prompt: str
    answer: str


def builtin_items(figures: BuiltinSet) -> tuple[Item, ...]:
    """Generate the built-in questions, equal ones for equal `figures`. Each prompt contains another register (a list of
    parts with their places), so that no prefix cache can serve the prompt.
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
    """Return a hash of a set of questions; only results with equal hashes can be compared."""
    return hashlib.sha256(json.dumps([asdict(item) for item in items]).encode()).hexdigest()[:16]


_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


def right(item: Item, answer: str) -> bool:
    """Return whether an answer ends with the expected numbers in the expected order."""
    expected = item.answer.split()
    return re.findall(r"\d+", _THOUSANDS.sub("", answer))[-len(expected) :] == expected


SIGNIFICANCE = 0.05
"""Probability (0.05 is 5 %) with which a deployment as good as its baseline is judged worse."""

_NORMAL_QUANTILE_95 = 1.959964


@dataclass(frozen=True)
class PairedComparison:
    """Comparison of two deployments on the same questions.

    Attributes:
        questions: number of questions.
        lost: number of questions that only the baseline answered right.
        won: number of questions that only this deployment answered right.
    """

    questions: int
    lost: int
    won: int

    @property
    def difference(self) -> float:
        """Difference of the scores as a share of the questions; negative if this deployment is worse."""
        return (self.won - self.lost) / self.questions

    @property
    def p_value(self) -> float:
        """Probability that a deployment as good as the baseline would lose at least `lost` of the questions on which
        the two differ: the p-value of the exact one-sided McNemar test (McNemar, Psychometrika 12, 1947; exact form by
        the binomial distribution).
        """
        differing = self.lost + self.won
        return sum(comb(differing, count) for count in range(self.lost, differing + 1)) / 2**differing

    @property
    def worse(self) -> bool:
        """True if this deployment is significantly worse than the baseline."""
        return self.p_value < SIGNIFICANCE


def pair(these: Sequence[bool], those: Sequence[bool]) -> PairedComparison:
    """Compare this deployment's answers with the baseline's to the same questions in the same order; True is a right
    answer.

    Raises:
        ValueError: the numbers of answers differ.
    """
    both = list(zip(these, those, strict=True))
    return PairedComparison(
        questions=len(both),
        lost=sum(other and not this for this, other in both),
        won=sum(this and not other for this, other in both),
    )


def interval(right: int, questions: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of the true score (Wilson, JASA 22, 1927)."""
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
    """Graded answers to the built-in questions.

    Attributes:
        question_set: fingerprint of the questions.
        started: start time.
        wall_s: duration in seconds of wall time.
        answers: one character per question, in the questions' order: 1 right, 0 wrong.
        unanswered: number of questions without an answer, which count as wrong.
        examples: descriptions of a few wrong answers.
    """

    question_set: str
    started: datetime
    wall_s: float
    answers: str
    unanswered: int
    examples: tuple[str, ...]

    @property
    def score(self) -> float:
        """Share of the questions that were answered right (0.9 is 90 %)."""
        return self.answers.count("1") / len(self.answers)


class EvalResult(BaseModel):
    """Result of an evaluation. `answers` has one character per question, in the questions' order: 1 right, 0 wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    evaluation: str
    question_set: str
    """Fingerprint of the questions; only results with equal fingerprints can be compared."""
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
    """Descriptions of a few wrong answers."""

    @property
    def right(self) -> list[bool]:
        """Correctness of the answer to each question (True is right), in the questions' order."""
        return [letter == "1" for letter in self.answers]

    @property
    def score(self) -> float:
        """Share of the questions that were answered right (0.9 is 90 %)."""
        return self.answers.count("1") / len(self.answers) if self.answers else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the share of right answers."""
        return interval(self.answers.count("1"), len(self.answers))


class EvaluationJudgement(BaseModel):
    """Verdict on an evaluation: the lowest accepted score (`floor`), the comparison with a baseline, and the reasons of
    a failure.
    """

    model_config = ConfigDict(frozen=True)

    floor: float | None
    failures: tuple[str, ...]
    baseline_score: float | None = None
    difference: float | None = None
    p_value: float | None = None

    @property
    def passed(self) -> bool:
        """True if the evaluation has no failure, such as a score below the floor."""
        return not self.failures


def judge(result: EvalResult, floor: float | None, baseline: EvalResult | None) -> EvaluationJudgement:
    """Judge the result of an evaluation against `floor`, the lowest accepted share of right answers, and, if given,
    against a baseline. A missing floor or a result without answers fails.

    Raises:
        KitError: the baseline has other questions, another evaluation, model or image.
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
    """Write the result as JSON into a directory of reports, and return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / EVAL_FILE.format(name=result.evaluation)
    path.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return path


def read_result(path: Path) -> EvalResult:
    """Return the result that `write_result` wrote to a file.

    Raises:
        KitError: the file can't be read or is no result of an evaluation.
    """
    try:
        return EvalResult.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KitError(f"{path} holds no result of an evaluation: {error}") from error
