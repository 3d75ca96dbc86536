"""`llmd-oke tune run`: measures single servers and keeps what was found."""

import typer

from llmd_oke.cli import console, experiment, options
from llmd_oke.cli.tune import import_rows, inputs, measurements
from llmd_oke.cli.tune.measurements import Wanted
from llmd_oke.experiments import tuning_rows
from llmd_oke.experiments.preparing import Asked


def run(
    stack: options.Stack,
    project: options.Project = options.HERE,
    name: inputs.Name = None,
    model: measurements.Model = None,
    workload: inputs.WorkloadText = None,
    grid: measurements.Grid = "adaptive",
    size: measurements.Size = None,
    max_num_seqs: measurements.MaxNumSeqs = None,
    gpus: experiment.Gpus = None,
    rehearse: experiment.Rehearse = False,
    time_scale: experiment.TimeScale = None,
    requests: experiment.Requests = None,
    yes: experiment.Yes = False,
    new: experiment.New = False,
) -> None:
    """Measure the servers that `tune plan` shows, or go on where that was interrupted, and keep the rows of the stack.

    `tune fit`, `rank`, `plot` and `apply` go by them from then on. Rows that can't be right are left out, each with its
    reason. Ends with exit code 1 if a server could not be measured.
    """
    asked = Asked(gpus, rehearse, time_scale, requests)
    sizes = tuple(size or ())
    wanted = Wanted(project, stack, name, model, workload, grid, sizes, max_num_seqs, asked)
    folder = experiment.carry_out(measurements.experiment(wanted), yes=yes, new=new)
    inspection = import_rows.inspected(folder.gather())
    import_rows.show_findings(inspection)
    file = tuning_rows.rows_file(project, stack)
    kept = tuning_rows.keep(inspection.accepted, file)
    found = f"{len(inspection.accepted)} of {len(folder.gather())} rows kept, {len(kept)} in all"
    console.output().print(f"{found}: {file}", markup=False, soft_wrap=True)
    if rehearse:
        console.output().print(
            "[dim]rehearsed: the rows are the simulation's (calibrated), and tell nothing of real servers[/]",
            soft_wrap=True,
        )
    raise typer.Exit(experiment.show_failures(folder))
