"""Thresholds for scaling from a forecast: the load of each server at which the targets still hold, less a reserve."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.tuning.search.deployments import Deployment
from llmd_oke.tuning.search.question import Question
from llmd_oke.tuning.search.searching import at_loads


class ScalingShare(Entry):
    """`values/tuning/scaling.yaml`: the share of what a server carries at which another one is started."""

    threshold_share: float


@dataclass(frozen=True)
class Threshold:
    """A key of the stack file's `scaling` with its value, and where the value is from."""

    key: str
    value: int
    basis: str


@dataclass(frozen=True)
class RoleThreshold:
    """How many servers a role has in a unit, and the threshold of each."""

    replicas: int
    threshold: Threshold


@cache
def scaling_share() -> float:
    """The kit's own share."""
    return required_entry("tuning", "scaling", ScalingShare).threshold_share


def thresholds(question: Question, best: Deployment, tag: str) -> Mapping[str, RoleThreshold]:
    """The thresholds of a deployment's roles, at the most that it carries within all targets.

    Prefill goes by prompt tokens per second, because its work is in proportion to them whatever their number; servers
    that generate go by their requests, which are the batch that the target for ITL allows. `tag` says what the
    forecast is: calibrated or a bound.
    """
    (full,) = at_loads(question, best, [best.capacity_per_s])
    most = f"at {best.capacity_per_s:.1f} requests/s, the most within {question.targets}"
    generating = RoleThreshold(best.decode, _threshold("requests", full.batch, f"{tag}: {full.batch:.1f} {most}"))
    if not best.prefill:
        return {"aggregated": generating}
    tokens_per_s = best.capacity_per_s * question.workload.input_tokens / (best.prefill * best.copies)
    prompts = _threshold("promptTokensPerS", tokens_per_s, f"{tag}: {tokens_per_s:.0f} {most}")
    return {"prefill": RoleThreshold(best.prefill, prompts), "decode": generating}


def _threshold(key: str, carried: float, basis: str) -> Threshold:
    """A share of what one server carries, in whole numbers."""
    share = scaling_share()
    return Threshold(key, max(1, math.floor(carried * share)), f"{basis}, times {share:g}")
