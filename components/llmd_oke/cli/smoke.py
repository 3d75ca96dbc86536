"""`llmd-oke smoke`: a short benchmark of what is deployed."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke import config, planning
from llmd_oke.cli import console, options
from llmd_oke.errors import KitError

TimeScale = Annotated[
    float,
    typer.Option(
        "--time-scale",
        help="Wall seconds for a second of model time, for simulated servers that run on another clock.",
        min=0.01,
        max=100,
    ),
]
Simulated = Annotated[
    list[str] | None,
    typer.Option("--simulated", help="What was not real, for the report; may be given several times."),
]
Ran = Annotated[
    list[str] | None,
    typer.Option("--ran", help="Program that ran in another version than the release's: NAME=VERSION; several times."),
]
Reports = Annotated[
    Path | None,
    typer.Option("--reports", help="Folder of reports; `reports` in the project if left out.", file_okay=False),
]


def smoke(
    stack: options.Stack,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
    time_scale: TimeScale = 1.0,
    simulated: Simulated = None,
    ran: Ran = None,
    reports: Reports = None,
    release: Annotated[str | None, typer.Option(help="Release that runs instead of the stack's own.")] = None,
) -> None:
    """Benchmark every model of a deployed stack, hold it against the stack's thresholds and store a report.

    Ends with exit code 1, and says why, where a threshold is not met.
    """
    from llmd_oke.bench.smoke import Provenance  # noqa: PLC0415 - not needed by other commands
    from llmd_oke.experiments.smoke import Circumstances, run_all  # noqa: PLC0415

    plan = planning.plan_stack_file(project, stack)
    if release:
        plan = planning.plan(config.load(project, stack).model_copy(update={"release": release}))
    provenance = Provenance.CALIBRATED if simulated else Provenance.MEASURED
    versions = dict(text.split("=", 1) for text in ran or () if "=" in text)
    how = Circumstances(time_scale, provenance, tuple(simulated or ()), versions)
    started = datetime.now(UTC)
    outcomes = run_all(stack, plan, how, reports or project / "reports", started, console.progress())
    if as_json:
        typer.echo(json.dumps({"stack": stack, "models": [outcome.summary for outcome in outcomes]}, indent=2))
    else:
        for outcome in outcomes:
            console.output().print(outcome.table)
            console.output().print(f"report  {outcome.report}", soft_wrap=True)
    for outcome in outcomes:
        if not outcome.passed:
            console.show_error(KitError(f"{outcome.name} did not pass: {', '.join(outcome.failed)}"))
    if not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(1)
