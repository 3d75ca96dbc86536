"""What scaling by load is made of: KEDA's definitions, its pace, and queries of vLLM's metrics."""

from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.catalogue.releases import Crds


class Pace(Entry):
    """How fast servers come or go: `pods` in each `period_s`, and only for what held for all of `window_s`; seconds."""

    pods: int
    period_s: int
    window_s: int


class ScalingFacts(Entry):
    """Everything that a ScaledObject says beside what the stack file does.

    `names` are the definitions that have to be there, `plural.group`, and `remedy` says what to do where they aren't.
    `queries` are PromQL by the threshold's name, with `<selector>` for the pods.
    """

    definitions: Crds
    names: tuple[str, ...]
    established_timeout_s: int
    remedy: str
    prometheus: str
    polling_interval_s: int
    scale_up: Pace
    scale_down: Pace
    queries: dict[str, str]
    ratio_factor: float


@cache
def scaling() -> ScalingFacts:
    """The facts of `values/scaling/keda.yaml`."""
    return required_entry("scaling", "keda", ScalingFacts)
