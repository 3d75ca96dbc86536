"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from llmd_oke.cli import json_output

Stack = Annotated[str, typer.Option("--stack", "-s", help="Stack, of the file `Pulumi.<stack>.yaml` in `stacks`.")]

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

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", callback=json_output.remember)]

Reports = Annotated[
    Path | None,
    typer.Option("--reports", help="Folder of reports; `reports` in the project if left out.", file_okay=False),
]

Simulated = Annotated[
    list[str] | None,
    typer.Option("--simulated", help="What was not real, for the report; may be given several times."),
]

Router = Annotated[str | None, typer.Option("--router", help="Release whose router runs instead of the stack's own.")]

TimeScale = Annotated[
    float,
    typer.Option(
        "--time-scale",
        help="Wall seconds for a second of model time, where servers are simulated.",
        min=0.01,
        max=100,
    ),
]

StartupSeconds = Annotated[
    float | None,
    typer.Option(
        "--startup-seconds",
        help="Wall seconds that each simulated server takes to start: a rollout with 60 shows what a slow start does. "
        "About one second if left out.",
        min=0,
        max=3600,
    ),
]

Rehearse = Annotated[bool, typer.Option("--rehearse", help="On the rehearsed stack, which must be up.")]

Requests = Annotated[
    int | None, typer.Option(help="Send at most so many requests at each level; results say so.", min=1)
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

AllowReplace = Annotated[
    bool, typer.Option("--allow-replace", help="Let the update replace or delete clusters, networks and pools.")
]

HERE = Path()

Unprotect = Annotated[bool, typer.Option("--unprotect", help="Destroy protected resources too.")]
