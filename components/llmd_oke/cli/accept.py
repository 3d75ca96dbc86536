"""`llmd-oke accept`: another acceptance test of GPU nodes, after the one before they served for the first time."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from llmd_oke import planning
from llmd_oke.cli import console, options
from llmd_oke.cli.tables import FittingTable, open_table

if TYPE_CHECKING:
    from llmd_oke.operations.acceptance import PoolResult

Nodes = Annotated[
    list[str] | None, typer.Option("--node", help="A node; several times. All nodes that are free if left out.")
]

NOT_TRIED = "Acceptance has not been run on hardware yet: its pods follow what the tools document."


def accept(
    stack: options.Stack,
    project: options.Project = options.HERE,
    node: Nodes = None,
    as_json: options.Json = False,
) -> None:
    """Test GPU nodes: GPUs, RDMA ports, reads over each port and an all-reduce between nodes.

    A test pod takes all GPUs of a node, so that nodes with model servers are skipped: drain a node first. Nodes that
    fail get the taint `llmd-oke/acceptance=failed:NoSchedule`, nodes that pass lose it. Results are stored in the
    namespace `llmd-oke-acceptance`. **Not run on hardware yet.** Ends with exit code 1 if a tested node fails.
    """
    from llmd_oke.operations import acceptance  # noqa: PLC0415 - loads Pulumi, --help does without

    plan = planning.plan_stack_file(project, stack)
    console.errors().print(f"[magenta]{NOT_TRIED}[/]", soft_wrap=True)
    for accepted in plan.acceptance:
        console.tell(f"acceptance {accepted.cost_sentence}")
    results = acceptance.accept(plan, node or [], console.progress())
    if as_json:
        console.show_json({"pools": [asdict(result) for result in results]})
    else:
        for result in results:
            _show(result)
    if any(result.problem or any(item.verdict == "failed" for item in result.results) for result in results):
        raise typer.Exit(1)


def _show(result: "PoolResult") -> None:
    output = console.output()
    output.print(f"\n[bold]{escape(result.pool)}[/]  the models need {result.needed} nodes")
    output.print(FittingTable(_table(result)))
    for item in result.results:
        for check in item.checks:
            if check.outcome == "failed":
                output.print(f"[red]{escape(item.node)}[/] {escape(f'{check.name}: {check.text}')}", soft_wrap=False)
        if item.verdict == "failed" and not item.checks:
            output.print(f"[red]{escape(item.node)}[/] {escape(item.reason)}")
    for name, reason in result.untested.items():
        output.print(f"[magenta]{escape(name)}[/] not tested now: {escape(reason)}")
    if result.problem:
        output.print(f"[red]{escape(result.problem)}[/]")


def _table(result: "PoolResult") -> Table:
    table = open_table("node", "verdict", "date", *_checks(result))
    for item in result.results:
        outcomes = {check.name: check.outcome for check in item.checks}
        verdict = "[green]passed[/]" if item.verdict == "passed" else f"[red]{item.verdict}[/]"
        cells: list[Any] = [outcomes.get(name, "") for name in _checks(result)]
        table.add_row(escape(item.node), verdict, item.date[:10], *cells)
    return table


def _checks(result: "PoolResult") -> Iterable[str]:
    return dict.fromkeys(check.name for item in result.results for check in item.checks)
