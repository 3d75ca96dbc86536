"""Explanations of a rendered object or field, and of a key of the stack file."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from llmd_base.errors import KitError

from llmd_oke import planning
from llmd_oke.config.yaml_files import steps, value_at
from llmd_oke.explain.fields import ObjectField, object_field
from llmd_oke.explain.keys import StackKey, schema_nodes
from llmd_oke.explain.probes import (
    Objects,
    Probe,
    StackProbes,
    Untried,
    View,
    comparable,
    differences,
    identity,
    in_cluster,
    of_cluster,
    of_unit,
    same_plan,
    whole,
    without_digests,
)
from llmd_oke.explain.sources import CatalogueLine, catalogue_lines
from llmd_oke.planning import Plan
from llmd_oke.planning.estimates import costs
from llmd_oke.program.declare import Declared


@dataclass(frozen=True)
class FieldExplanation:
    """Origin of a rendered field: the keys of the stack file that the value changes with, each with the other value
    that was tried, the lines of the catalogue that contain the value, and the component that writes it. `untried` are
    the keys for which no other value could be tried.
    """

    field: ObjectField
    value: object
    origins: Sequence[Probe]
    untried: Sequence[Untried]
    catalogue: Sequence[CatalogueLine]
    component: str


def explain_field(project: Path, stack: str, text: str) -> FieldExplanation:
    """Return the origin of a rendered object or of one of its fields, named like `Deployment/NAME.spec.replicas`.

    Raises:
        InvalidStack: the stack can't be deployed; carries every problem.
        KitError: the stack renders no such object or field.
    """
    probes = StackProbes(project, stack)
    field, view, objects, component = _found(probes, text)
    tried = [probe for probe in probes.probes if isinstance(probe, Probe)]
    untried = [probe for probe in probes.probes if isinstance(probe, Untried)]
    origins = list(_origins(probes, tried, field, view, objects))
    larger = probes.with_more_nodes() if untried else None
    if larger is not None:
        again = [larger.probe(item.key) for item in untried]
        on_more_nodes = [probe for probe in again if isinstance(probe, Probe)]
        untried = [probe for probe in again if isinstance(probe, Untried)]
        if on_more_nodes:
            origins += _origins(larger, on_more_nodes, field, view, objects)
    untried += [*probes.refused, *(larger.refused if larger else ())]
    value = field.of(objects)
    return FieldExplanation(field, value, origins, untried, catalogue_lines(probes.plan, value), component)


class _Found(NamedTuple):
    """Field, the view of the plan in whose rendering it was found, that rendering, and the field's component."""

    field: ObjectField
    view: View
    objects: Objects
    component: str


def _found(probes: StackProbes, text: str) -> _Found:
    """The field, in the smallest rendering that has it: of the unit whose name the object's begins with, as of a stack
    that only serves models, or as of one that only makes a cluster.

    Raises:
        KitError: none has it; names the objects of the whole, or says why that can't be rendered (files of other
            projects aren't to be had).
    """
    unit = _view_of_unit(probes.plan, text)
    without: list[KitError] = []
    for view in (unit, in_cluster, of_cluster) if unit else (in_cluster, of_cluster):
        try:
            return _found_in(probes.resources(view(probes.plan)), text, view)
        except KitError as not_there:
            without.append(not_there)
    try:
        resources = probes.resources(probes.plan)
    except KitError as refused:
        of_models = without[-2]
        rest = f"The rest of the stack can't be rendered: {refused.message}"
        raise KitError(of_models.message, f"{of_models.remedy}\n{rest}\n{refused.remedy or ''}") from refused
    return _found_in(resources, text, whole)


def _found_in(resources: Sequence[Declared], text: str, view: View) -> _Found:
    objects = {identity(item): item.inputs for item in resources}
    field = object_field(text, objects)
    parents = (item.parent for item in resources if identity(item) == (field.kind, field.name))
    chain, _, name = next(parents, "").rpartition("::")
    type_ = chain.rpartition("::")[2].rpartition("$")[2]
    # Empty where the program itself declares the object.
    component = f"{type_.rpartition(':')[2]} {name}" if type_.startswith("llmd-oke:") else ""
    return _Found(field, view, objects, component)


def _view_of_unit(plan: Plan, text: str) -> View | None:
    """The view of the unit alone whose name an object's name begins with, where there are other units. Its objects are
    the same as in the whole.
    """
    name = text.partition("/")[2]
    units = [(unit.name, i, j) for i, model in enumerate(plan.models) for j, unit in enumerate(model.units)]
    own = [indexes for unit_name, *indexes in units if name.startswith(without_digests(unit_name))]
    return of_unit(*own[0]) if len(units) > 1 and len(own) == 1 else None


def _origins(
    probes: StackProbes, tried: Sequence[Probe], field: ObjectField, view: View, objects: Objects
) -> Sequence[Probe]:
    """The keys by which a field differs from what it is in a rendering, and from what more nodes alone make of it."""
    now = view(probes.plan)
    digest = probes.plan.config_hash in repr(field.of(objects))
    able = [probe for probe in tried if digest or not same_plan(view(probe.plan), now)]
    likely = [probe for probe in able if _letters(_last_name(probe.key.path)) in _letters(field)]
    others = [probe for probe in able if probe not in likely]
    without = [comparable(field.of(objects))]

    def differs(rendered: Objects) -> bool:
        value = comparable(field.in_other(rendered, objects))
        if probes.on_more_nodes and len(without) == 1 and value not in without:
            without.append(comparable(field.in_other(probes.rendered(now), objects)))
        return value not in without

    parts = (likely, others)  # so that most of the others are ruled out at once
    return [origin for part in parts for origin in probes.origins(part, view, differs)]


def _last_name(path: str) -> str:
    """The last name of a path, without the index of an item."""
    return [step for step in steps(path) if isinstance(step, str)][-1]


def _letters(text: object) -> str:
    """Letters and digits of a name, in small ones: keys and fields write the same words in other ways."""
    return "".join(filter(str.isalnum, str(text))).lower()


@dataclass(frozen=True)
class ObjectChange:
    """Change of a rendered object when a key of the stack file gets another value: the object is added, removed, or has
    other fields.
    """

    name: str
    what: str
    fields: Sequence[tuple[str, object, object]] = ()


@dataclass(frozen=True)
class KeyExplanation:
    """Meaning of a key of the stack file, its value, and what changes in the rendered objects with another value.

    `other` is the value that was tried; where it is None, `why` says why none could be tried. With `on_more_nodes` both
    values were tried on twice the stack's GPU nodes. `inner` are the keys of an object. `figures` are the plan's
    figures that differ, with their values before and after. `not_rendered` says which part of the stack the changes
    leave out and why; empty if they are of the whole stack.
    """

    key: StackKey
    description: str
    accepted: str
    default: object
    inner: Sequence[StackKey] = ()
    other: object = None
    on_more_nodes: bool = False
    why: str = ""
    changes: Sequence[ObjectChange] = ()
    figures: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict[str, tuple[str, str]])
    not_rendered: str = ""


def explain_key(project: Path, stack: str, path: str, others: Sequence[object] | None = None) -> KeyExplanation:
    """Return the meaning of a stack-file key, and the changes in rendered objects that another value of the
    key makes.

    The other value is one of `others`; without these, one that the key's type allows is chosen.

    Raises:
        InvalidStack: the stack can't be deployed as it is, or with the value that was given; carries every problem.
        KitError: stack files have no such key.
    """
    nodes = schema_nodes(path)
    probes = StackProbes(project, stack)
    known = {key.path: key for key in probes.file.known_keys()}
    written = value_at(probes.file.object, path)
    key = known.get(path) or probes.file.key(path, written)
    about = KeyExplanation(
        key,
        description=next((str(node["description"]) for node in nodes if "description" in node), ""),
        accepted=" or ".join(dict.fromkeys(_accepted(node) for node in nodes)),
        default=next((node["default"] for node in nodes if "default" in node), None),
        inner=[item for name, item in known.items() if name.startswith((f"{path}.", f"{path}["))],
    )
    if others is not None:
        planning.plan_object(probes.file.with_values({path: others[0]}))
    probe = probes.probe(key, others)
    if isinstance(probe, Untried) and (larger := probes.with_more_nodes()) is not None:
        probes = larger
        probe = larger.probe(key)
    if isinstance(probe, Untried):
        return replace(about, why=probe.why)
    changes, not_rendered = _changes(probes, probe.plan)
    return replace(
        about,
        other=probe.value,
        on_more_nodes=probes.on_more_nodes,
        changes=changes,
        figures=_figures(probes.plan, probe.plan),
        not_rendered=not_rendered,
    )


def _accepted(node: Mapping[str, Any]) -> str:
    """The values that a schema takes, in words."""
    if choices := [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]:
        return ", ".join(map(str, choices))
    limits = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    said = [f"{words} {node[name]}" for name, words in limits.items() if name in node]
    keys = f" of {', '.join(node['properties'])}" if "properties" in node else ""
    return " ".join([f"{node.get('type', 'any value')}{keys}", *said])


def _changes(probes: StackProbes, plan: Plan) -> tuple[Sequence[ObjectChange], str]:
    """The objects that differ, without those whose digests alone differ, and why the objects of other projects'
    manifests are not among them; empty if they are.
    """
    if same_plan(plan, probes.plan):
        return (), ""
    not_rendered = ""
    try:
        before, after = probes.rendered(probes.plan), probes.rendered(plan)
    except KitError as refused:
        before, after = (probes.rendered(one, rehearsed=True) for one in (probes.plan, plan))
        not_rendered = f"Calico's objects: {refused.message}"
    changes: list[ObjectChange] = []
    for kind, name in sorted({*before, *after}):
        old, new = before.get((kind, name)), after.get((kind, name))
        if old is None or new is None:
            changes.append(ObjectChange(f"{kind}/{name}", "added" if old is None else "removed"))
        elif fields := list(differences(comparable(old), comparable(new))):
            changes.append(ObjectChange(f"{kind}/{name}", "changed", fields))
    return changes, not_rendered


def _figures(before: Plan, after: Plan) -> Mapping[str, tuple[str, str]]:
    """Figures of the plan that differ, before and after."""
    both = [
        {
            "GPUs": str(plan.gpus),
            "GPUs used": str(plan.used_gpus),
            "$/hour, list prices": f"{costs(plan).usd_per_hour:,.2f}",
            "updates": ", ".join(f"{model.name}: {model.update_way}" for model in plan.models),
        }
        for plan in (before, after)
    ]
    return {name: (text, both[1][name]) for name, text in both[0].items() if text != both[1][name]}
