"""Plans and renderings of a stack with other values of its keys, and how they differ from what it has."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from llmd_base.errors import InvalidStack, KitError

from llmd_oke import planning
from llmd_oke.config import ExistingCluster, locate, stack_file
from llmd_oke.explain.keys import StackFile, StackKey, other_values
from llmd_oke.gitops.rendering import declarations
from llmd_oke.planning import Plan
from llmd_oke.program.declare import Declared

_DIGEST = re.compile(r"-?(?<![0-9a-zA-Z])(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,64}(?![0-9a-zA-Z])")

Objects = Mapping[tuple[str, str], Mapping[str, Any]]
"""Inputs of resources by kind and name, names without digests."""

View = Callable[[Plan], Plan]
"""The part of a plan that is rendered."""


@dataclass(frozen=True)
class Probe:
    """A key with another value, and the plan of that."""

    key: StackKey
    value: object
    plan: Plan


@dataclass(frozen=True)
class Untried:
    """A key for which no other value was found that can be deployed, and why not the first that was tried."""

    key: StackKey
    why: str


class StackProbes:
    """A stack with its plan, and renderings of the same with other values of keys. `companions` are values that other
    keys have in all of it, the stack's own among them.
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
            raise InvalidStack(locate(refused.problems, stack_file(project, stack))) from refused

    def with_more_nodes(self) -> "StackProbes | None":
        """The same on twice the GPU nodes, where more of a key can be tried; None where that can't be deployed."""
        sizes = {f"gpuPools[{i}].size": 2 * pool.size for i, pool in enumerate(self.plan.config.gpu_pools)}
        try:
            return StackProbes(self._project, self._stack, sizes)
        except InvalidStack:
            return None

    def probe(self, key: StackKey, values: Iterable[object] | None = None) -> Probe | Untried:
        """Another value of a key with which the stack can be deployed: one that changes the plan, where one does."""
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
        """One for each key that has a value."""
        return [self.probe(key) for key in self.file.known_keys()]

    def rendered(self, plan: Plan) -> Objects:
        """The resources that a plan declares.

        Raises:
            KitError: the program refuses it.
        """
        return {identity(item): item.inputs for item in self.resources(plan)}

    def resources(self, plan: Plan) -> Sequence[Declared]:
        """The same as the program declares them, without components."""
        found = declarations(self._project, self._stack, plan, {})
        return [item for item in found if not item.type.startswith("llmd-oke:")]

    def together(self, probes: Sequence[Probe]) -> Plan | None:
        """The plan with all these values at once; None where they exclude each other."""
        try:
            values = {probe.key.path: probe.value for probe in probes}
            return planning.plan_object(self.file.with_values({**self._companions, **values}))
        except InvalidStack:
            return None

    def origins(
        self, probes: Sequence[Probe], view: View, differs: Callable[[Objects], bool], *, surely: bool = False
    ) -> Iterator[Probe]:
        """Yield the probes by which a rendering differs: all at once first, and then halves of those that matter.

        With `surely` it is known that all of them together differ. A single one is always rendered by itself; what the
        program then refuses is `refused`.
        """
        if len(probes) == 1:
            if self._outcome(probes[0], view, differs):
                yield probes[0]
            return
        if not probes:
            return
        if not surely and (plan := self.together(probes)) is not None:
            try:
                surely = differs(self.rendered(view(plan)))
            except KitError:
                surely = False  # one of them is refused
            else:
                if not surely:
                    return
        middle = len(probes) // 2
        first = list(self.origins(probes[:middle], view, differs))
        yield from first
        yield from self.origins(probes[middle:], view, differs, surely=surely and not first)

    def _outcome(self, probe: Probe, view: View, differs: Callable[[Objects], bool]) -> bool:
        try:
            return differs(self.rendered(view(probe.plan)))
        except KitError as error:
            self.refused.append(Untried(probe.key, f"with {probe.value!r}: {error.message}"))
            return False


def identity(resource: Declared) -> tuple[str, str]:
    """Kind and name of a resource, as people call it: those of the object where it is one of Kubernetes."""
    metadata: Mapping[str, Any] = resource.inputs.get("metadata") or {}
    name = metadata.get("name", resource.name) if resource.type.startswith("kubernetes:") else resource.name
    return resource.type.rpartition(":")[2], without_digests(str(name))


def same_plan(first: Plan, second: Plan) -> bool:
    """Tell whether two plans declare the same: they say the same beside advice and the stack file itself."""
    return _declared(first) == _declared(second)


def _declared(plan: Plan) -> tuple[Plan, str]:
    nothing: Any = None
    return replace(plan, config=nothing, cluster=None, advice=(), project_entries=()), plan.layer


def in_cluster(plan: Plan) -> Plan:
    """The plan as a stack has it that only serves models in a cluster that is there: a program cares for nothing else
    of those objects, and renders them in a tenth of the time.
    """
    if plan.layer != "all":
        return plan
    cluster = plan.cluster if plan.created is None else ExistingCluster(mode="existing", identifier="explained")
    config = plan.config.model_copy(update={"layer": "serving", "cluster": cluster})
    return replace(plan, config=config, cluster=cluster, created=None)


def of_unit(model: int, unit: int) -> View:
    """The view of a plan as `in_cluster`, with one unit of one model alone, by their positions; with all of them where
    a plan has no such unit.
    """

    def narrow(plan: Plan) -> Plan:
        of_model = plan.models[model] if model < len(plan.models) else None
        if of_model is None or unit >= len(of_model.units):
            return in_cluster(plan)
        return replace(in_cluster(plan), models=(replace(of_model, units=(of_model.units[unit],)),))

    return narrow


def whole(plan: Plan) -> Plan:
    """The plan as it is."""
    return plan


def without_digests(text: str) -> str:
    """The text without what it has of digests, by which names and labels differ wherever anything does."""
    return _DIGEST.sub("", text)


def comparable(value: object) -> object:
    """The value without digests in it; of a text that is JSON the object, of one of several lines the lines."""
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
    """Yield the paths of values that differ, with both; None where one has no such value."""
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
