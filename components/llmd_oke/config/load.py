"""Reading of a stack file: a StackConfig, or all problems of its shape at once."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from llmd_base.errors import InvalidStack, KitError, Problem
from pydantic import ValidationError

from llmd_oke.config import shape_problems, yaml_files
from llmd_oke.config.stack import StackConfig
from llmd_oke.config.yaml_files import CONFIG_KEY
from llmd_oke.values import open_project

_NAME = re.compile(r"(?:\w[\w.-]*/){0,2}\w[\w.-]*", re.ASCII)
"""Of a stack, with organization and project before it where they are given."""


def stack_file(project: Path, stack: str) -> Path:
    """The file of a stack: `stacks/Pulumi.<stack>.yaml`. Organization and project before the name are let go.

    Raises:
        KitError: that is no name of a stack.
    """
    if not _NAME.fullmatch(stack):
        known = ", ".join(stacks(project)) or "none"
        raise KitError(f"{stack!r} is no name of a stack.", f"Stacks here: {known}.")
    return project / "stacks" / f"Pulumi.{stack.rsplit('/', 1)[-1]}.yaml"


def stacks(project: Path) -> list[str]:
    """The stacks that have a file, sorted."""
    return sorted(path.name[len("Pulumi.") : -len(".yaml")] for path in (project / "stacks").glob("Pulumi.*.yaml"))


def require_project(project: Path) -> None:
    """Make sure that a folder is that of a project.

    Raises:
        KitError: it has no Pulumi.yaml.
    """
    if not (project / "Pulumi.yaml").is_file():
        remedy = "Go to the project's folder, or name it: --project FOLDER, or LLMD_OKE_PROJECT in the environment."
        raise KitError(f"There is no Pulumi.yaml in {project.resolve()}, so this is no project.", remedy)


def project_name(project: Path) -> str:
    """The name that Pulumi.yaml gives the project.

    Raises:
        KitError: there is no such file, it is not YAML, or it has no name.
    """
    require_project(project)
    name = _mapping(yaml_files.read(project / "Pulumi.yaml").value).get("name")
    if not isinstance(name, str):
        raise KitError(f"{project / 'Pulumi.yaml'} has no name.")
    return name


def load(project: Path, stack: str) -> StackConfig:
    """The config of a stack.

    Raises:
        KitError: there is no such file, or it is not YAML.
        InvalidStack: its shape is wrong; carries every problem, with lines.
    """
    path = stack_file(project, stack)
    try:
        return validate(read(project, stack))
    except InvalidStack as refused:
        raise InvalidStack(yaml_files.locate(refused.problems, path)) from refused


def read(project: Path, stack: str) -> Any:
    """The object of a stack's file under `llmd-oke:stack`, not judged yet. Opens the project: what its `values/` have
    counts from now on.

    Raises:
        KitError: there is no such file, or it is not YAML.
        InvalidStack: the object is not there, or has a key twice.
    """
    path = stack_file(project, stack)
    open_project(project)
    if not path.is_file():
        known = stacks(project)
        if not known:
            require_project(project)
        raise KitError(f"There is no stack file {path}.", f"Stacks here: {', '.join(known) or 'none'}.")
    content = yaml_files.read(path)
    if problems := list(content.problems()):
        raise InvalidStack(problems)
    return stack_object(content.value)


def settings(project: Path, stack: str) -> dict[str, str]:
    """The plain texts of a stack's file beside the object, by key (`oci:configFileProfile`). Secrets are left out.

    Raises:
        KitError: the file is not YAML, or can't be read.
    """
    return {key: value for key, value in _settings(project, stack).items() if isinstance(value, str)}


def setting_names(project: Path, stack: str) -> frozenset[str]:
    """The keys of a stack's file, those of secrets too.

    Raises:
        KitError: the file is not YAML, or can't be read.
    """
    return frozenset(_settings(project, stack))


def _settings(project: Path, stack: str) -> Mapping[str, Any]:
    path = stack_file(project, stack)
    content = yaml_files.read(path).value if path.is_file() else None
    return _mapping(_mapping(content).get("config"))


def parse(document: Any) -> StackConfig:
    """The config in a stack file's document.

    Raises:
        InvalidStack: its shape is wrong; carries every problem.
    """
    return validate(stack_object(document))


def stack_object(document: Any) -> Any:
    """The object under `llmd-oke:stack` in a stack file's document.

    Raises:
        InvalidStack: it is not there.
    """
    config = _mapping(_mapping(document).get("config"))
    if CONFIG_KEY not in config:
        raise InvalidStack([Problem("config", None, f"an object with the key {CONFIG_KEY}", "the stack has no config")])
    return config[CONFIG_KEY]


def validate(value: Any) -> StackConfig:
    """The config that an object spells.

    Raises:
        InvalidStack: its shape is wrong; carries every problem.
    """
    try:
        return StackConfig.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidStack(shape_problems.problems(error.errors(include_url=False), value)) from error


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
