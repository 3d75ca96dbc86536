"""`llmd-oke explain`: the origin of a value in rendered Kubernetes objects, and the effect of a stack-file key."""

import json
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from llmd_base.errors import KitError
from llmd_base.records import document
from rich.markup import escape
from rich.table import Table

from llmd_oke.cli import console, options

if TYPE_CHECKING:  # they load Pulumi, which `--help` does without
    from llmd_oke.explain.explanation import FieldExplanation, KeyExplanation, ObjectChange
    from llmd_oke.explain.keys import StackKey

MOST_CHANGES = 15
"""Maximum number of changes that text output shows; `--json` has all."""

MOST_NAMES = 4
"""Maximum number of objects' names that text output lists with a change."""

LONGEST = 90
"""Maximum number of characters of a rendered value in text output."""


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KEY | OBJECT[.FIELD]",
            help="Key such as `models[0].engine.maxNumSeqs`, or `Deployment/NAME.spec.replicas`; the first step of a "
            "field may be any key that the object has once, and `[...]` holds an index or the name of an item:"
            " `containers[vllm].args[port]`.",
        ),
    ],
    stack: options.Stack,
    to: Annotated[
        str | None, typer.Option("--to", help="Value of the key to try instead, as YAML; one is chosen if left out.")
    ] = None,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Explain a rendered object or field: the keys of the stack file that change it, lines of the catalogue with their
    sources, and the component that renders it. Explain a key: its meaning, and the effect of another value.

    It plans and renders with other values, without the Pulumi engine and without a cluster.
    """
    from llmd_oke.explain import explanation  # noqa: PLC0415 - it loads Pulumi

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # a program that refuses a value leaves tasks behind

    if re.match(r"[A-Za-z]+/", what):
        if to is not None:
            raise KitError("--to is a value of a key, and an object has none.", "Leave it out, or name a key.")
        found = explanation.explain_field(project, stack, what)
        console.show_json(_field_document(found)) if as_json else _show_field(found)
        return
    try:
        others = None if to is None else [yaml.safe_load(to)]
    except yaml.YAMLError as error:
        raise KitError(f"--to {to!r} is no YAML.", "A value as a stack file would have it, in quotes.") from error
    known = explanation.explain_key(project, stack, what, others)
    console.show_json(_key_document(known)) if as_json else _show_key(known)


def _field_document(found: "FieldExplanation") -> dict[str, Any]:
    return document(
        "field value",
        found,
        field=str(found.field),
        keys=[document("path value line file", probe.key, tried=probe.value) for probe in found.origins],
        untried=[document("path value line file", item.key, why=item.why) for item in found.untried],
        catalogue=[document("file line text", line) for line in found.catalogue],
        component=found.component or None,
    )


def _key_document(known: "KeyExplanation") -> dict[str, Any]:
    return document(
        "description accepted default other on_more_nodes why figures not_rendered",
        known,
        key=document("path value line file", known.key),
        inner=[document("path value line file", key) for key in known.inner],
        figures={name: {"before": before, "after": after} for name, (before, after) in known.figures.items()},
        changes=[
            document(
                "object what fields",
                change,
                object=change.name,
                fields=[{"field": path, "before": old, "after": new} for path, old, new in change.fields],
            )
            for change in known.changes
        ],
    )


def _show_field(found: "FieldExplanation") -> None:
    console.show_line(str(found.field))
    rows = [("value", escape(_short(found.value)))]
    rows += [("key", f"{_key(probe.key)}") for probe in found.origins]
    if not found.origins:
        rows.append(("key", "none: no key with a value changes it"))
    rows += [("catalogue", escape(f"{line.file}:{line.line}  {line.text}")) for line in found.catalogue]
    if found.component:
        rows.append(("written by", escape(found.component)))
    _show(rows)
    if found.untried:
        paths = ", ".join(item.key.path for item in found.untried)
        text = f"not tried, as no other value alone can be deployed (--json says why): {paths}"
        console.output().print(f"[dim]{escape(text)}[/]")


def _show_key(known: "KeyExplanation") -> None:
    console.output().print(_key(known.key), soft_wrap=True)
    rows = [("meaning", escape(known.description)), ("accepted", escape(known.accepted))]
    rows += [("keys", _key(key)) for key in known.inner]
    if known.why:
        rows.append(("not tried", escape(f"{known.why}; --to VALUE tries another")))
        _show(rows)
        return
    where = ", both on twice the GPU nodes, as it needs more than there are" if known.on_more_nodes else ""
    rows.append(("tried", escape(f"{_short(known.other)} instead{where}")))
    rows += [("plan", escape(f"{name}: {before} -> {after}")) for name, (before, after) in known.figures.items()]
    if not known.changes:
        rows.append(("changes", "nothing that is rendered"))
    rows += [("changes", escape(line)) for line in _changed(known.changes)]
    rows.append(("not rendered", escape(known.not_rendered)))
    _show(rows)


def _changed(changes: "Sequence[ObjectChange]") -> list[str]:
    """Return lines that describe the changes; equal changes of several objects are listed together."""
    places: dict[str, list[str]] = {}
    for change in changes:
        if change.what != "changed":
            places.setdefault(change.what, []).append(change.name)
        for path, old, new in change.fields:
            places.setdefault(f"{path}: {_short(old)} -> {_short(new)}", []).append(change.name)
    lines = [line for what, names in list(places.items())[:MOST_CHANGES] for line in (what, f"  {_listed(names)}")]
    more = len(places) - MOST_CHANGES
    return [*lines, *([f"and {more} more: --json has all"] if more > 0 else [])]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _key(key: "StackKey") -> str:
    where = "a default" if key.line is None else f"{key.file}:{key.line}"
    value = "not set" if key.value is None else f"= {escape(_short(key.value))}, {where}"
    return f"[bold]{escape(key.path)}[/] {value}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _show(rows: list[tuple[str, str]]) -> None:
    table, before = Table.grid(padding=(0, 2)), ""
    table.add_column()
    table.add_column(overflow="fold")
    for name, text in rows:
        if text:
            table.add_row(f"[dim]{'' if name == before else name}[/]", text)
            before = name
    console.output().print(table)
