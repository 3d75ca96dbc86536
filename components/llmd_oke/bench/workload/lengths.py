"""How long prompts and answers are, in tokens."""

import math
from dataclasses import dataclass
from random import Random

LONGEST_TOKENS = 1_000_000
"""Above every context length in use: a draw beyond it is a mistake of the parameters."""


@dataclass(frozen=True)
class Fixed:
    """Always the same."""

    tokens: int

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True)
class Normal:
    """A normal distribution, rounded and cut to `least`..`most`; the cut moves mean and deviation."""

    mean: float
    stddev: float
    least: int = 1
    most: int = LONGEST_TOKENS

    def __str__(self) -> str:
        return f"normal:{self.mean:g},{self.stddev:g}"


@dataclass(frozen=True)
class LogNormal:
    """A lognormal distribution, as lengths of real prompts have; `mean` and `stddev` are of the tokens, not of logs."""

    mean: float
    stddev: float
    least: int = 1
    most: int = LONGEST_TOKENS

    def __str__(self) -> str:
        return f"lognormal:{self.mean:g},{self.stddev:g}"


Length = Fixed | Normal | LogNormal


def draw(length: Length, random: Random) -> int:
    """One length."""
    if isinstance(length, Fixed):
        return length.tokens
    value = random.gauss(length.mean, length.stddev) if isinstance(length, Normal) else _lognormal(length, random)
    return min(max(round(value), length.least), length.most)


def _lognormal(length: LogNormal, random: Random) -> float:
    """The logarithm's mean and deviation follow from those of the value (the distribution's first two moments)."""
    variance = math.log1p((length.stddev / length.mean) ** 2)
    return random.lognormvariate(math.log(length.mean) - variance / 2, math.sqrt(variance))
