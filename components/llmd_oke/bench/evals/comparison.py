"""Whether one deployment answers worse than another, question by question."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

SIGNIFICANCE = 0.05
"""Chance at which a deployment that is as good as its baseline is called worse."""

_NORMAL_QUANTILE_95 = 1.959964


@dataclass(frozen=True)
class Paired:
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


def pair(these: Sequence[bool], those: Sequence[bool]) -> Paired:
    """`these` answers against the baseline's to the same questions in the same order.

    Raises:
        ValueError: there are not as many of them.
    """
    both = list(zip(these, those, strict=True))
    return Paired(
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
