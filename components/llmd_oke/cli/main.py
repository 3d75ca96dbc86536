"""The command `llmd-oke`."""

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from types import FrameType
from typing import Annotated

import typer
from llmd_base.errors import KitError

from llmd_oke.cli import console
from llmd_oke.cli.loading import LoadingGroup

_PANELS = {
    "Plan": (
        *("init", "adopt", "check", "explain", "config", "diagram", "preflight"),
        *("model", "images", "render", "rehearse", "schema", "migrate"),
    ),
    "Deploy": ("up", "destroy", "drift", "recover", "state", "rebuild", "nodes", "pipeline", "tunnel", "token"),
    "See how it is": ("status", "doctor", "support"),
    "Measure what is deployed": ("smoke", "bench", "eval", "passport", "accept"),
    "Compare and tune": ("compare", "history", "experiment", "tune"),
}
"""Headings in `llmd-oke --help` with their commands, in this order; commands of other packages follow without a
heading.
"""

UNREAD = 141
"""Exit code after a broken pipe: 128 plus the number of SIGPIPE."""

TERMINATED = 128 + signal.SIGTERM
"""Exit code after SIGTERM."""


def _places() -> dict[str, str]:
    """Return the entry points of the commands of all installed packages, by name, in the order of `--help`."""
    installed = {entry.name: entry.value for entry in metadata.entry_points(group="llmd_oke.commands")}
    ordered = [name for names in _PANELS.values() for name in names if name in installed]
    return {name: installed[name] for name in dict.fromkeys([*ordered, *sorted(installed)])}


class _Commands(LoadingGroup):
    places = _places()
    panels = {name: panel for panel, names in _PANELS.items() for name in names}  # noqa: RUF012


app = typer.Typer(
    cls=_Commands,
    name="llmd-oke",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"llmd-oke {metadata.version('llmd-oke')}")
        raise typer.Exit


@app.callback()
def _kit(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Prefill/decode disaggregated vLLM with llm-d on OKE and MI300X: plan, deploy, rehearse, benchmark."""


def main() -> None:
    """Run the command `llmd-oke` with the arguments of this process.

    Errors of the kit and of the operating system are shown without a traceback and end the command with exit code 1.
    Ctrl-C ends it with 130, SIGTERM with 143, a broken pipe with 141.
    """
    with _sigterm_as_interrupt() as signals:
        code = _run()
        sys.exit(TERMINATED if signals and code == console.INTERRUPTED else code)


def _run() -> int:
    """Run the command; return its exit code."""
    try:
        app(standalone_mode=True)
    except SystemExit as end:
        return _exit_code(end)
    except KitError as error:
        return _failed(error)
    except OSError as error:  # by the name of the file where the system says that
        _discard_output()
        return _failed(
            KitError(": ".join(str(part) for part in (error.filename, error.strerror or error) if part) + ".")
        )
    except KeyboardInterrupt:
        console.errors().print("interrupted")
        return console.INTERRUPTED
    return 0


def _failed(error: KitError) -> int:
    console.print_json_error(error)
    console.show_error(error)
    return 1


def _exit_code(end: SystemExit) -> int:
    """Return the exit code of a command that raised SystemExit."""
    if isinstance(end.__context__, BrokenPipeError):
        _discard_output()
        return UNREAD
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if code == console.INTERRUPTED and not isinstance(end, console.ChildExit):
        console.errors().print("interrupted")
    return code


def _discard_output() -> None:
    """Discard buffered output that can't be written, so that Python doesn't try to write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _sigterm_as_interrupt() -> Generator[list[int]]:
    """Handle SIGTERM (of a service manager, a cancelled job, `timeout`) like Ctrl-C during the block, so that child
    processes end in the same way. Yields the list of received signals.
    """
    signals: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        signal.raise_signal(signal.SIGINT)  # event loops handle Ctrl-C in a way of their own

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, before)
