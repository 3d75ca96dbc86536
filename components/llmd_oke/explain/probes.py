"""Plans and renderings of a stack with other values of its keys, compared with those of the unchanged stack."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from llmd_base.errors import InvalidStack, KitError

from llmd_oke import planning
from llmd_oke.config import ExistingCluster, locate
from llmd_oke.explain.keys import StackFile, StackKey, other_values
from llmd_oke.gitops.rendering import declarations
from llmd_oke.planning import Plan
from llmd_oke.program.declare import Declared

_DIGEST = re.compile(r"-?(?<![0-9a-zA-Z])(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,64}(?![0-9a-zA-Z])")

Objects = Mapping[tuple[str, str], Mapping[str, Any]]
"""Inputs of rendered resources by kind and name, names without digests."""

View = Callable[[Plan], Plan]
"""Function that reduces a plan to the part that is rendered, to save time."""


@dataclass(frozen=True)
class Probe:
    """Other value of a stack-file key, and the plan of the stack with that value."""

    key: StackKey
    value: object
    plan: Plan


@dataclass(frozen=True)
class Untried:
    """Stack-file key for which no other value could be deployed, and the reason for the first value that was tried."""

    key: StackKey
    why: str


class StackProbes:
    """Stack with its plan, and its plans and renderings with other values of single keys.

    `companions` are values of further keys, by path, that all of these plans have instead of the stack file's.
    """

    def __init__(self, project: Path, stack: str, companions: Mapping[str, object] | None = None) -> None:
        self._project, self._stack = project, stack
        self._companions = companions or {}
        self.on_more_nodes = bool(self._companions)
        self.refused: list[Untried] = []
        self.file = StackFile(project, stack)
        try:
            self.plan = planning.plan_object(self.file.with_values(self._companions))
        except InvalidStack as refused:
            raise InvalidStack(locate(refused.problems, project, stack)) from refused

    def with_more_nodes(self) -> "StackProbes | None":
        """Return the same stack with twice as many nodes in each GPU pool, on which more values of keys can be
        deployed; None if the stack can't be deployed on them.
        """
        sizes = {f"gpuPools[{i}].size": 2 * pool.size for i, pool in enumerate(self.plan.config.gpu_pools)}
        try:
            return StackProbes(self._project, self._stack, sizes)
        except InvalidStack:
            return None

    def probe(self, key: StackKey, values: Iterable[object] | None = None) -> Probe | Untried:
        """Find another value of a key with which the stack can be deployed, among `values` or those that the key's type
        allows. A value that changes the plan is preferred to one that changes nothing.
        """
        refusal, unchanged = "", None
        for value in other_values(key.path, key.value) if values is None else values:
            try:
                plan = planning.plan_object(self.file.with_values({**self._companions, key.path: value}))
            except InvalidStack as refused:
                first = refused.problems[0]
                refusal = refusal or f"with {value!r}: {first.path}: {first.why}"
                continue
            probe = Probe(key, value, plan)
            if not same_plan(plan, self.plan):
                return probe
            unchanged = unchanged or probe
        return unchanged or Untried(key, refusal or "no other value is known")

    @cached_property
    def probes(self) -> Sequence[Probe | Untried]:
        """Return, for each key with a value in the stack, another value with the plan that results, or the reason why
        there is none.
        """
        return [self.probe(key) for key in self.file.known_keys()]

    def rendered(self, plan: Plan, *, rehearsed: bool = False) -> Objects:
        """Return the inputs of the resources that `resources` returns, by kind and name.

        Raises:
            KitError: the program refuses the plan, or files of other projects can't be downloaded.
        """
        return {identity(item): item.inputs for item in self.resources(plan, rehearsed=rehearsed)}

    def resources(self, plan: Plan, *, rehearsed: bool = False) -> Sequence[Declared]:
        """Return all resources that the program declares for a plan, without the component resources around them; with
        `rehearsed` those of a rehearsal, for which no manifest of another project is downloaded.

        Raises:
            KitError: the program refuses the plan, or files of other projects can't be downloaded.
        """
        found = declarations(self._project, self._stack, plan, {}, rehearsed=rehearsed)
        return [item for item in found if not item.type.startswith("llmd-oke:")]

    def together(self, probes: Sequence[Probe]) -> Plan | None:
        """Return the plan of the stack with the other values of all the probes at once; None if that stack can't be
        deployed.
        """
        try:
            values = {probe.key.path: probe.value for probe in probes}
            return planning.plan_object(self.file.with_values({**self._companions, **values}))
        except InvalidStack:
            return None

    def origins(
        self, probes: Sequence[Probe], view: View, differs: Callable[[Objects], bool], *, surely: bool = False
    ) -> Iterator[Probe]:
        """Yield the probes whose value makes a rendering differ, found by bisection: `differs` is asked about
        renderings with all values that can be deployed at once, then about halves of those that matter.

        `view` reduces each plan to the part that is rendered. `surely` says that a rendering with all the values is
        known to differ. A probe that the program refuses by itself is appended to `refused`.
        """
        for group in [probes] if surely else self._deployable_groups(probes):
            if len(group) == 1:
                if self._outcome(group[0], view, differs):
                    yield group[0]
                continue
            differ = surely
            if not surely and (plan := self.together(group)) is not None:
                try:
                    differ = differs(self.rendered(view(plan)))
                except KitError:
                    pass  # one of them is refused
                else:
                    if not differ:
                        continue
            middle = len(group) // 2
            first = list(self.origins(group[:middle], view, differs))
            yield from first
            yield from self.origins(group[middle:], view, differs, surely=differ and not first)

    def _deployable_groups(self, probes: Sequence[Probe]) -> Sequence[Sequence[Probe]]:
        """Divide probes into few groups whose values can be deployed at once: plans cost far less than renderings."""
        groups: list[Sequence[Probe]] = []
        for part in self._deployable_parts(probes):
            for i, group in enumerate(groups):
                if self.together([*group, *part]) is not None:
                    groups[i] = [*group, *part]
                    break
            else:
                groups.append(part)
        return groups

    def _deployable_parts(self, probes: Sequence[Probe]) -> Iterator[Sequence[Probe]]:
        if len(probes) == 1 or (probes and self.together(probes) is not None):
            yield probes
        elif probes:
            middle = len(probes) // 2
            yield from self._deployable_parts(probes[:middle])
            yield from self._deployable_parts(probes[middle:])

    def _outcome(self, probe: Probe, view: View, differs: Callable[[Objects], bool]) -> bool:
        try:
            return differs(self.rendered(view(probe.plan)))
        except KitError as error:
            self.refused.append(Untried(probe.key, f"with {probe.value!r}: {error.message}"))
            return False


def identity(resource: Declared) -> tuple[str, str]:
    """Return kind and name of a resource: those of the object for Kubernetes, else of the Pulumi resource. Digests are
    removed from the name.
    """
    metadata: Mapping[str, Any] = resource.inputs.get("metadata") or {}
    name = metadata.get("name", resource.name) if resource.type.startswith("kubernetes:") else resource.name
    return resource.type.rpartition(":")[2], without_digests(str(name))


def same_plan(first: Plan, second: Plan) -> bool:
    """Tell whether two plans declare the same resources: they may differ only in advice and in the stack
    file's text.
    """
    return _declared(first) == _declared(second)


def _declared(plan: Plan) -> tuple[Plan, str]:
    nothing: Any = None
    return replace(plan, config=nothing, cluster=None, advice=(), project_entries=()), plan.layer


def in_cluster(plan: Plan) -> Plan:
    """Return the plan reduced to serving models in an existing cluster. The objects in the cluster are the same, and
    rendering them takes a tenth of the time, because no OCI resource is declared.
    """
    if plan.layer != "all":
        return plan
    cluster = plan.cluster if plan.created is None else ExistingCluster(mode="existing", identifier="explained")
    config = plan.config.model_copy(update={"layer": "serving", "cluster": cluster})
    return replace(plan, config=config, cluster=cluster, created=None)


def of_cluster(plan: Plan) -> Plan:
    """Return the plan reduced to the cluster without models, which is rendered in a third of the time."""
    if plan.layer != "all":
        return plan
    return replace(plan, config=plan.config.model_copy(update={"layer": "cluster"}))


def of_unit(model: int, unit: int) -> View:
    """Return a view that reduces a plan as `in_cluster` does, and to a single unit (a router and its servers) of a
    single model, given by their indexes. A plan without such a unit keeps all units.
    """

    def narrow(plan: Plan) -> Plan:
        of_model = plan.models[model] if model < len(plan.models) else None
        if of_model is None or unit >= len(of_model.units):
            return in_cluster(plan)
        return replace(in_cluster(plan), models=(replace(of_model, units=(of_model.units[unit],)),))

    return narrow


def whole(plan: Plan) -> Plan:
    """Return the plan unchanged: the view of everything that a stack declares."""
    return plan


def without_digests(text: str) -> str:
    """Remove hexadecimal digests from a text: names and labels that contain one differ whenever any input differs."""
    return _DIGEST.sub("", text)


def comparable(value: object) -> object:
    """Return a value in a form in which two renderings can be compared: digests are removed, JSON texts parsed, and
    texts of several lines split into lines.
    """
    match value:
        case str() if value.startswith("{"):
            try:
                return comparable(json.loads(value))
            except ValueError:
                return comparable(value.splitlines()) if "\n" in value else without_digests(value)
        case str() if re.fullmatch(r"[0-9a-f]{8,64}", value):
            return ""
        case str():
            text = without_digests(value)
            return text.splitlines() if "\n" in text else text
        case Mapping():
            parts = cast("Mapping[str, object]", value)
            return {without_digests(key): comparable(part) for key, part in parts.items()}
        case list():
            return [comparable(part) for part in cast("list[object]", value)]
        case _:
            return value


def differences(before: object, after: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield path, former and new value of each difference between two values; a missing value is None."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        one, other = cast("Mapping[str, object]", before), cast("Mapping[str, object]", after)
        for key in dict.fromkeys([*one, *other]):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}".removeprefix("."))
    elif isinstance(before, list) and isinstance(after, list):
        first, second = cast("list[object]", before), cast("list[object]", after)
        gone, come = [item for item in first if item not in second], [item for item in second if item not in first]
        if len(first) == len(second) and len(gone) == len(come) and all(isinstance(item, dict) for item in gone):
            for index, pair in enumerate(zip(first, second, strict=True)):
                yield from differences(*pair, f"{path}[{index}]")
        elif gone or come:
            yield path, gone, come
    elif before != after:
        yield path, before, after
