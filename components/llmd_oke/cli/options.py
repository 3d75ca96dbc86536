"""Options that several commands share, alone or as fields of dataclasses, and options whose value is a duration."""

import functools
import inspect
import math
import re
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

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0}
_TIME = re.compile(r"(\d{1,9}(?:\.\d+)?)([smh]?)")


def _opened(project: Path) -> Path:
    """Make the project's entries of `values/` available; return the project's path."""
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

ScaleToZeroOnFailure = Annotated[
    bool,
    typer.Option(
        "--scale-to-zero-on-failure",
        help="Where the update fails and a pool's gate or acceptance isn't passed, give the pool's nodes back.",
    ),
]

Unprotect = Annotated[bool, typer.Option("--unprotect", help="Destroy protected resources too.")]


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer in which each parameter whose type is a dataclass is replaced by one option for each
    field.

    Fields have the annotations and defaults that parameters would have.
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


def time_option(
    *names: str, about: str, least_s: float = 0.001, most_s: float = math.inf, default_s: float | None = None
) -> Any:
    """Return a command-line option, with these names and the help text `about`, whose value is a duration from
    `least_s` to `most_s` such as `10m`; its parameter gets seconds. `default_s` is used in the help text only.
    """
    text = f"{about}." if default_s is None else f"{about}; {time_text(default_s)} if left out."
    return typer.Option(*names, help=text, parser=_time_parser(least_s, most_s), metavar="TIME", show_default=False)


def time_text(time_s: float) -> str:
    """Return a duration in seconds as text in the format of duration options (`10m`), in the largest unit that gives a
    whole number.
    """
    unit = next((unit for unit, length_s in _UNITS_S.items() if time_s >= length_s and not time_s % length_s), "s")
    return f"{time_s / _UNITS_S[unit]:g}{unit}"


def _time_parser(least_s: float, most_s: float) -> Callable[[str | float], float]:
    """Return the parser of a duration, which returns seconds. It also accepts seconds as a number, since Typer passes
    defaults through it.
    """
    least = time_text(least_s)
    limits = f"of {least} or more" if math.isinf(most_s) else f"from {least} to {time_text(most_s)}"

    def parse(value: str | float) -> float:
        match = _TIME.fullmatch(str(value))
        time_s = float(match[1]) * _UNITS_S[match[2] or "s"] if match else -1.0
        if not least_s <= time_s <= most_s:
            raise typer.BadParameter(f"{value!r} is no time {limits}; accepted: 90s, 10m, 2h, or seconds.")
        return time_s

    return parse
