"""Time limit of a CI job that updates a stack, computed from the timeouts of the resources that its program
declares.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from llmd_oke.catalogue.operations import PipelineLimits, pipeline_limits
from llmd_oke.config import CONFIG_KEY, load
from llmd_oke.planning import Plan

if TYPE_CHECKING:
    from llmd_oke.program.declare import Declared

_UNITS_S = {"s": 1, "m": 60, "h": 3600}


_PART = re.compile(r"(\d+)([smh])")


_VERSION = "kubernetesVersion"


@dataclass(frozen=True)
class TimeLimit:
    """Longest duration of an update in minutes. `path` is the longest chain of dependent resources with each resource's
    timeout, `upgraded` are the further resources that only an upgrade of Kubernetes changes, one after the other, and
    `around` is the time before and after the update.
    """

    path: tuple[tuple[str, float], ...]
    upgraded: tuple[tuple[str, float], ...]
    around: float

    @property
    def minutes(self) -> int:
        """Time limit in whole minutes: the sum of all parts, rounded up."""
        return ceil(sum(minutes for _, minutes in (*self.path, *self.upgraded)) + self.around)

    def lines(self) -> Iterator[str]:
        """Yield a line of text for each part of the time limit that takes more than seconds."""
        for name, minutes in self.path:
            if minutes:
                yield f"{minutes:5.0f} min  {name}"
        for name, minutes in self.upgraded:
            yield f"{minutes:5.0f} min  {name}, in an upgrade of Kubernetes"
        yield f"{self.around:5.0f} min  setup, preview and reports"


def time_limit(project: Path, stack: str, plan: Plan) -> TimeLimit:
    """Return the time limit for updates of a stack, from the resources that its program declares without the Pulumi
    engine.

    Raises:
        InvalidStack: the stack can't be deployed.
        KitError: there is no such stack, or the program does not end.
    """
    from llmd_oke.program import program  # noqa: PLC0415 - loads Pulumi, which only this command needs
    from llmd_oke.program.declare import declared  # noqa: PLC0415

    config = load(project, stack).model_dump(mode="json", by_alias=True, exclude_unset=True)
    settings = {CONFIG_KEY: json.dumps(config), "llmd-oke:rehearsed": "true"}  # nothing is pulled or downloaded
    resources = declared(program, config=settings).resources
    known = pipeline_limits()
    client_s = plan.smoke.timeout_s * len(plan.models) if plan.smoke.where == "client" else 0
    return time_limit_of(resources, known, known.around_minutes + client_s / 60)


def time_limit_of(resources: Sequence["Declared"], known: PipelineLimits, around: float) -> TimeLimit:
    """Return the time limit for updates of these resources; `around` is the time in minutes before and after the
    update.
    """
    by_urn = {resource.urn: resource for resource in resources}
    own = {resource.urn: _minutes(resource, known) for resource in resources}
    path = [by_urn[urn] for urn in _longest(by_urn, own)]
    others = [resource for resource in resources if _VERSION in resource.inputs and resource not in path]
    steps, upgrades = (
        tuple((f"{item.type.rsplit(':', 1)[-1]} {item.name}", own[item.urn]) for item in items)
        for items in (path, others)
    )
    return TimeLimit(steps, upgrades, around)


def _longest(by_urn: Mapping[str, "Declared"], own: Mapping[str, float]) -> list[str]:
    """Return the URNs of the longest chain of dependent resources, first to last."""
    ends: dict[str, float] = {}
    before: dict[str, str | None] = {}

    def end(urn: str) -> float:
        if urn not in ends:
            resource = by_urn[urn]
            needed = [name for name in (*resource.depends_on, resource.provider.rpartition("::")[0]) if name in by_urn]
            before[urn] = max(needed, key=end, default=None)
            ends[urn] = own[urn] + max(map(end, needed), default=0.0)
        return ends[urn]

    path: list[str] = []
    at = max(by_urn, key=end, default=None)
    while at is not None:
        path.insert(0, at)
        at = before[at]
    return path


def _minutes(resource: "Declared", known: PipelineLimits) -> float:
    """Return the longest time in minutes that the engine waits for one resource; the times of deletion and creation add
    up if a replacement deletes first.
    """
    if resource.type.startswith(("llmd-oke:", "pulumi:")):
        return 0.0
    default = known.oci_minutes if resource.type.startswith("oci:") else known.kubernetes_minutes
    step = {name: _limit_minutes(resource.timeouts.get(name), default) for name in ("create", "update", "delete")}
    anew = step["create"] + (step["delete"] if resource.delete_before_replace else 0.0)
    return max(anew, step["update"])


def _limit_minutes(text: str | None, default: float) -> float:
    """Return the minutes of a timeout in Pulumi's format: `90m`, `1h30m`, `600s`."""
    if text is None:
        return default
    return sum(int(number) * _UNITS_S[unit] for number, unit in _PART.findall(text)) / 60
