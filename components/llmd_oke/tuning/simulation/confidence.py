"""How far the mean of independent runs may be from the truth."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t for 95 % (two-sided) by degrees of freedom; the normal distribution's 1.96 is within 4 % above the last.
_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A mean over `runs` independent runs, and how far the truth may be from it with a confidence of 95 %.

    `half_width` is None where a single run leaves that unknown.
    """

    mean: float
    half_width: float | None
    runs: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent runs (batch means, each run one batch), with Student's t interval."""
    count = len(values)
    if count == 1:
        return Estimate(values[0], None, 1)
    student_t = _STUDENT_T[count - 2] if count - 2 < len(_STUDENT_T) else statistics.NormalDist().inv_cdf(0.975)
    return Estimate(statistics.fmean(values), student_t * statistics.stdev(values) / math.sqrt(count), count)
