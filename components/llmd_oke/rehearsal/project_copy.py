"""The copy of the project that the engine works in, with a state of its own.

The user's project is never written to, and nothing of its stack file but our own config comes along: secrets that are
encrypted for the real stack mean nothing here. Only the address of a bucket has a stand-in of the rehearsal's own.
"""

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmd_oke.config import CONFIG_KEY, stack_file
from llmd_oke.config.document import read
from llmd_oke.config.pulumi_yaml import text_of
from llmd_oke.rehearsal.outside.facts import outside

DEPLOYED, PREVIEWED = "project", "preview"
"""Folders of the copies in a world's own: what was deployed last, and what was looked at since."""

SOURCE_URL_KEY = "llmd-oke:modelSourceUrl"
REHEARSED_KEY = "llmd-oke:rehearsed"

_COPIED = ("Pulumi.yaml", "__main__.py")


@dataclass(frozen=True)
class ProjectCopy:
    """Folders and secrets of a rehearsed stack's Pulumi project."""

    folder: Path
    backend: Path
    pulumi_home: Path
    passphrase_file: Path

    def variables(self) -> dict[str, str]:
        """What the engine is told by its environment."""
        return {
            "PULUMI_BACKEND_URL": f"file://{self.backend}",
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(self.passphrase_file),
            "PULUMI_HOME": str(self.pulumi_home),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
            "PULUMI_AUTOMATION_API_SKIP_VERSION_CHECK": "true",
        }


def copy_project(project: Path, stack: str, state: Path, router: str, kind: str = DEPLOYED) -> ProjectCopy:
    """Brings the copy in the folder `kind` up to date with the project; `router` is the release whose router
    runs, where that is not the stack's own."""
    copy = ProjectCopy(state / kind, state / "backend", state / "pulumi", state / "passphrase")
    for folder in (copy.folder / "stacks", copy.backend, copy.pulumi_home):
        folder.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        shutil.copyfile(project / name, copy.folder / name)
    _keep_no_logs(copy.pulumi_home)
    _write_passphrase(copy.passphrase_file)
    salted = stack_file(state / DEPLOYED, stack)
    _write_stack_file(stack_file(project, stack), stack_file(copy.folder, stack), router, salted)
    return copy


def _keep_no_logs(pulumi_home: Path) -> None:
    """Pulumi logs each operation in all detail, compressed and encrypted: measured, 2.5 of 13 s of an update without
    changes, and up to 500 MB. It does without where it can't make its folder.
    """
    logs = pulumi_home / "logs"
    if not logs.exists():
        logs.touch()


def _write_passphrase(path: Path) -> None:
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32))


def _write_stack_file(source: Path, target: Path, router: str, salted: Path) -> None:
    """Writes a copy's stack file, with the salt of the file that was deployed."""
    document: dict[str, Any] = read(source).value
    stack: dict[str, Any] = document["config"][CONFIG_KEY]
    override: dict[str, Any] = stack.get("override") or {}
    if router != override.get("router", stack.get("release")):
        stack = {**stack, "override": {**override, "router": router}}
    kept: dict[str, Any] = read(salted).value if salted.exists() else {}
    own = {key: kept[key] for key in ("encryptionsalt",) if key in kept}
    config = {CONFIG_KEY: stack, SOURCE_URL_KEY: outside().bucket_url, REHEARSED_KEY: True}
    target.write_text(text_of({**own, "config": config}))
