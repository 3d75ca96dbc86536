"""What a number of GPUs can do at best: the frontier of throughput for each GPU against speed for each user."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from llmd_oke.results.frontier import frontier
from llmd_oke.tuning.search.deployments import Deployment, deployment_of
from llmd_oke.tuning.search.families import Fleet
from llmd_oke.tuning.search.judging import Judged, capacities_of, judge
from llmd_oke.tuning.search.question import Question, Targets
from llmd_oke.tuning.search.searching import at_loads, families
from llmd_oke.tuning.search.space import fleet_of

LOADS = np.linspace(0.02, 1.0, 40)
"""Shares of a deployment's capacity at which it is scored."""


def frontier_of(question: Question) -> list[Deployment]:
    """Deployments and loads that no other exceeds in both TPSG and TPSU, fastest for users first.

    All deployments are scored at loads up to what the shares of `headroom` allow; latency targets are left out, since
    the frontier shows what they cost.
    """
    free = replace(question, targets=Targets())
    found = [each for judged in _judged(free) for each in _frontier_of_family(free, judged)]
    return frontier(found, lambda each: each.tpsu, lambda each: each.tpsg)


def curve_of(question: Question, deployment: Deployment, points: int = 16) -> list[Deployment]:
    """One deployment from little load up to what the shares of `headroom` allow."""
    free = replace(question, targets=Targets())
    family = next(each for each in families(free) if each.name == deployment.family)
    counts = (np.array([count]) for count in (deployment.prefill, deployment.decode, deployment.copies))
    most = float(capacities_of(free, family, Fleet(*counts))[0])
    return at_loads(free, deployment, [most * share for share in np.linspace(0.05, 1.0, points)])


def _judged(question: Question) -> Iterator[Judged]:
    """Each family at all loads, as one flat fleet of single units: copies of one are no better for a GPU or a user."""
    for family in families(question):
        whole = fleet_of(family, question.hardware.gpus)
        fleet = whole.at(np.flatnonzero(whole.copies == 1))
        if fleet.copies.size:
            repeated = fleet.at(np.repeat(np.arange(fleet.copies.size), LOADS.size))
            loads = (capacities_of(question, family, fleet)[:, None] * LOADS).ravel()
            yield judge(question, family, repeated, loads)


def _frontier_of_family(question: Question, judged: Judged) -> Iterator[Deployment]:
    tokens = question.workload.output_tokens
    tpsu = tokens / judged.scores.e2e_s
    tpsg = judged.requests_per_s * tokens / judged.family.gpus(judged.fleet)
    best = frontier(range(len(tpsu)), lambda place: float(tpsu[place]), lambda place: float(tpsg[place]))
    return (deployment_of(question, judged, np.nan, place) for place in best)
