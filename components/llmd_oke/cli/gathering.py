"""Options that several commands have together: the fields of a dataclass, each an option of the command line."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import Parameter
from typing import Any, get_type_hints


def gathered(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer reads it: a parameter whose type is a dataclass stands for an option for each field.

    Fields have the annotations and the defaults that parameters would have.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {each.name: each.annotation for each in signature.parameters.values() if _is_group(each.annotation)}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    parameters = [option for each in signature.parameters.values() for option in _options(each)]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    return run


def _is_group(annotation: Any) -> bool:
    return is_dataclass(annotation)


def _options(parameter: Parameter) -> Iterator[Parameter]:
    group = parameter.annotation
    if not _is_group(group):
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(group, include_extras=True)
    own = inspect.signature(group).parameters
    for field in fields(group):
        yield Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=own[field.name].default, annotation=hints[field.name]
        )
