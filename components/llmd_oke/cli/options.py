"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Stack = Annotated[str, typer.Option("--stack", "-s", help="Stack: the file `stacks/Pulumi.<stack>.yaml`.")]

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

Reports = Annotated[
    Path | None,
    typer.Option("--reports", help="Folder of reports; `reports` in the project if left out.", file_okay=False),
]

Simulated = Annotated[
    list[str] | None,
    typer.Option("--simulated", help="What was not real, for the report; may be given several times."),
]

Release = Annotated[str | None, typer.Option("--release", help="Release that runs instead of the stack's own.")]

TimeScale = Annotated[
    float,
    typer.Option(
        "--time-scale",
        help="Wall seconds for a second of model time, for simulated servers that run on another clock.",
        min=0.01,
        max=100,
    ),
]

Rehearse = Annotated[bool, typer.Option("--rehearse", help="On the rehearsed stack, which must be up.")]

HERE = Path()

Unprotect = Annotated[bool, typer.Option("--unprotect", help="Destroy protected resources too.")]
