"""The latency figures that a command of `tune` goes by: a file's, fitted to rows, or the kit's own."""

from collections.abc import Sequence
from pathlib import Path

from llmd_oke.catalogue import Model, Node
from llmd_oke.cli import console
from llmd_oke.cli.tune import import_rows
from llmd_oke.errors import KitError
from llmd_oke.experiments.tuner.rows import kept_rows
from llmd_oke.results.files import read_rows
from llmd_oke.results.row import Row
from llmd_oke.tuning.calibration.calibrating import calibrate
from llmd_oke.tuning.search import asking
from llmd_oke.tuning.servers.figures import LatencyFigures, read_figures


def figures_of(path: Path | None, model: Model, node: Node) -> LatencyFigures:
    """The latency figures in a file, or the kit's own; bounds of the hardware where it has none.

    Raises:
        KitError: the file has none, or those of another model or GPU.
    """
    if path is None:
        return asking.known_figures(model, node)
    return asking.checked_figures(read_figures(path), model, node)


def best_figures(
    figures: Path | None, rows: Sequence[Path], kept: Path | None, model: Model, node: Node
) -> LatencyFigures:
    """Figures that are named, else of rows that are named, else of the rows that are kept for a stack, else the kit's.

    Says which they are, unless they are named.

    Raises:
        KitError: what is named can't be used.
    """
    base = figures_of(figures, model, node)
    if figures is not None and not rows:
        return base
    if rows:
        named = [row for path in rows for row in read_rows(path)]
        return calibrate(_accepted(named), model, node, base).figures
    found = _accepted(kept_rows(kept, model.name, node.gpu.product) if kept else [])
    if not found:
        return base
    try:
        fitted = calibrate(found, model, node, base).figures
    except KitError as error:
        own = "the kit's own" if base.measured else "bounds of the hardware"
        _tell(f"{own}, because the rows in {kept} give none: {error.message}")
        return base
    known = all(each and each.started_told for each in fitted.measured_conditions().values())
    unknown = "" if known else ", whose conditions are unknown"
    _tell(f"fitted to {len(found)} rows ({found[0].basis.value}) of {kept}{unknown}")
    return fitted


def _accepted(rows: list[Row]) -> tuple[Row, ...]:
    return import_rows.inspected(rows).accepted


def _tell(text: str) -> None:
    console.errors().print(f"figures  {text}", markup=False, soft_wrap=True)
