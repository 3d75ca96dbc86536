"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Stack = Annotated[str, typer.Option("--stack", "-s", help="Stack: the file stacks/Pulumi.<stack>.yaml.")]

Project = Annotated[
    Path,
    typer.Option(
        "--project",
        help="Folder of Pulumi.yaml.",
        file_okay=False,
        exists=True,
        resolve_path=True,
        envvar="LLMD_OKE_PROJECT",
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

HERE = Path()
