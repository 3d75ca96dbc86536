"""`llmd-oke check`: is a stack file right, and what would it deploy?"""

import json
from typing import Any

import typer

from llmd_oke import planning
from llmd_oke.cli import options, plan_view
from llmd_oke.cli.json_output import problem
from llmd_oke.errors import Refused


def check(stack: options.Stack, project: options.Project = options.HERE, as_json: options.Json = False) -> None:
    """Check a stack file without touching anything: all problems at once, or the plan and advice."""
    try:
        plan = planning.plan_stack_file(project, stack)
    except Refused as refused:
        if not as_json:
            raise
        _print({"stack": stack, "ok": False, "problems": [problem(each) for each in refused.problems]})
        raise typer.Exit(1) from refused
    if as_json:
        _print({"stack": stack, "ok": True, "problems": [], **plan_view.as_json(plan)})
    else:
        plan_view.show(stack, plan)


def _print(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2, default=str))
