"""`llmd-oke tune`: from benchmarks of single servers to the best topology, written into the stack file."""

from typing import Any

import typer
from llmd_base.errors import KitError
from llmd_oke.cli.loading import LoadingGroup


class _Commands(LoadingGroup):
    """The commands in the order of their use; most need numpy, which is an extra."""

    places = {  # noqa: RUF012 - of the class by its base
        "plan": "llmd_tuner.cli.tune_measure:plan",
        "run": "llmd_tuner.cli.tune_measure:run",
        "import": "llmd_tuner.cli.tune_fit:import_rows",
        "fit": "llmd_tuner.cli.tune_fit:fit",
        "match": "llmd_tuner.cli.tune_fit:match",
        "rank": "llmd_tuner.cli.tune_rank:rank",
        "plot": "llmd_tuner.cli.tune_rank:plot",
        "apply": "llmd_tuner.cli.tune_rank:apply",
        "verify": "llmd_tuner.cli.tune_verify:verify",
        "watch": "llmd_tuner.cli.tune_watch:watch",
        "findings": "llmd_tuner.cli.tune_fidelity:findings",
        "fidelity": "llmd_tuner.cli.tune_fidelity:fidelity",
    }

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command, loaded."""
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            message = f"The tuner needs {error.name}, which is not installed."
            raise KitError(message, "Install llmd-oke[analysis].") from error


app = typer.Typer(
    cls=_Commands,
    help="From cheap benchmarks of single servers to the best topology: read and check measurements, fit the latency "
    "model, rank all deployments, plot, write the best into the stack file.",
    no_args_is_help=True,
)


@app.callback()
def _tune() -> None:
    """A Typer without commands of its own is none."""
