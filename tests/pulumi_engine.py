"""The engine of a test: where it keeps its own files, and a stack that starts the CLI seldom."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from llmd_rehearsal.engine import EngineStack, Workspace
from llmd_rehearsal.engine_events import StepRecorder
from pulumi import automation
from pulumi.automation import PulumiFn
from pulumi.automation._stack import StackInitMode

Result = TypeVar("Result")


def home_without_logs(folder: Path) -> str:
    """A folder for `PULUMI_HOME` in which the engine can't keep its logs of each operation, a fifth of its work."""
    folder.mkdir()
    (folder / "logs").touch()
    return str(folder)


@cache
def _command() -> automation.PulumiCommand:
    """The Pulumi CLI, which tells its version once: each start of it takes a sixth of a second."""
    return automation.PulumiCommand()


def new_stack(program: PulumiFn, options: automation.LocalWorkspaceOptions, name: str = "test") -> EngineStack:
    """A stack whose operations give no summary: a `StepRecorder` that hears them knows what changed."""
    project = options.project_settings or automation.ProjectSettings("llmd-oke", "python")
    workspace = Workspace(
        options.work_dir, project_settings=project, env_vars=options.env_vars, pulumi_command=_command()
    )
    workspace.program = program
    return EngineStack(name, workspace, StackInitMode.CREATE)


def count_changes(operate: Callable[..., Result]) -> tuple[Result, dict[str, int]]:
    """Run an operation of a stack; return its result, and to how many resources it did what."""
    steps = StepRecorder(lambda _: None)
    return operate(on_event=steps.hear), steps.changes
