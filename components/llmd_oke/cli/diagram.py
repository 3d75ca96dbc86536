"""`llmd-oke diagram`: the plan of a stack as a picture."""

from pathlib import Path
from typing import Annotated

import typer
from llmd_base.errors import KitError
from llmd_bench.files import write_whole
from rich.markup import escape

from llmd_oke import planning
from llmd_oke.cli import console, options

STREAM = "-"


def diagram(
    stack: options.Stack,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="SVG to write; `-` for standard output. The stack's name with .svg if left out."
        ),
    ] = None,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Draw a stack's plan as one SVG, for light and dark pages: network, pools, nodes with servers on GPUs and virtual
    functions, routers, front door and cost.
    """
    from llmd_oke.operations.diagram import diagram as drawn  # noqa: PLC0415 - jinja2

    if output == STREAM and as_json:
        raise KitError("A picture and --json would both be on standard output.", "Give --output a file.")
    plan = planning.plan_stack_file(project, stack)
    svg = drawn(stack, plan)
    if output == STREAM:
        typer.echo(svg)
        return
    file = Path(output or f"{stack.rsplit('/', 1)[-1]}.svg")
    write_whole(file, svg)
    if as_json:
        about = {"stack": stack, "file": str(file), "nodes": len(plan.nodes_at_first), "gpus": plan.gpus}
        console.show_json(about)
    else:
        console.output().print(f"[green]drawn[/] {escape(str(file))}", soft_wrap=True)
