"""How sure a difference of means is: Welch's t interval (B. L. Welch, Biometrika 34, 1947)."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, variance

LEVEL = 0.95

_STEPS = 400


def difference_interval(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """The interval in which the mean of `b` minus that of `a` lies with this confidence.

    None where one of them has a single value, of which nothing can be said.
    """
    if len(a) < 2 or len(b) < 2:
        return None
    share_a, share_b = variance(a) / len(a), variance(b) / len(b)
    middle, error = fmean(b) - fmean(a), math.sqrt(share_a + share_b)
    if error == 0:
        return middle, middle
    freedom = (share_a + share_b) ** 2 / (share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1))
    reach = error * t_quantile((1 + level) / 2, freedom)
    return middle - reach, middle + reach


@lru_cache(maxsize=1024)
def t_quantile(share: float, freedom: float) -> float:
    """The value that Student's t with `freedom` degrees of freedom stays below with probability `share` (over 0.5).

    Newton's method from the normal quantile: the distribution is concave there, so that it comes from below.
    """
    value = NormalDist().inv_cdf(share)
    for _ in range(100):
        step = (share - 0.5 - _area(value, freedom)) / _density(value, freedom)
        value += step
        if abs(step) < 1e-10 * value:
            break
    return value


def _density(value: float, freedom: float) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return math.exp(scale) / math.sqrt(freedom * math.pi) * (1 + value * value / freedom) ** (-(freedom + 1) / 2)


def _area(value: float, freedom: float) -> float:
    """Below the density between 0 and `value`, by Simpson's rule."""
    step = value / _STEPS
    inner = math.fsum((4 if index % 2 else 2) * _density(index * step, freedom) for index in range(1, _STEPS))
    return step / 3 * (_density(0, freedom) + inner + _density(value, freedom))
