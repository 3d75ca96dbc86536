"""Least squares without negative coefficients: no part of a time can be less than nothing."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_ROUNDS = 100


def nonnegative_least_squares(columns: Array, values: Array) -> Array:
    """The coefficients x >= 0 that bring `columns @ x` nearest to `values`.

    The active set method of Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23. Columns are scaled to
    equal length first, so that the order in which they come in is that of their use and not of their units.
    """
    lengths = np.maximum(np.linalg.norm(columns, axis=0), np.finfo(float).tiny)
    return _solve(columns / lengths, values) / lengths


def _solve(columns: Array, values: Array) -> Array:
    chosen = np.zeros(columns.shape[1], dtype=bool)
    solution = np.zeros(columns.shape[1])
    for _ in range(MOST_ROUNDS):
        pull = np.where(chosen, -np.inf, columns.T @ (values - columns @ solution))
        best = int(np.argmax(pull))
        if pull[best] <= 1e-9 * float(np.linalg.norm(values)):
            break
        chosen[best] = True
        solution = _backed_off(columns, values, solution, chosen)
        if not chosen[best]:
            break  # adding it helps by no more than rounding
    return solution


def _backed_off(columns: Array, values: Array, start: Array, chosen: "NDArray[Any]") -> Array:
    """From `start` towards the free solution of the chosen columns, leaving out those that would turn negative."""
    current = start
    while True:
        free = np.zeros_like(current)
        free[chosen] = np.linalg.lstsq(columns[:, chosen], values, rcond=None)[0]
        falling = chosen & (free <= 0)
        if not falling.any():
            return free
        reach = float(np.min(current[falling] / (current[falling] - free[falling])))
        current = current + reach * (free - current)
        chosen &= current > 1e-15
        current = np.where(chosen, current, 0.0)
