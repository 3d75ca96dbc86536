"""Loader of stack files: returns a StackConfig, or raises an error with all problems of types and keys at once."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from llmd_base.errors import InvalidStack, KitError, Problem
from pydantic import ValidationError

from llmd_oke.config import shape_problems, yaml_files
from llmd_oke.config.deprecated_keys import KeyReplacement, with_current_keys
from llmd_oke.config.effective import EffectiveStack, StackSource, effective_stack
from llmd_oke.config.stack import StackConfig
from llmd_oke.config.yaml_files import CONFIG_KEY
from llmd_oke.values import open_project, require_project

_NAME = re.compile(r"(?:\w[\w.-]*/){0,2}\w[\w.-]*", re.ASCII)
"""Name of a stack, optionally preceded by organization and project."""


def stack_file(project: Path, stack: str) -> Path:
    """Return the path of a stack's file, `stacks/Pulumi.<stack>.yaml`. Organization and project in `stack` are ignored.

    Raises:
        KitError: `stack` is no valid name of a stack.
    """
    if not _NAME.fullmatch(stack):
        form = "A name has letters, digits, dots, dashes and underscores, such as prod."
        known = ", ".join(stacks(project)) or "none yet; `llmd-oke init` makes one"
        raise KitError(f"{stack!r} is no name of a stack.", f"{form} Stacks here: {known}.")
    return project / "stacks" / f"Pulumi.{stack.rpartition('/')[2]}.yaml"


def stacks(project: Path) -> list[str]:
    """Return the names of the stacks that have a file, sorted."""
    return sorted(path.name[len("Pulumi.") : -len(".yaml")] for path in (project / "stacks").glob("Pulumi.*.yaml"))


def project_name(project: Path) -> str:
    """Return the project's name in Pulumi.yaml.

    Raises:
        KitError: Pulumi.yaml doesn't exist, is not YAML, or has no name.
    """
    require_project(project)
    name = _mapping(yaml_files.read(project / "Pulumi.yaml").value).get("name")
    if not isinstance(name, str):
        raise KitError(f"{project / 'Pulumi.yaml'} has no name.")
    return name


def load(project: Path, stack: str) -> StackConfig:
    """Return the config of a stack.

    Raises:
        KitError: the stack file doesn't exist, or is not YAML.
        InvalidStack: the stack file has wrong keys or types; contains all problems, with lines.
    """
    try:
        return validate(read(project, stack))
    except InvalidStack as refused:
        raise InvalidStack(locate(refused.problems, project, stack)) from refused


def read(project: Path, stack: str) -> Any:
    """Return the object `llmd-oke:stack` of a stack's file with the files that it builds on, unvalidated. Also opens
    the project: from then on the catalogue includes the project's `values/`.

    Raises:
        KitError: a file doesn't exist, or is not YAML.
        InvalidStack: the object is missing, a key is repeated, or a file that the stack builds on is invalid;
            with lines.
    """
    return effective(project, stack).value


def locate(problems: Iterable[Problem], project: Path, stack: str) -> list[Problem]:
    """Return the problems of a stack with the places of their values; see `EffectiveStack.located`. Raises what `read`
    raises.
    """
    return effective(project, stack).located(problems)


def effective(project: Path, stack: str) -> EffectiveStack:
    """Return a stack's object `llmd-oke:stack` merged with the files that it builds on, unvalidated, with the place of
    each value. Raises what `read` raises.
    """
    path = stack_file(project, stack)
    open_project(project)
    if not path.is_file():
        known = stacks(project)
        if not known:
            require_project(project)
        makes = f"`llmd-oke init --stack {stack.rpartition('/')[2]}` makes this one"
        raise KitError(f"There is no stack file {path}.", f"Stacks here: {', '.join(known) or 'none'}. {makes}.")
    content = yaml_files.read(path)
    if problems := list(content.problems()):
        raise InvalidStack(problems)
    try:
        value = stack_object(content.value)
    except InvalidStack as refused:
        raise InvalidStack(
            [replace(problem, line=content.line(problem.path)) for problem in refused.problems]
        ) from refused
    return effective_stack(value, StackSource(f"{path.parent.name}/{path.name}", content, own=True), path.parent)


def effective_object(value: Any, project: Path) -> EffectiveStack:
    """Return the object `llmd-oke:stack`, as Pulumi's engine or a caller has it, with the files that it builds on.

    Raises:
        KitError: such a file can't be read, or is not YAML.
        InvalidStack: such a file doesn't exist, or is invalid.
    """
    return effective_stack(value, StackSource("the stack file", None, own=True), stack_file(project, "any").parent)


def settings(project: Path, stack: str) -> dict[str, str]:
    """Return the plain-text config values of a stack's file by key (`oci:configFileProfile`). Objects and secrets are
    left out.

    Raises:
        KitError: the file is not YAML, or can't be read.
    """
    return {key: value for key, value in _settings(project, stack).items() if isinstance(value, str)}


def setting_names(project: Path, stack: str) -> frozenset[str]:
    """Return the config keys of a stack's file, including those of secrets.

    Raises:
        KitError: the file is not YAML, or can't be read.
    """
    return frozenset(_settings(project, stack))


def _settings(project: Path, stack: str) -> Mapping[str, Any]:
    path = stack_file(project, stack)
    content = yaml_files.read(path).value if path.is_file() else None
    return _mapping(_mapping(content).get("config"))


def parse(document: Any) -> StackConfig:
    """Return the config in the parsed content of a stack file.

    Raises:
        InvalidStack: the content has wrong keys or types; contains all problems.
    """
    return validate(stack_object(document))


def stack_object(document: Any) -> Any:
    """Return the object `llmd-oke:stack` in the parsed content of a stack file.

    Raises:
        InvalidStack: the object is missing.
    """
    config = _mapping(_mapping(document).get("config"))
    if CONFIG_KEY not in config:
        raise InvalidStack([Problem("config", None, f"an object with the key {CONFIG_KEY}", "the stack has no config")])
    return config[CONFIG_KEY]


def validate(value: Any) -> StackConfig:
    """Return the typed config of a stack from its untyped object `llmd-oke:stack`. Deprecated keys are replaced by
    current ones.

    Raises:
        InvalidStack: the object has wrong keys or types; contains all problems.
    """
    current, replaced, problems = with_current_keys(value)
    if problems:
        raise InvalidStack(problems)
    try:
        return StackConfig.model_validate(current, by_alias=True, by_name=False)
    except ValidationError as error:
        found = shape_problems.problems(error.errors(), current)
        raise InvalidStack([_as_written(problem, replaced) for problem in found]) from error


def _as_written(problem: Problem, replaced: Sequence[KeyReplacement]) -> Problem:
    """Return a problem with the path that the stack file has, where it has a deprecated key."""
    for item in replaced:
        if problem.path == item.replacement or problem.path.startswith(
            (f"{item.replacement}.", f"{item.replacement}[")
        ):
            return replace(problem, path=item.path + problem.path.removeprefix(item.replacement))
    return problem


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
