"""`llmd-oke schema`: the JSON Schema of stack files."""

import json

import typer

from llmd_oke.config.schema import stack_file_schema


def schema() -> None:
    """Print the JSON Schema of stack files (committed as stacks/schema.json)."""
    typer.echo(json.dumps(stack_file_schema(), indent=2))
