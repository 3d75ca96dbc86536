"""`llmd-oke check`: is a stack file right, and what would it deploy?"""

import json
from typing import Any

import typer
from rich.markup import escape

from llmd_oke import planning
from llmd_oke.cli import console, options, plan_view
from llmd_oke.cli.json_output import problem
from llmd_oke.errors import Refused
from llmd_oke.planning import Plan
from llmd_oke.tuning.servers import conditions
from llmd_oke.tuning.servers.figures import latency_figures


def check(stack: options.Stack, project: options.Project = options.HERE, as_json: options.Json = False) -> None:
    """Check a stack file without touching anything: all problems at once, or the plan and advice."""
    try:
        plan = planning.plan_stack_file(project, stack, nodes_pull=True)
    except Refused as refused:
        if not as_json:
            raise
        _print({"stack": stack, "ok": False, "problems": [problem(each) for each in refused.problems]})
        raise typer.Exit(1) from refused
    if as_json:
        found = {"not_as_measured": _not_as_measured(plan)}
        _print({"stack": stack, "ok": True, "problems": [], **plan_view.as_json(plan), **found})
    else:
        plan_view.show(stack, plan)
        for name, differences in _not_as_measured(plan).items():
            told = "; ".join(differences)
            console.output().print(f"\n[dim]forecasts[/] {escape(name)}: not as measured: {escape(told)}")


def _not_as_measured(plan: Plan) -> dict[str, list[str]]:
    """By model, how its servers differ from those that the kit's latency figures were measured of."""
    found: dict[str, list[str]] = {}
    for model in plan.models:
        figures = latency_figures(model.model.name, plan.pools[0].shape.gpu.product) if plan.pools else None
        started = conditions.started_with(plan.release, model.model, model.engine)
        if figures is not None:
            found[model.name] = figures.differences(started.of(str(model.topology)))
    return {name: told for name, told in found.items() if told}


def _print(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2, default=str))
