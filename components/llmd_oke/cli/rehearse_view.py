"""A rehearsal, for people and as JSON."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from llmd_oke import planning
from llmd_oke.cli import console, plan_view
from llmd_oke.rehearsal.inventory import IN_PODS, Inventory
from llmd_oke.rehearsal.plugins import KubernetesPlugin
from llmd_oke.rehearsal.programs import Program
from llmd_oke.rehearsal.rehearsal import Prepared
from llmd_oke.rehearsal.release_choice import ReleaseChoice

if TYPE_CHECKING:
    from llmd_oke.rehearsal.release_differences import ObjectDifference

_REAL = ("pulumi", "kube-apiserver")


def changes(result: Mapping[str, Any]) -> str:
    """What an operation did, in a sentence."""
    counts = {kind: count for kind, count in result["changes"].items() if kind not in {"same", "read"}}
    same = result["changes"].get("same", 0)
    if not counts and result["operation"] == "destroy":
        return "nothing was deployed"
    if not counts:
        return f"no changes: {same} resources are as they should be"
    told = ", ".join(
        f"{count} to {kind}" if result["operation"] == "preview" else f"{count} {kind}d"
        for kind, count in counts.items()
    )
    return f"{told}, {same} unchanged"


def show(prepared: Prepared, placeholders: Mapping[str, int], report: Path | None) -> None:
    """What was real, what was simulated, and what to do next."""
    table = Table.grid(padding=(0, 2))
    for name, text in _facts(prepared, placeholders, report):
        table.add_row(f"[dim]{name}[/]", escape(text))
    console.output().print(table)


def as_json(prepared: Prepared, update: Mapping[str, Any], report: Path | None) -> dict[str, Any]:
    """The whole rehearsal as plain data."""
    summaries = sorted(report.rglob("summary.json")) if report else []
    return {
        "stack": prepared.stack,
        "plan": plan_view.as_json(prepared.plan),
        **releases_as_json(prepared.inventory.release),
        "release_differences": [dataclasses.asdict(difference) for difference in _differences(prepared)],
        "programs": {name: _program(prepared.inventory, name) for name in prepared.inventory.programs},
        "kubernetes_plugin": _plugin(prepared.plugin),
        "simulated": list(prepared.simulated(update["placeholders"])),
        "time_scale": prepared.time_scale.scale,
        "time_scale_because": prepared.time_scale.because,
        "update": dict(update),
        "smoke": [json.loads(path.read_text()) for path in summaries],
        "report": str(report) if report else None,
    }


def show_programs(programs: Iterable[Program]) -> None:
    """A table of programs."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("program", "version", "from"):
        table.add_column(column, no_wrap=True)
    table.add_column("path", overflow="fold")
    for program in programs:
        table.add_row(program.name, program.version, program.origin, str(program.path))
    console.output().print(table)


def substitution(choice: ReleaseChoice) -> str | None:
    """What to say where another release stands in."""
    asked, used = choice.asked.name, choice.used.name
    if asked == used:
        return None
    return (
        f"{asked} has no endpoint picker and sidecar that can be had here; {used}, the nearest that has, is rehearsed"
    )


def release(choice: ReleaseChoice) -> str:
    """The release that is rehearsed, and the one that it stands in for."""
    asked, used = choice.asked.name, choice.used.name
    return used if asked == used else f"{used}, in place of {asked}"


def releases_as_json(choice: ReleaseChoice) -> dict[str, str]:
    """The release that a stack asks for, and the one that it is rehearsed with."""
    return {"asked_release": choice.asked.name, "release": choice.used.name}


def _facts(prepared: Prepared, placeholders: Mapping[str, int], report: Path | None) -> list[tuple[str, str]]:
    programs = prepared.inventory.programs
    routed = any(model.router.mode != "none" for model in prepared.plan.models)
    real = ", ".join(f"{name} {programs[name].version}" for name in (*_REAL, *(IN_PODS if routed else ())))
    told = substitution(prepared.inventory.release)
    plugin = f", Kubernetes plug-in {prepared.plugin.version}" if prepared.plugin.is_real else ""
    return [
        ("real", f"{real}{plugin}"),
        (
            "simulated",
            f"{', '.join(prepared.simulated({}))}{_pace(prepared.time_scale.scale, prepared.startup_s)}",
        ),
        *([("not run", _not_run(placeholders))] if placeholders else []),
        *([("release", told), ("differs", "\n".join(map(str, _differences(prepared))))] if told else []),
        *([("report", str(report))] if report else []),
        ("next", f"change stacks/Pulumi.{prepared.stack}.yaml and rehearse again, or end it: scripts/rehearse down"),
    ]


def _differences(prepared: Prepared) -> "Sequence[ObjectDifference]":
    """What of the stack's own release is rehearsed otherwise."""
    if prepared.inventory.release.asked.name == prepared.inventory.release.used.name:
        return ()
    from llmd_oke.rehearsal.release_differences import release_differences  # noqa: PLC0415 - it loads Pulumi

    return release_differences(planning.plan_stack_file(prepared.project, prepared.stack), prepared.plan)


def _not_run(placeholders: Mapping[str, int]) -> str:
    """Images without a program, by the last part of their names."""
    names = ", ".join(image.rsplit("/", 1)[-1] for image in placeholders)
    return f"{sum(placeholders.values())} pods, whose images have no program here: {names}"


def _pace(scale: float, startup_s: float | None) -> str:
    picker = ", in which endpoint pickers read servers too" if scale > 1 else ""
    slower = "" if scale == 1 else f"; model time is wall time / {scale:g}{picker}"
    return slower if startup_s is None else f"{slower}; servers take {startup_s:g} s to start"


def _program(inventory: Inventory, name: str) -> dict[str, str]:
    program = inventory.programs[name]
    return {"version": program.version, "origin": program.origin, "path": str(program.path)}


def _plugin(plugin: KubernetesPlugin) -> dict[str, str | bool | None]:
    return {"real": plugin.is_real, "version": plugin.version, "path": str(plugin.path) if plugin.path else None}
