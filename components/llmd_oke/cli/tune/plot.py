"""`llmd-oke tune plot`: what some GPUs can do at best, as a picture."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke.cli import console
from llmd_oke.cli.gathering import gathered
from llmd_oke.cli.tune import inputs
from llmd_oke.cli.tune.inputs import Search, Where
from llmd_oke.results.files import read_rows, write_whole
from llmd_oke.tuning.answers import pictures, ranking

Svg = Annotated[Path | None, typer.Option("--svg", help="Write the picture to this file.", dir_okay=False)]
Html = Annotated[
    Path | None, typer.Option("--html", help="Write a page with the picture to this file.", dir_okay=False)
]


@gathered
def plot(
    where: Where,
    search: Search,
    svg: Svg = None,
    html: Html = None,
    rows: Annotated[list[Path] | None, typer.Option(help="Measured rows to show beside the forecasts.")] = None,
) -> None:
    """Plot throughput for each GPU against speed for each user: the true frontier, the best deployments, the targets.

    Writes self-contained SVG and HTML files where they are named, and draws in the terminal otherwise.
    """
    known = inputs.inputs(where, search)
    inputs.announce(known)
    found = ranking.rank(known.question, sensitivity=False)
    measured = [row for path in rows or [] for row in read_rows(path)]
    shown = pictures.picture(known.model.name, known.question, known.confidence, found, measured)
    for path, draw in ((svg, pictures.svg), (html, pictures.html)):
        if path is not None:
            write_whole(path, draw(shown))
            console.errors().print(f"plot  {path}", markup=False, soft_wrap=True)
    if svg is None and html is None:
        size = shutil.get_terminal_size()
        console.output().print(pictures.text(shown, min(size.columns, 110), min(size.lines, 40)), markup=False)
