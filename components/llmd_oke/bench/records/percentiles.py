"""Percentiles, as numpy computes them by default."""

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the samples lie, interpolated linearly as numpy does by default.

    `ordered` must be ascending and not empty.
    """
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    below = ordered[low]
    above = ordered[min(low + 1, len(ordered) - 1)]
    between = below + (above - below) * (position - low)
    return min(max(between, below), above)
