"""`llmd-oke tune run`: measures single servers and keeps what was found."""

import typer

from llmd_oke.cli import console, experiment, options
from llmd_oke.cli.experiment import How
from llmd_oke.cli.gathering import gathered
from llmd_oke.cli.tune import import_rows, measurements
from llmd_oke.cli.tune.measurements import Wanted
from llmd_oke.experiments.tuner.rows import keep, rows_file


@gathered
def run(
    wanted: Wanted,
    how: How,
    yes: options.Yes = False,
    new: experiment.New = False,
) -> None:
    """Measure the servers that `tune plan` shows, or go on where that was interrupted, and keep the rows of the stack.

    `tune fit`, `rank`, `plot` and `apply` go by them from then on. Rows that can't be right are left out, each with its
    reason. Ends with exit code 1 if a server could not be measured.
    """
    folder = experiment.carry_out(measurements.experiment(wanted, how.asked()), yes=yes, new=new)
    inspection = import_rows.inspected(folder.gather())
    import_rows.show_findings(inspection)
    file = rows_file(wanted.project, wanted.stack)
    kept = keep(inspection.accepted, file)
    found = f"{len(inspection.accepted)} of {len(folder.gather())} rows kept, {len(kept)} in all"
    console.output().print(f"{found}: {file}", markup=False, soft_wrap=True)
    if how.rehearse:
        console.output().print(
            "[dim]rehearsed: the rows are the simulation's (calibrated), and tell nothing of real servers[/]",
            soft_wrap=True,
        )
    raise typer.Exit(experiment.show_failures(folder))
