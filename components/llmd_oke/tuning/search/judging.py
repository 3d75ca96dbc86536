"""Deployments at loads against every constraint, and the most that each carries within all of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmd_oke.tuning.search.families import Family, Fleet, Scores
from llmd_oke.tuning.search.question import Question

Array = NDArray[np.float64]

CONSTRAINTS: Final = ("prefill", "decode", "KV transfer", "TTFT", "ITL", "E2E")
"""What can bind, in the order of `Judged.ratios`."""

FINE = 1 + 1e-9
"""A ratio up to which a target is met."""

_HALVINGS = 20
"""Of the range in which a deployment's capacity is looked for: to a millionth of it."""


@dataclass(frozen=True)
class Judged:
    """The deployments of a family at one load each: `ratios` is what each constraint has over what it allows."""

    family: Family
    fleet: Fleet
    requests_per_s: Array
    scores: Scores
    ratios: Array

    @cached_property
    def worst(self) -> Array:
        """The largest ratio of each deployment; above 1 a target is missed."""
        return self.ratios.max(axis=0)


def judge(question: Question, family: Family, fleet: Fleet, requests_per_s: Array) -> Judged:
    """Deployments at loads, against every constraint."""
    scores = family.score(fleet, requests_per_s)
    targets = question.targets
    ratios = np.stack(
        [
            scores.prefill_load / question.headroom.prefill_share,
            scores.decode_load / question.headroom.decode_share,
            scores.transfer_load / question.headroom.prefill_share,
            _share(scores.ttft_s, targets.ttft_s),
            _share(scores.itl_s, targets.itl_s),
            _share(scores.e2e_s, targets.e2e_s),
        ]
    )
    return Judged(family, fleet, requests_per_s, scores, ratios)


def capacities_of(question: Question, family: Family, fleet: Fleet) -> Array:
    """The most requests per second within all targets, by halving: every ratio rises with load."""
    high = family.most_requests_per_s(fleet)
    low = np.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fine = judge(question, family, fleet, middle).worst <= 1
        low, high = np.where(fine, middle, low), np.where(fine, high, middle)
    return low


def _share(values: Array, limit: float | None) -> Array:
    """What a latency has of its limit. It is infinite only under overload, which the load of a role tells better."""
    return np.zeros_like(values) if limit is None else np.where(np.isfinite(values), values, 0.0) / limit
