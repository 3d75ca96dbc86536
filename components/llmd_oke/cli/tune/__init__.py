"""`llmd-oke tune`: from benchmarks of single servers to the best topology, written into the stack file."""

from typing import Any

import typer

from llmd_oke.cli.loading import LoadingGroup
from llmd_oke.errors import KitError


class _Commands(LoadingGroup):
    """The commands in the order of their use; most need numpy, which is an extra."""

    places = {  # noqa: RUF012 - of the class by its base
        "plan": "llmd_oke.cli.tune.plan:plan",
        "run": "llmd_oke.cli.tune.run:run",
        "import": "llmd_oke.cli.tune.import_rows:import_rows",
        "fit": "llmd_oke.cli.tune.fit:fit",
        "match": "llmd_oke.cli.tune.match:match",
        "rank": "llmd_oke.cli.tune.rank:rank",
        "plot": "llmd_oke.cli.tune.plot:plot",
        "apply": "llmd_oke.cli.tune.apply:apply",
        "verify": "llmd_oke.cli.tune.verify:verify",
        "watch": "llmd_oke.cli.tune.watch:watch",
        "findings": "llmd_oke.cli.tune.findings:findings",
        "fidelity": "llmd_oke.cli.tune.fidelity:fidelity",
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
