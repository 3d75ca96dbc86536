"""Texts, tables and JSON documents that `llmd-oke rehearse` shows of a rehearsal."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmd_base.records import document
from llmd_oke import planning
from llmd_oke.cli import console
from llmd_oke.cli.check import plan_document
from rich.markup import escape
from rich.table import Table

from llmd_rehearsal.autoscaling import ScalingTime, keda_parts
from llmd_rehearsal.cluster_plan import programs_in_pods
from llmd_rehearsal.inventory import WATCHING, ReleaseChoice
from llmd_rehearsal.local_cluster import command_line
from llmd_rehearsal.programs import LocalProgram
from llmd_rehearsal.real_vllm.differences import lines
from llmd_rehearsal.rehearsal import Prepared

if TYPE_CHECKING:
    from llmd_rehearsal.real_vllm.checks import ServerCheck
    from llmd_rehearsal.release_differences import ObjectDifference


_REAL = ("pulumi", "kube-apiserver")


def changes_text(result: Mapping[str, Any]) -> str:
    """Return one sentence on the resource changes of an engine operation (`up`, `preview`, `destroy`)."""
    counts = {kind: count for kind, count in result["changes"].items() if kind not in {"same", "read"}}
    same = result["changes"].get("same", 0)
    if not counts and result["operation"] == "destroy":
        return "nothing was deployed"
    if not counts:
        return f"no changes: {same} resources are as they should be"
    text = ", ".join(
        f"{count} to {kind}" if result["operation"] == "preview" else f"{count} {kind}d"
        for kind, count in counts.items()
    )
    return f"{text}, {same} unchanged"


def rehearsal_document(prepared: Prepared, update: Mapping[str, Any], report: Path | None) -> dict[str, Any]:
    """Return the rehearsal as a JSON document: plan, programs, simulated parts, update, and the smoke benchmark's
    results.
    """
    summaries, plugin = sorted(report.rglob("summary.json")) if report else [], prepared.plugin
    return {
        "stack": prepared.stack,
        "plan": plan_document(prepared.plan),
        **releases_document(prepared.inventory.release),
        "version_differences": [
            dataclasses.asdict(difference) for difference in prepared.inventory.version_differences(prepared.plan)
        ],
        "release_differences": [dataclasses.asdict(difference) for difference in _differences(prepared)],
        "programs": {
            name: document("version origin path", program, path=str(program.path))
            for name, program in prepared.inventory.programs.items()
        },
        "kubernetes_plugin": document(
            "real version path", plugin, real=plugin.is_real, path=str(plugin.path) if plugin.path else None
        ),
        "simulated": list(prepared.simulated(update["placeholders"])),
        "cluster_begun": prepared.begun,
        "time_scale": prepared.time_scale.scale,
        "time_scale_because": prepared.time_scale.because,
        "scaling": scaling_text(prepared.scaling_time) if prepared.scaling_time else None,
        "update": dict(update),
        "smoke": [json.loads(path.read_text()) for path in summaries],
        "report": str(report) if report else None,
    }


def show_programs(programs: Iterable[LocalProgram]) -> None:
    """Print one line for each program with name, version, origin and path; lines aren't wrapped to the terminal's
    width.
    """
    rows = [(program.name, program.version, program.origin, str(program.path)) for program in programs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.show_line(line.rstrip())


def substitution_text(choice: ReleaseChoice) -> str | None:
    """Return a notice that the rehearsal runs the router of another llm-d release than the stack's; None if both
    releases are the same.
    """
    requested, used = choice.asked.name, choice.used.name
    if requested == used:
        return None
    nearest = f"{used}, the nearest that has, is rehearsed"
    return f"{requested} has no endpoint picker and sidecar that can be had here ({choice.because}); {nearest}"


def release_text(choice: ReleaseChoice) -> str:
    """Return the name of the llm-d release that is rehearsed and, if different, the name of the stack's own release."""
    requested, used = choice.asked.name, choice.used.name
    return used if requested == used else f"{used}, in place of {requested}"


def releases_document(choice: ReleaseChoice) -> dict[str, str]:
    """Return the names of the llm-d release that the stack asks for and of the release that is rehearsed, for a JSON
    document.
    """
    return {"asked_release": choice.asked.name, "release": choice.used.name}


def facts(prepared: Prepared, placeholders: Mapping[str, int], report: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each line on a rehearsal: its real and its simulated parts, what differs from the
    stack's release, and the next commands.
    """
    programs, scale = prepared.inventory.programs, prepared.time_scale.scale
    routed = any(model.routed for model in prepared.plan.models)
    real = [
        f"{name} {programs[name].version}" for name in (*_REAL, *(programs_in_pods(prepared.plan) if routed else ()))
    ]
    real += [f"{name} {programs[name].version}" for name in WATCHING if name in programs]
    real += [f"vLLM {prepared.real.version}"] if prepared.real else []
    real += [f"Kubernetes plug-in {prepared.plugin.version}"] if prepared.plugin.is_real else []
    yield "real", ", ".join(real)
    picker = ", in which endpoint pickers read servers too" if scale > 1 else ""
    pace = "" if scale == 1 else f"; model time is wall time / {scale:g}{picker}"
    start = "" if prepared.startup_s is None else f"; servers take {prepared.startup_s:g} s to start"
    if time := prepared.scaling_time:
        yield "scaling", scaling_text(time)
    yield "simulated", f"{', '.join(prepared.simulated({}))}{pace}{start}"
    if prepared.real:
        yield "cut", str(prepared.real.stack)
        yield "vLLM differs", "\n".join(lines())
    if placeholders:  # images without a program, named without their registry path
        names = ", ".join(image.rsplit("/", 1)[-1] for image in placeholders)
        yield "not run", f"{sum(placeholders.values())} pods, whose images have no program here: {names}"
    if substitution := substitution_text(prepared.inventory.release):
        yield "release", substitution
        yield "differs", "\n".join(map(str, _differences(prepared)))
    if versions := "\n".join(map(str, prepared.inventory.version_differences(prepared.plan))):
        yield "versions", versions
    if report:
        yield "report", str(report)
    end = command_line(prepared.project, "down")
    yield "next", f"change stacks/Pulumi.{prepared.stack}.yaml and rehearse again, or end it: {end}"


def show_checks(checks: "Sequence[ServerCheck]") -> None:
    """Print the results of the checks of servers that run vLLM itself, one table for each model; print nothing if there
    are none because the servers are simulated.
    """
    for model in dict.fromkeys(check.model for check in checks):
        table = Table("", "check", "evidence", title=f"vLLM itself: {model}", title_justify="left")
        for check in checks:
            if check.model == model:
                verdict = "pass" if check.passed else "[bold red]FAIL[/]"
                table.add_row(verdict, check.check, escape(f"{check.evidence} ({check.seconds:g} s)"))
        console.output().print(table)


def scaling_text(time: ScalingTime) -> str:
    """Return a notice that names the programs that scale servers in a rehearsal and how their durations differ from a
    real stack's.
    """
    version = keda_parts().definitions.version
    return f"KEDA {version} and Kubernetes' own HPA controller, by the rehearsal's Prometheus; {time}"


def _differences(prepared: Prepared) -> "Sequence[ObjectDifference]":
    """Return the differences between the objects of the stack's release and of the rehearsed release; empty if both are
    the same release.
    """
    if prepared.inventory.release.asked.name == prepared.inventory.release.used.name:
        return ()
    from llmd_rehearsal.release_differences import release_differences  # noqa: PLC0415 - it loads Pulumi

    return release_differences(planning.plan_stack_file(prepared.project, prepared.stack), prepared.plan)
