"""The command `llmd-oke`."""

import sys
from collections.abc import Callable
from typing import Any

import typer

from llmd_oke.cli import console, json_output
from llmd_oke.cli.loading import LoadingGroup
from llmd_oke.errors import KitError

_PLACES = {
    "bench": "llmd_oke.cli.bench:bench",
    "check": "llmd_oke.cli.check:check",
    "eval": "llmd_oke.cli.accuracy:evaluate",
    "compare": "llmd_oke.cli.compare:compare",
    "kv-path": "llmd_oke.cli.kv_path:kv_path",
    "passport": "llmd_oke.cli.passport:passport",
    "schema": "llmd_oke.cli.schema:schema",
    "preflight": "llmd_oke.cli.preflight:preflight",
    "smoke": "llmd_oke.cli.smoke:smoke",
    "token": "llmd_oke.cli.token:token",
    "tunnel": "llmd_oke.cli.tunnel:tunnel",
    "up": "llmd_oke.cli.up:up",
    "destroy": "llmd_oke.cli.up:destroy",
    "experiment": "llmd_oke.cli.experiment:app",
    "history": "llmd_oke.cli.history:app",
    "pipeline": "llmd_oke.cli.pipeline:app",
    "rehearse": "llmd_oke.cli.rehearse:app",
    "tune": "llmd_oke.cli.tune:app",
}


class _Commands(LoadingGroup):
    places = _PLACES


app = typer.Typer(
    cls=_Commands,
    name="llmd-oke",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _kit() -> None:
    """Prefill/decode disaggregated vLLM with llm-d on OKE and MI300X: plan, deploy, rehearse, benchmark."""


def main() -> None:
    """Run the command; errors of the kit end it with their own words and exit code 1, an interrupt with 130."""
    sys.exit(_guarded(lambda: app(standalone_mode=True)))


def _guarded(run: Callable[[], Any]) -> int:
    try:
        run()
    except SystemExit as end:
        if end.code == console.INTERRUPTED:
            console.errors().print("interrupted; what runs stays as it is")
        raise
    except KitError as error:
        json_output.print_error(error)
        console.show_error(error)
        return 1
    except KeyboardInterrupt:
        console.errors().print("interrupted")
        return console.INTERRUPTED
    return 0
