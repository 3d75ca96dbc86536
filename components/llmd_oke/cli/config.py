"""`llmd-oke config`: the values of a stack's keys, and where each of them is from."""

import json
from typing import Annotated

import typer
from llmd_base.records import document
from rich.table import Table

from llmd_oke import config
from llmd_oke.cli import console, options
from llmd_oke.cli.tables import plain_cells
from llmd_oke.config.yaml_files import CONFIG_KEY, text_of

app = typer.Typer(
    help="Values of a stack's keys: those of its own file, of files that it builds on, and what holds where it says"
    " nothing."
)


@app.command()
def show(
    stack: options.Stack,
    effective: Annotated[
        bool,
        typer.Option(
            "--effective",
            help="Add what holds for keys that are left out: defaults, values of release and catalogue, and those that"
            " follow from other keys.",
        ),
    ] = False,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print what the files say together as one stack file, without origins.")
    ] = False,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Show each value of a stack with its origin: file and line of the stack file, or of a file that it builds on
    (`base`); with `--effective` also a default, the release, the catalogue, or another key.
    """
    if as_yaml:
        if effective or as_json:
            raise typer.BadParameter("it stands alone", param_hint="--yaml")
        typer.echo(text_of({"config": {CONFIG_KEY: config.read(project, stack)}}), nl=False)
        return
    from llmd_oke.explain import key_values  # noqa: PLC0415 - planning, which `--yaml` does without

    found = (key_values.effective_values if effective else key_values.written_values)(project, stack)
    if as_json:
        values = [document("path value origin source line", item) for item in found]
        console.show_json({"stack": stack, "values": values})
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("key", "value", "from"):
        table.add_column(heading, overflow="fold")
    for item in found:
        text = item.value if isinstance(item.value, str) else json.dumps(item.value, default=str)
        origin = f"line {item.line}" if item.origin == "stack file" else item.origin
        if item.source and item.origin != "stack file":
            origin = item.source if item.line is None else f"{item.source}:{item.line}"
        table.add_row(*plain_cells(item.path, text, origin))
    console.output().print(table)
