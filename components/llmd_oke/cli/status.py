"""`llmd-oke status`: the state of a deployed stack on one screen.

Modules that load Pulumi are imported where they are needed, since `--help` doesn't need them.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from llmd_base.errors import KitError
from rich.console import Group
from rich.live import Live

from llmd_oke import planning
from llmd_oke.cli import console, options, smoke
from llmd_oke.cli.console import Visible
from llmd_oke.cli.rehearsals import run_rehearsed

if TYPE_CHECKING:
    from llmd_oke.operations.status.status import StackStatus

HEALTHY, WRONG, UNSEEN = 0, 1, 2
"""Exit codes of `llmd-oke status`: healthy, with a problem, and undetermined."""

EVERY_S = 5.0

ENDS_WITHIN_DAYS = 14
"""Number of days before its expiry from which a certificate is a problem, as in the alert CertificateExpires
(`values/monitoring/rules.yaml`).
"""

Every = Annotated[
    float,
    options.time_option(
        about="Time between two looks, and over which counters are compared where no Prometheus has them",
        least_s=1.0,
        most_s=3600.0,
        default_s=EVERY_S,
    ),
]
PrometheusUrl = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        help="Address of the Prometheus that has the stack's metrics and alerts; the stack file's if left out.",
        metavar="URL",
    ),
]
EndsWithin = Annotated[
    int,
    typer.Option(
        "--ends-within", help="Tell certificates that end within so many days.", metavar="DAYS", min=0, max=3650
    ),
]


def status(
    stack: options.Stack,
    project: options.Project = options.HERE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Look once; this is what it does without `--watch`.")] = False,
    every: Every = EVERY_S,
    prometheus: PrometheusUrl = None,
    ends_within: EndsWithin = ENDS_WITHIN_DAYS,
    as_json: options.Json = False,
    rehearse: options.Rehearse = False,
    reports: Annotated[Path | None, typer.Option("--reports", hidden=True)] = None,
    time_scale: options.TimeScale = 1.0,
    simulated: options.Simulated = None,
    ran: smoke.Ran = None,
) -> None:
    """Show the state of a deployed stack: problems first, then nodes, servers, load, versions, changes, alerts, and the
    age of its secrets.

    It reads the cluster of the kubeconfig, the metrics of its servers and its Prometheus, and changes nothing. Parts
    that can't be read are shown with the reason. Ends with 0 if the stack is healthy, with 1 if there is a problem, and
    with 2 if that could not be determined.
    """
    del reports  # rehearsals name them to every command
    if watch and once:
        raise typer.BadParameter("--watch and --once exclude each other.")
    try:
        if rehearse:
            own = {"--ends-within": ends_within, "--every": every, "--watch": watch, "--json": as_json}
            own |= {"--prometheus": prometheus or None}
            run_rehearsed(project, stack, "status", own, interruptible=True)
        show = _show_json if as_json else _show
        within = timedelta(days=ends_within)
        read = _reader(project, stack, every, prometheus, time_scale, tuple(simulated or ()), ran or (), within)
        if watch:
            _watch(read, every, show, live=console.output().is_terminal and not as_json)
        latest = read()
        show(latest)
    except KitError as error:
        console.print_json_error(error)
        console.show_error(error)
        raise typer.Exit(UNSEEN) from error
    raise typer.Exit(exit_code(latest))


def exit_code(status: "StackStatus") -> int:
    """Return the exit code of a status: 1 if there are symptoms, otherwise 0 if all parts could be read,
    otherwise 2.
    """
    if status.symptoms:
        return WRONG
    return HEALTHY if status.seen else UNSEEN


def _reader(
    project: Path,
    stack: str,
    every_s: float,
    url: str | None,
    time_scale: float,
    simulated: tuple[str, ...],
    ran: Sequence[str],
    ends_within: timedelta,
) -> "Callable[[], StackStatus]":
    from llmd_oke.operations.prometheus import prometheus_url  # noqa: PLC0415
    from llmd_oke.operations.status.status import StatusReader  # noqa: PLC0415

    plan = planning.plan_stack_file(project, stack)
    how = smoke.run_context(plan, time_scale, simulated, ran)
    return StatusReader(stack, plan, how, every_s, url or prometheus_url(plan), ends_within)


def _watch(
    read: "Callable[[], StackStatus]", every_s: float, show: "Callable[[StackStatus], None]", *, live: bool
) -> NoReturn:
    """Show the status repeatedly until Ctrl-C: with `live` on a separate screen, after which the last status stays on
    the terminal, otherwise one status below the other.
    """
    from llmd_oke.cli.status_view import screen  # noqa: PLC0415

    latest: StackStatus | None = None
    try:
        with Live(console=console.output(), auto_refresh=False, screen=True) if live else nullcontext() as display:
            while True:
                started_s = monotonic()
                latest = read()
                if display:
                    display.update(Visible(Group(screen(latest))), refresh=True)
                else:
                    show(latest)
                sleep(max(0.0, started_s + every_s - monotonic()))
    finally:
        if live and latest:
            show(latest)


def _show(status: "StackStatus") -> None:
    from llmd_oke.cli.status_view import screen  # noqa: PLC0415

    console.output().print(screen(status))


def _show_json(status: "StackStatus") -> None:
    from llmd_oke.cli.status_view import status_document  # noqa: PLC0415

    console.show_json(status_document(status))
