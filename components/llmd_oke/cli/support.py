"""`llmd-oke support`: one archive with the state of a stack, to be sent to people who help with a fault."""

from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from llmd_base.errors import KitError
from llmd_bench.run_context import RunContext
from rich.console import Console

from llmd_oke import planning
from llmd_oke.cli import console, options, smoke
from llmd_oke.cli.check import plan_document
from llmd_oke.cli.rehearsals import run_rehearsed
from llmd_oke.cli.status import EVERY_S, PrometheusUrl
from llmd_oke.config import read, stack_file
from llmd_oke.planning import Plan

if TYPE_CHECKING:
    from llmd_oke.operations.status.status import StackStatus
    from llmd_oke.operations.support import Archive

WIDTH = 120


def support(
    stack: options.Stack,
    project: options.Project = options.HERE,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where it is written; `<stack>-support-<time>.tar.gz` if left out.", dir_okay=False
        ),
    ] = None,
    prometheus: PrometheusUrl = None,
    as_json: options.Json = False,
    reports: options.Reports = None,
    rehearse: options.Rehearse = False,
    time_scale: options.TimeScale = 1.0,
    simulated: options.Simulated = None,
) -> None:
    """Pack the state of a stack into one archive: status, objects, logs, versions, reports and the plan.

    Secrets are removed; sizes and times are limited. The archive's `manifest.json` lists its content and what could not
    be read. Inspect the archive before you send it. Ends with 0 if it was written, even if parts are missing.
    """
    from llmd_oke.operations import support as packing  # noqa: PLC0415 - loads Pulumi, --help does without

    name = f"{stack.rpartition('/')[2]}-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz"
    file = (output or Path(name)).resolve()
    if not file.parent.is_dir():
        raise KitError(f"{file.parent} is no folder.", "--output names a file in a folder that is there.")
    if rehearse:
        run_rehearsed(project, stack, "support", {"--output": file, "--json": as_json}, reports)
    archive = packing.Archive()
    archive.try_to_add("stack.json", lambda: packing.stack_document(stack_file(project, stack)))
    archive.try_to_add("effective-stack.json", lambda: read(project, stack))
    archive.try_to_add("versions.json", packing.versions)
    packing.add_reports(archive, reports or project / "reports", stack)
    try:
        plan = planning.plan_stack_file(project, stack)
        archive.try_to_add("plan.json", lambda: plan_document(plan))
        how = smoke.run_context(plan, time_scale, tuple(simulated or ()), ())
        add_status(archive, stack, plan, how, prometheus)
    except KitError as error:
        archive.missing["status.json"] = error.message
    if simulated:  # also those of its own programs, and of pods that are gone
        packing.add_log_files(archive, project.parent / "logs")
    archive.write(file, stack)
    _tell(archive, file, as_json=as_json)


def add_status(archive: "Archive", stack: str, plan: Plan, how: RunContext, url: str | None) -> "StackStatus":
    """Read the status of a stack, and add the status, the objects and metrics that it was read from, and the logs of
    the stack's pods to a support archive; return the status. `how` has the time scale and the simulated parts of a
    rehearsal, `url` is that of Prometheus, None for the stack's own.

    Raises:
        KitError: there is no kubeconfig, or its user can't sign in.
    """
    from llmd_oke.cli.status_view import screen, status_document  # noqa: PLC0415
    from llmd_oke.operations import support as packing  # noqa: PLC0415
    from llmd_oke.operations.cluster_access import ClusterAccess  # noqa: PLC0415
    from llmd_oke.operations.prometheus import prometheus_url  # noqa: PLC0415
    from llmd_oke.operations.status.reading import Unread  # noqa: PLC0415
    from llmd_oke.operations.status.status import StatusReader  # noqa: PLC0415

    console.progress().step("reading the cluster")
    status = StatusReader(stack, plan, how, EVERY_S, url or prometheus_url(plan))()
    archive.add_document("status.json", status_document(status))
    text = Console(file=StringIO(), width=WIDTH)
    text.print(screen(status))
    archive.add("status.txt", text.file.getvalue() if isinstance(text.file, StringIO) else "")
    packing.add_cluster(archive, status.reading)
    packing.add_metrics(archive, status.counters)
    if isinstance(status.reading.pods, Unread):
        archive.missing["logs"] = status.reading.pods.why
    elif not how.simulated:
        console.progress().step("reading logs")
        way = ClusterAccess(plan.kubeconfig_context).api("")
        packing.add_logs(archive, way, plan.namespace, packing.logged_pods(plan, status.reading.pods))
    return status


def _tell(archive: "Archive", file: Path, *, as_json: bool) -> None:
    if as_json:
        console.show_json({"file": str(file), "files": sorted(archive.files), "missing": archive.missing})
        return
    console.show_line(f"support  {file}")
    for path, why in sorted(archive.missing.items()):
        console.output().print(f"missing  {path}: {why}", markup=False)
    console.output().print(
        "Secrets were taken out as far as names and forms tell them: look into it before you send it."
    )
