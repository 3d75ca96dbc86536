"""`llmd-oke passport`: what runs, and the evidence that it is right, in one file."""

from pathlib import Path

import typer
from rich.markdown import Markdown

from llmd_oke import planning
from llmd_oke.cli import console, options
from llmd_oke.errors import KitError
from llmd_oke.planning import Plan


def passport(
    stack: options.Stack,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
    reports: options.Reports = None,
    rehearse: options.Rehearse = False,
) -> None:
    """Show the passport of each model of a deployed stack, made anew from its last benchmark and evaluation.

    It has the configuration's hash, image digests, topology, proof of remote prefill, smoke benchmark, accuracy, price
    of a million tokens and cold-start time. Updates and evaluations write it beside the report.
    """
    if rehearse:
        from llmd_oke.cli.inside import run_inside  # noqa: PLC0415 - not needed without a rehearsal

        raise console.Told(
            run_inside(project, stack, ["passport", *(["--json"] if as_json else [])], reports, measures=False)
        )
    from llmd_oke.experiments.deployed.passport import issue_passports  # noqa: PLC0415 - other commands don't need it

    written = issue_passports(stack, planning.plan_stack_file(project, stack), reports or project / "reports")
    if not written:
        raise KitError(
            f"{stack} has no benchmark of its present configuration.",
            f"Run one: llmd-oke smoke --stack {stack} (with --rehearse where it is rehearsed)",
        )
    if as_json:
        texts = [path.with_suffix(".json").read_text(encoding="utf-8") for path in written]
        typer.echo(f"[{','.join(texts)}]")
        return
    for path in written:
        console.output().print(Markdown(path.read_text(encoding="utf-8")))
        console.output().print(f"passport  {path}", soft_wrap=True)


def issue(stack: str, plan: Plan, reports: Path) -> list[Path]:
    """Writes the passports after a benchmark or an evaluation and says where; a cluster that is gone fails nothing."""
    from llmd_oke.experiments.deployed.passport import issue_passports  # noqa: PLC0415 - other commands don't need it

    try:
        written = issue_passports(stack, plan, reports)
    except KitError as error:
        console.errors().print(f"no passport: {error.message}", markup=False)
        return []
    for path in written:
        console.errors().print(f"passport  {path}", soft_wrap=True)
    return written
