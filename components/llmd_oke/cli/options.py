"""Options that several commands have, alone or as the fields of a dataclass."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import typer

from llmd_oke.cli import console
from llmd_oke.values import open_project

Stack = Annotated[str, typer.Option("--stack", "-s", help="Stack, of the file `Pulumi.<stack>.yaml` in `stacks`.")]

HERE = Path()


def _opened(project: Path) -> Path:
    """The project, with its own entries of `values/` open."""
    open_project(project)
    return project


Project = Annotated[
    Path,
    typer.Option(
        "--project",
        help="Folder of Pulumi.yaml.",
        file_okay=False,
        exists=True,
        resolve_path=True,
        envvar="LLMD_OKE_PROJECT",
        callback=_opened,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", callback=console.remember_json)]

Reports = Annotated[
    Path | None,
    typer.Option("--reports", help="Folder of reports; `reports` in the project if left out.", file_okay=False),
]

Simulated = Annotated[
    list[str] | None,
    typer.Option("--simulated", help="What was not real, for the report; may be given several times."),
]

Region = Annotated[str | None, typer.Option(help="Region; the cluster's if left out.")]

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

Unprotect = Annotated[bool, typer.Option("--unprotect", help="Destroy protected resources too.")]


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer reads it: a parameter whose type is a dataclass stands for an option for each field.

    Fields have the annotations and the defaults that parameters would have.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {name: item.annotation for name, item in signature.parameters.items() if is_dataclass(item.annotation)}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = cast("Any", group)(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    parameters = [option for parameter in signature.parameters.values() for option in _options(parameter)]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    return run


def _options(parameter: Parameter) -> Iterator[Parameter]:
    group = parameter.annotation
    if not is_dataclass(group):
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(group, include_extras=True)
    own = inspect.signature(cast("Any", group)).parameters
    for field in fields(group):
        yield own[field.name].replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[field.name])
