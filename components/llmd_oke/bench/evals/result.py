"""What became of questions, the result of one evaluation, its verdict, and the file that keeps it."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from llmd_oke.bench.evals.comparison import Paired, interval, pair
from llmd_oke.errors import KitError
from llmd_oke.results.row import Basis

EVAL_FILE = "eval-{name}.json"


@dataclass(frozen=True)
class Examined:
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


def _failures(result: EvalResult, floor: float | None, paired: Paired | None) -> list[str]:
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


def _paired(result: EvalResult, baseline: EvalResult) -> Paired:
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
