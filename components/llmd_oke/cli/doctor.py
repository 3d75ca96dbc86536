"""`llmd-oke doctor`: known faults of a stack that runs, of a support archive, or of a folder of logs.

Modules that load Pulumi are imported where they are needed, since `--help` and archives don't need them.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_base.records import document
from rich.table import Table
from rich.text import Text

from llmd_oke import planning
from llmd_oke.cli import console, options, smoke
from llmd_oke.cli.rehearsals import run_rehearsed
from llmd_oke.cli.status import HEALTHY, UNSEEN, WRONG, PrometheusUrl
from llmd_oke.cli.support import add_status

if TYPE_CHECKING:
    from llmd_oke.operations.doctor.diagnosis import DiagnosedFault, Diagnosis

MAX_PLACES = 3

_LABEL = 10
"""Columns before the texts of a finding."""

_STYLES = {"outage": "bold red", "degraded": "red", "risk": "magenta"}

From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Archive of `llmd-oke support`, a log, or a folder of logs, in place of a stack that runs.",
        metavar="FILE|FOLDER",
    ),
]


def doctor(
    stack: Annotated[
        str | None,
        typer.Option("--stack", "-s", help="Stack that runs, of the file `Pulumi.<stack>.yaml` in `stacks`."),
    ] = None,
    source: From = None,
    project: options.Project = options.HERE,
    prometheus: PrometheusUrl = None,
    as_json: options.Json = False,
    rehearse: options.Rehearse = False,
    reports: Annotated[Path | None, typer.Option("--reports", hidden=True)] = None,
    time_scale: options.TimeScale = 1.0,
    simulated: options.Simulated = None,
) -> None:
    """Find known faults in logs, events, object states and metrics: each with its cause, its remedy and the source.

    With `--stack` it reads what `support` packs of a stack that runs, with `--from` such an archive or other logs. It
    changes nothing. Ends with 0 if no known fault was found, with 1 if there is one, and with 2 if nothing could be
    read.
    """
    del reports  # rehearsals name them to every command
    if stack is None and source is None:
        raise typer.BadParameter("--stack or --from says what to look at.")
    try:
        if rehearse and stack is not None and source is None:
            run_rehearsed(project, stack, "doctor", {"--json": as_json, "--prometheus": prometheus or None})
        if source is not None:
            from llmd_oke.operations.doctor.diagnosis import diagnose  # noqa: PLC0415
            from llmd_oke.operations.doctor.sources import open_source  # noqa: PLC0415

            console.progress().step(f"reading {source}")
            diagnosis = diagnose(open_source(source), stack)
        elif stack is not None:
            diagnosis = _of_stack(project, stack, prometheus, time_scale, tuple(simulated or ()))
        else:
            raise AssertionError("one of the two is given")
    except KitError as error:
        console.print_json_error(error)
        console.show_error(error)
        raise typer.Exit(UNSEEN) from error
    if as_json:
        console.show_json(diagnosis_document(diagnosis))
    else:
        _show(diagnosis)
    raise typer.Exit(exit_code(diagnosis))


def exit_code(diagnosis: "Diagnosis") -> int:
    """Return the exit code for a diagnosis, as `llmd-oke status` has them: 0 without known faults, 1 with one, 2 if
    nothing was read.
    """
    if diagnosis.findings:
        return WRONG
    return HEALTHY if diagnosis.seen else UNSEEN


def _of_stack(project: Path, stack: str, url: str | None, time_scale: float, simulated: tuple[str, ...]) -> "Diagnosis":
    """Diagnose a stack that runs.

    Raises:
        KitError: the stack file is invalid, there is no kubeconfig, or the cluster doesn't answer.
    """
    from llmd_oke.operations import support as packing  # noqa: PLC0415
    from llmd_oke.operations.doctor.diagnosis import diagnose  # noqa: PLC0415

    plan = planning.plan_stack_file(project, stack)
    archive = packing.Archive()
    status = add_status(archive, stack, plan, smoke.run_context(plan, time_scale, simulated, ()), url)
    if simulated:
        packing.add_log_files(archive, project.parent / "logs")
    if silent := status.reading.silent:
        raise KitError(f"The cluster does not answer: {silent}", f"llmd-oke status --stack {stack}")
    return replace(diagnose(archive.files.items(), stack, status.reading.taken), missing=archive.missing)


def diagnosis_document(diagnosis: "Diagnosis") -> dict[str, Any]:
    """Return a diagnosis of known faults as plain data for JSON."""
    findings = [
        document(
            "name component title severity cause remedy versions sources command evidence",
            finding,
            finding.signature,
            evidence=[{**asdict(item), **asdict(item.place), "place": item.place.text} for item in finding.evidence],
        )
        for finding in diagnosis.findings
    ]
    return document(
        "stack taken healthy findings logs log_bytes statements programs missing",
        diagnosis,
        taken=diagnosis.taken.isoformat(timespec="seconds") if diagnosis.taken else None,
        healthy=not diagnosis.findings and diagnosis.seen,
        findings=findings,
        missing=dict(diagnosis.missing),
    )


def _show(diagnosis: "Diagnosis") -> None:
    output = console.output()
    kib, taken = diagnosis.log_bytes / 2**10, diagnosis.taken
    size = f"{kib / 2**10:.1f} MiB" if kib >= 2**10 else f"{kib:.0f} KiB"
    parts = [f"{diagnosis.logs} logs ({size})", f"{diagnosis.statements} states and events"]
    searched = ", ".join([*parts, f"metrics of {diagnosis.programs} programs"])
    moment = f"{taken:%Y-%m-%d %H:%M:%S} UTC" if taken else ""
    output.print(Text("  ".join(filter(None, [diagnosis.stack or "", moment, searched]))))
    if count := len(diagnosis.findings):
        output.print(Text(f"{count} known {'fault' if count == 1 else 'faults'}", style="bold red"))
    elif diagnosis.seen:
        output.print(Text("no known fault", style="bold green"))
    else:
        output.print(Text("nothing was there to read", style="bold magenta"))
    for finding in diagnosis.findings:
        output.print("", _finding(finding), sep="\n")
        for label, text in (("command", finding.command), ("source", finding.signature.sources[0])):
            output.print(Text.assemble((f"{label:<{_LABEL}}", "dim"), text), soft_wrap=True)  # to be copied whole
    if diagnosis.missing:
        path, why = next(iter(sorted(diagnosis.missing.items())))
        more = f", and {len(diagnosis.missing) - 1} more, which --json has" if len(diagnosis.missing) > 1 else ""
        output.print("", Text(f"not read: {path}: {why}{more}", style="dim"), sep="\n")


def _finding(finding: "DiagnosedFault") -> Table:
    signature = finding.signature
    table = Table.grid()
    table.add_column(width=_LABEL, no_wrap=True)
    table.add_column(overflow="fold")
    title = Text.assemble((signature.title, "bold"), f"  {finding.component}")
    table.add_row(Text(signature.severity, style=_STYLES[signature.severity]), title)
    for evidence in finding.evidence[:MAX_PLACES]:
        place, first, last = evidence.place, evidence.first, evidence.last
        parts = [place.text, *([f"on {place.node}"] if place.node and place.pod else [])]
        parts.append("once" if evidence.count == 1 else f"{evidence.count}{' or more' if evidence.more else ''} times")
        if last:
            parts.append(f"{first} to {last}" if first not in {None, last} else last)
        table.add_row("", Text(", ".join(parts)))
    if (more := len(finding.evidence) - MAX_PLACES) > 0:
        table.add_row("", f"and {more} more {'place' if more == 1 else 'places'}, which --json has")
    for label, text in document("line cause versions remedy", finding.evidence[0], signature).items():
        if text:
            table.add_row(Text(label, style="dim"), Text(text))
    return table
