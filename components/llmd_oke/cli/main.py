"""The command `llmd-oke`."""

import sys
from collections.abc import Callable
from typing import Any

import typer

from llmd_oke.cli import (
    accuracy,
    bench,
    check,
    compare,
    console,
    experiment,
    history,
    passport,
    pipeline,
    preflight,
    rehearse,
    schema,
    smoke,
    token,
    tune,
    tunnel,
    up,
)
from llmd_oke.errors import KitError

app = typer.Typer(
    name="llmd-oke",
    help="Prefill/decode disaggregated vLLM with llm-d on OKE and MI300X: plan, deploy, rehearse, benchmark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("bench")(bench.bench)
app.command("check")(check.check)
app.command("eval")(accuracy.evaluate)
app.command("compare")(compare.compare)
app.command("passport")(passport.passport)
app.command("schema")(schema.schema)
app.command("preflight")(preflight.preflight)
app.command("smoke")(smoke.smoke)
app.command("token")(token.token)
app.command("tunnel")(tunnel.tunnel)
app.command("up")(up.up)
app.command("destroy")(up.destroy)
app.add_typer(experiment.app, name="experiment")
app.add_typer(history.app, name="history")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(rehearse.app, name="rehearse")
app.add_typer(tune.app, name="tune")


INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of SIGINT."""


def main() -> None:
    """Run the command; errors of the kit end it with their own words and exit code 1, an interrupt with 130."""
    sys.exit(_guarded(lambda: app(standalone_mode=True)))


def _guarded(run: Callable[[], Any]) -> int:
    try:
        run()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            console.errors().print("interrupted; what runs stays as it is")
        raise
    except KitError as error:
        console.show_error(error)
        return 1
    except KeyboardInterrupt:
        console.errors().print("interrupted")
        return INTERRUPTED
    return 0
