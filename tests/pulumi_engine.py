"""The engine of a test: where it keeps its own files, and a stack that starts the CLI seldom."""

import atexit
import base64
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from http_for_tests import HttpAnswer, HttpRequest, address_of, http_server
from llmd_oke.config import yaml_files
from llmd_rehearsal.engine import EngineStack, Workspace
from llmd_rehearsal.engine_events import StepRecorder
from llmd_rehearsal.engine_project import latest
from llmd_rehearsal.programs import locate
from pulumi import automation
from pulumi.automation import PulumiFn
from pulumi.automation._stack import StackInitMode

Result = TypeVar("Result")


def home_without_logs(folder: Path) -> str:
    """A folder for `PULUMI_HOME` in which the engine can't keep its logs of each operation, a fifth of its work."""
    folder.mkdir(exist_ok=True)
    (folder / "logs").touch()
    return str(folder)


_running = ExitStack()
"""Servers that end with this process."""
atexit.register(_running.close)


def _decrypted(request: HttpRequest) -> HttpAnswer:
    """Return what a Vault of HashiCorp's would answer whose key changes nothing."""
    return HttpAnswer(200, {"data": {"plaintext": json.loads(request.body)["ciphertext"]}})


KEY = base64.b64encode(b"the key of secrets in each state").decode()
SECRETS = {"secretsprovider": "hashivault://tests", "encryptedkey": base64.b64encode(KEY.encode()).decode()}
"""What a stack file says of secrets with that key."""


@cache
def vault() -> dict[str, str]:
    """Environment variables of a Vault that decrypts the key of a stack's secrets. To derive a key from a passphrase
    takes the CLI as long as all else that a small update does.
    """
    server = _running.enter_context(http_server(_decrypted))
    return {"VAULT_ADDR": address_of(server), "VAULT_TOKEN": "any"}


def use_pulumi(monkeypatch: pytest.MonkeyPatch, folder: Path, *, logs: bool = False, **own: str) -> str:
    """Have this process use the real CLI, and return it. The folder is its backend, and has its own files in `home`,
    with logs of its operations only if `logs` says so.
    """
    engine = locate("pulumi")
    if engine is None:
        pytest.skip("there is no `pulumi` in LLMD_OKE_PROGRAMS, in the cache or on PATH")
    variables = {
        **vault(),
        "PATH": f"{Path(engine.path).parent}{os.pathsep}{os.environ['PATH']}",
        "PULUMI_BACKEND_URL": f"file://{folder}",
        "PULUMI_HOME": str(folder / "home") if logs else home_without_logs(folder / "home"),
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        **own,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return str(engine.path)


@cache
def pulumi_command() -> automation.PulumiCommand:
    """The Pulumi CLI, which tells its version once: each start of it takes a sixth of a second."""
    return automation.PulumiCommand()


class KeptStack(EngineStack):
    """A stack whose state is read and replaced in the file of its backend, and not by the CLI."""

    def __init__(self, name: str, workspace: Workspace, checkpoint: Path) -> None:
        super().__init__(name, workspace, StackInitMode.SELECT)
        self.checkpoint = checkpoint

    def export_stack(self) -> automation.Deployment:
        """The state, with encrypted secrets."""
        return automation.Deployment(3, dict(latest(self.checkpoint)))

    def import_stack(self, state: automation.Deployment) -> None:
        self.checkpoint.write_text(json.dumps({"version": 3, "checkpoint": {"latest": state.deployment}}))

    def outputs(self) -> automation.OutputMap:
        """The outputs by name, with encrypted secrets."""
        resources = latest(self.checkpoint)["resources"]
        own = next(item for item in resources if item["type"] == "pulumi:pulumi:Stack")
        return {name: automation.OutputValue(value, secret=False) for name, value in own.get("outputs", {}).items()}


def state_file(backend_url: str, project: str, stack: str) -> Path:
    """The file in which a backend, a folder, keeps a stack's state. A stack that isn't there yet has an empty state
    then, as after `pulumi stack init`.
    """
    backend = Path(urlsplit(backend_url).path) / ".pulumi"
    file = backend / "stacks" / project / f"{stack}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        (backend / "meta.yaml").write_text("version: 1")
        empty = {"manifest": {"time": "2026-11-30T00:00:00Z", "magic": "", "version": ""}, "metadata": {}}
        file.write_text(json.dumps({"version": 3, "checkpoint": {"latest": empty}}))
    return file


def stack_in(workspace: Workspace, name: str) -> KeptStack:
    """A stack of a project, which may have been deployed before. Its operations give no summary: a `StepRecorder` that
    hears them knows what changed.
    """
    folder = Path(workspace.work_dir)
    project: Any = yaml_files.read(folder / "Pulumi.yaml").value
    file = folder / project.get("stackConfigDir", ".") / f"Pulumi.{name}.yaml"
    written: Any = yaml_files.read(file).value if file.exists() else {}
    file.write_text(yaml_files.text_of({**written, **SECRETS}))
    url = {**os.environ, **workspace.env_vars}.get("PULUMI_BACKEND_URL") or project["backend"]["url"]
    return KeptStack(name, workspace, state_file(url, project["name"], name))


def new_stack(program: PulumiFn, options: automation.LocalWorkspaceOptions, name: str = "test") -> KeptStack:
    """A stack of a project with these options."""
    project = options.project_settings or automation.ProjectSettings("llmd-oke", "python")
    environment = {**vault(), **(options.env_vars or {})}
    how: dict[str, Any] = {"project_settings": project, "env_vars": environment, "pulumi_command": pulumi_command()}
    workspace = Workspace(options.work_dir, program=program, **how)
    return stack_in(workspace, name)


def count_changes(operate: Callable[..., Result]) -> tuple[Result, dict[str, int]]:
    """Run an operation of a stack; return its result, and to how many resources it did what."""
    steps = StepRecorder(lambda _: None)
    return operate(on_event=steps.hear), steps.changes
