"""`llmd-oke tune`: from benchmarks of single servers to the best topology, written into the stack file."""

from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from llmd_oke.errors import KitError


class _Commands(TyperGroup):
    """The commands, imported when one of them is asked for: they need numpy, which is slow to import and an extra."""

    def list_commands(self, ctx: Any) -> list[str]:
        return self._loaded().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._loaded().get_command(ctx, cmd_name)

    def _loaded(self) -> Any:
        try:
            from llmd_oke.cli.tune import commands  # noqa: PLC0415 - see above
        except ModuleNotFoundError as error:
            message = f"The tuner needs {error.name}, which is not installed."
            raise KitError(message, "Install llmd-oke[analysis].") from error
        return typer.main.get_command(commands.app)


app = typer.Typer(
    cls=_Commands,
    help="From cheap benchmarks of single servers to the best topology: read and check measurements, fit the latency "
    "model, rank all deployments, plot, write the best into the stack file.",
    no_args_is_help=True,
)
