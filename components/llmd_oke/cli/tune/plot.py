"""`llmd-oke tune plot`: what some GPUs can do at best, as a picture."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke.cli import console, options
from llmd_oke.cli.tune import inputs
from llmd_oke.cli.tune.inputs import Asked
from llmd_oke.results.files import read_rows
from llmd_oke.tuning import pictures, ranking

File = Annotated[Path | None, typer.Option(dir_okay=False)]


def plot(
    project: options.Project = options.HERE,
    stack: inputs.MaybeStack = None,
    name: inputs.Name = None,
    model: inputs.ModelName = None,
    shape: inputs.ShapeName = inputs.DEFAULT_SHAPE,
    slo: inputs.Slo = "",
    gpus: inputs.Gpus = None,
    workload: inputs.WorkloadText = None,
    trace: inputs.Trace = None,
    figures: inputs.Figures = None,
    max_num_seqs: inputs.MaxNumSeqs = 256,
    allow_extrapolation: inputs.AllowExtrapolation = False,
    measurements: inputs.Measurements = None,
    svg: File = None,
    html: File = None,
    rows: Annotated[list[Path] | None, typer.Option(help="Measured rows to show beside the forecasts.")] = None,
) -> None:
    """Plot throughput for each GPU against speed for each user: the true frontier, the best deployments, the targets.

    Writes self-contained SVG and HTML files where they are named, and draws in the terminal otherwise.
    """
    asked = Asked(
        project=project,
        stack=stack,
        name=name,
        model=model,
        shape=shape,
        slo=slo,
        gpus=gpus,
        workload=workload,
        trace=trace,
        figures=figures,
        max_num_seqs=max_num_seqs,
        allow_extrapolation=allow_extrapolation,
        measurements=tuple(measurements or ()),
    )
    known = inputs.inputs(asked)
    found = ranking.rank(known.question, sensitivity=False)
    measured = [row for path in rows or [] for row in read_rows(path)]
    shown = pictures.picture(known.model.name, known.question, known.confidence, found, measured)
    for path, draw in ((svg, pictures.svg), (html, pictures.html)):
        if path is not None:
            path.write_text(draw(shown), encoding="utf-8")
            console.errors().print(f"plot  {path}", markup=False, soft_wrap=True)
    if svg is None and html is None:
        size = shutil.get_terminal_size()
        console.output().print(pictures.text(shown, min(size.columns, 110), min(size.lines, 40)), markup=False)
