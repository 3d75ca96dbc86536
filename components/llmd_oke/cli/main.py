"""The command `llmd-oke`."""

import os
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any

import typer

from llmd_oke.cli import console, json_output, termination
from llmd_oke.cli.loading import LoadingGroup
from llmd_oke.errors import KitError

_GROUPS = {
    "Plan": {
        "check": "llmd_oke.cli.check:check",
        "preflight": "llmd_oke.cli.preflight:preflight",
        "images": "llmd_oke.cli.images:app",
        "rehearse": "llmd_oke.cli.rehearse:app",
        "schema": "llmd_oke.cli.schema:schema",
    },
    "Deploy": {
        "up": "llmd_oke.cli.up:up",
        "destroy": "llmd_oke.cli.up:destroy",
        "drift": "llmd_oke.cli.drift:drift",
        "recover": "llmd_oke.cli.recover:recover",
        "nodes": "llmd_oke.cli.nodes:app",
        "pipeline": "llmd_oke.cli.pipeline:app",
        "tunnel": "llmd_oke.cli.tunnel:tunnel",
        "token": "llmd_oke.cli.token:token",
    },
    "Measure what is deployed": {
        "smoke": "llmd_oke.cli.smoke:smoke",
        "bench": "llmd_oke.cli.bench:bench",
        "eval": "llmd_oke.cli.accuracy:evaluate",
        "passport": "llmd_oke.cli.passport:passport",
        "kv-path": "llmd_oke.cli.kv_path:kv_path",
    },
    "Compare and tune": {
        "compare": "llmd_oke.cli.compare:compare",
        "history": "llmd_oke.cli.history:app",
        "experiment": "llmd_oke.cli.experiment:app",
        "tune": "llmd_oke.cli.tune:app",
    },
}

UNREAD = 141
"""Exit code where nobody reads the output any more: 128 and the number of SIGPIPE."""


class _Commands(LoadingGroup):
    places = {name: place for commands in _GROUPS.values() for name, place in commands.items()}  # noqa: RUF012
    panels = {name: group for group, commands in _GROUPS.items() for name in commands}  # noqa: RUF012


app = typer.Typer(
    cls=_Commands,
    name="llmd-oke",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmd-oke {metadata.version('llmd-oke')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
]


@app.callback()
def _kit(version: Version = False) -> None:
    """Prefill/decode disaggregated vLLM with llm-d on OKE and MI300X: plan, deploy, rehearse, benchmark."""


def main() -> None:
    """Run the command.

    Errors of the kit and of the system end it with their own words and exit code 1, Ctrl-C with 130, SIGTERM with 143,
    and a reader that wants no more of its output with 141.
    """
    with termination.heeded() as heeded:
        sys.exit(heeded.code(_guarded(lambda: app(standalone_mode=True))))


def _guarded(run: Callable[[], Any]) -> int:
    try:
        run()
    except SystemExit as end:
        return _ended(end)
    except KitError as error:
        return _failed(error)
    except OSError as error:
        _give_output_up()
        return _failed(KitError(_words(error)))
    except KeyboardInterrupt:
        console.errors().print("interrupted")
        return console.INTERRUPTED
    return 0


def _failed(error: KitError) -> int:
    json_output.print_error(error)
    console.show_error(error)
    return 1


def _ended(end: SystemExit) -> int:
    """The exit code of a command that ended itself."""
    if isinstance(end.__context__, BrokenPipeError):
        _give_output_up()
        return UNREAD
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if code == console.INTERRUPTED and not isinstance(end, console.Told):
        console.errors().print("interrupted")
    return code


def _words(error: OSError) -> str:
    """What the system refused, by the name of the file where it says that."""
    return ": ".join(str(part) for part in (error.filename, error.strerror or error) if part) + "."


def _give_output_up() -> None:
    """What could not be written is not tried again when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
