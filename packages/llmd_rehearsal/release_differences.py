"""Differences between the router of the stack's release and the rehearsed router, by object."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.program.models import router_args, unit_args
from llmd_oke.serving.router import router_manifests
from llmd_oke.serving.units import routing_sidecar, server_spec


@dataclass(frozen=True)
class FieldDifference:
    """Field of a Kubernetes object with its value in the stack's own llm-d release and its rehearsed value; None if the
    field is missing there.
    """

    path: str
    own: str | None
    rehearsed: str | None


@dataclass(frozen=True)
class ObjectDifference:
    """Kubernetes object of a router (`Kind name`) or container of a server, with the fields that differ between the
    stack's llm-d release and the rehearsed one. `only_in` is set if only one of the two has the object.
    """

    name: str
    fields: tuple[FieldDifference, ...]
    only_in: Literal["own", "rehearsed"] | None = None

    def __str__(self) -> str:
        if self.only_in is not None:
            return f"{self.name}: {'left out' if self.only_in == 'own' else 'added'}"
        paths = list(dict.fromkeys(".".join(field.path.split(".")[:2]) for field in self.fields))
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        return f"{self.name}: {', '.join(paths[:3])}{more}"


def release_differences(deployed: Plan, rehearsed: Plan) -> tuple[ObjectDifference, ...]:
    """Return the differences between two plans of a stack, with its own llm-d release and with the rehearsed one, in
    the router and servers of each model's first unit; all other units of a model are alike.

    Names in the result are the plan's unit names, without version labels.
    """
    pairs = zip(deployed.models, rehearsed.models, strict=True)
    return tuple(difference for pair in pairs for difference in _model_differences(deployed, rehearsed, *pair))


def _model_differences(
    deployed: Plan, rehearsed: Plan, first: ModelPlan, second: ModelPlan
) -> Iterator[ObjectDifference]:
    if first.router.mode == "none":
        return
    before, after = _objects(deployed, first), _objects(rehearsed, second)
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, {}), after.get(name, {})
        paths = [path for path in dict.fromkeys([*old, *new]) if old.get(path) != new.get(path)]
        if paths:
            fields = tuple(FieldDifference(path, old.get(path), new.get(path)) for path in paths)
            only_in = "own" if name not in after else "rehearsed" if name not in before else None
            yield ObjectDifference(name, fields, only_in)


def _objects(plan: Plan, model: ModelPlan) -> dict[str, dict[str, str]]:
    """Return the fields by path of the router's objects and of the decode servers' sidecar."""
    unit = model.units[0]
    router = router_manifests({**router_args(plan, model, unit), "unit": unit.name, "version": "0"})
    objects = {f"{manifest['kind']} {manifest['metadata']['name']}": _fields(manifest) for manifest in router}
    if decode := unit.role("decode"):
        args = unit_args(plan, model, "model-server")
        args["inference_pool"] = unit.name
        spec = server_spec(args, "decode", decode.parallelism)
        objects[f"Container routing-proxy of {unit.name}-decode"] = _fields(routing_sidecar(spec, args))
    return objects


def _fields(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields by path, except the label with the endpoint picker's version, which all objects have."""
    return {path: text for path, text in _leaves(value, "") if path != "metadata.labels.app.kubernetes.io/version"}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of all leaf values; list elements are identified by name, if they have one."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from _leaves(item, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for i, item in enumerate(cast("Sequence[Any]", value)):
            name = cast("Mapping[str, Any]", item).get("name", i) if isinstance(item, Mapping) else i
            yield from _leaves(item, f"{path}[{name}]")
    else:
        yield path, str(value)
