"""How long an update of a stack may take by the kit's own limits, for the time limit of a job that runs it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from llmd_oke.catalogue.limits import PipelineLimits, pipeline_limits
from llmd_oke.config import CONFIG_KEY, load
from llmd_oke.planning import Plan
from llmd_oke.stack import program
from llmd_oke.testing import Declared, declared

_UNITS_S = {"s": 1, "m": 60, "h": 3600}
_PART = re.compile(r"(\d+)([smh])")
_VERSION = "kubernetesVersion"


@dataclass(frozen=True)
class TimeLimit:
    """The longest that an update may take, in minutes: the longest way of resources that wait for each other, each as
    long as its limit, then `upgraded`, those that only an upgrade of Kubernetes has one after the other, and `around`.
    """

    path: tuple[tuple[str, float], ...]
    upgraded: tuple[tuple[str, float], ...]
    around: float

    @property
    def minutes(self) -> int:
        """All of it, in whole minutes."""
        return ceil(sum(minutes for _, minutes in (*self.path, *self.upgraded)) + self.around)

    def lines(self) -> Iterator[str]:
        """What it is made of, but for what takes seconds."""
        for name, minutes in self.path:
            if minutes:
                yield f"{minutes:5.0f} min  {name}"
        for name, minutes in self.upgraded:
            yield f"{minutes:5.0f} min  {name}, in an upgrade of Kubernetes"
        yield f"{self.around:5.0f} min  setup, preview and reports"


def time_limit(project: Path, stack: str, plan: Plan) -> TimeLimit:
    """The limit of a stack, from what its program declares without an engine.

    Raises:
        Refused: the stack can't be deployed.
        KitError: there is no such stack, or the program does not end.
    """
    config = load(project, stack).model_dump(mode="json", by_alias=True, exclude_unset=True)
    resources = declared(program, config={CONFIG_KEY: json.dumps(config)}).resources
    known = pipeline_limits()
    client_s = plan.smoke.timeout_s * len(plan.models) if plan.smoke.where == "client" else 0
    return of_resources(resources, known, known.around_minutes + client_s / 60)


def of_resources(resources: Sequence[Declared], known: PipelineLimits, around: float) -> TimeLimit:
    """The limit of what a program declares."""
    by_urn = {resource.urn: resource for resource in resources}
    own = {resource.urn: _minutes(resource, known) for resource in resources}
    path = [by_urn[urn] for urn in _longest(by_urn, own)]
    others = [each for each in resources if _VERSION in each.inputs and each not in path]
    told, upgraded = (tuple((_name(each), own[each.urn]) for each in chosen) for chosen in (path, others))
    return TimeLimit(told, upgraded, around)


def _longest(by_urn: Mapping[str, Declared], own: Mapping[str, float]) -> list[str]:
    """The longest way through resources that wait for each other, the first one first."""
    ends: dict[str, float] = {}
    before: dict[str, str | None] = {}

    def end(urn: str) -> float:
        if urn not in ends:
            resource = by_urn[urn]
            needed = [each for each in (*resource.depends_on, resource.provider.rpartition("::")[0]) if each in by_urn]
            before[urn] = max(needed, key=end, default=None)
            ends[urn] = own[urn] + max(map(end, needed), default=0.0)
        return ends[urn]

    way: list[str] = []
    at = max(by_urn, key=end, default=None)
    while at is not None:
        way.insert(0, at)
        at = before[at]
    return way


def _minutes(resource: Declared, known: PipelineLimits) -> float:
    """The longest that the engine waits for one resource; what is deleted first is waited for twice."""
    if resource.type.startswith(("llmd-oke:", "pulumi:")):
        return 0.0
    default = known.oci_minutes if resource.type.startswith("oci:") else known.kubernetes_minutes
    step = {name: _parsed(resource.timeouts.get(name), default) for name in ("create", "update", "delete")}
    anew = step["create"] + (step["delete"] if resource.delete_before_replace else 0.0)
    return max(anew, step["update"])


def _parsed(text: str | None, default: float) -> float:
    """Minutes of a limit as Pulumi writes it: `90m`, `1h30m`, `600s`."""
    if text is None:
        return default
    return sum(int(number) * _UNITS_S[unit] for number, unit in _PART.findall(text)) / 60


def _name(resource: Declared) -> str:
    return f"{resource.type.rsplit(':', 1)[-1]} {resource.name}"
