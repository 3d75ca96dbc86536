"""The Pulumi project that a rehearsal's engine works in: a copy of the user's, with a state of its own.

The user's project is never written to, and nothing of its stack file but our own config comes along: secrets that are
encrypted for the real stack mean nothing here. Only the address of a bucket and the secrets of a front door have
stand-ins of the rehearsal's own.
"""

import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError
from llmd_oke.config import CONFIG_KEY, project_name, stack_file
from llmd_oke.config.yaml_files import read, text_of
from llmd_oke.values import VALUES, open_project, project_values

from llmd_rehearsal import front_door
from llmd_rehearsal.cluster_spec import SELDOM_COLLECTED
from llmd_rehearsal.model_sources import source_hosts
from llmd_rehearsal.real_vllm.topologies import CutStack

DEPLOYED, PREVIEWED = "project", "preview"
"""Folders of the copies in a local cluster's own: of the last update, and of the previews since."""

SOURCE_URL_KEY = "llmd-oke:modelSourceUrl"
REHEARSED_KEY = "llmd-oke:rehearsed"
_FILES = ("Pulumi.yaml", "__main__.py")

OCI_FOLDER = "oci"
"""Folder of the stand-in for OCI."""


@dataclass(frozen=True)
class ProjectCopy:
    """Folders and secrets of a rehearsed stack's Pulumi project."""

    folder: Path
    backend: Path
    pulumi_home: Path
    passphrase_file: Path

    def variables(self) -> dict[str, str]:
        """Environment variables of the engine."""
        return {
            "PULUMI_BACKEND_URL": f"file://{self.backend}",
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(self.passphrase_file),
            "PULUMI_HOME": str(self.pulumi_home),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
            "PULUMI_AUTOMATION_API_SKIP_VERSION_CHECK": "true",
            **SELDOM_COLLECTED,
        }


def copy_project(
    project: Path, stack: str, state: Path, router: str, kind: str = DEPLOYED, cut: CutStack | None = None
) -> ProjectCopy:
    """Bring the copy in the folder `kind` up to date with the project; `router` is the release whose router
    runs, where that is not the stack's own, and `cut` has the servers that fit the machine, where not all do."""
    copy = ProjectCopy(state / kind, state / "backend", state / "pulumi", state / "passphrase")
    for folder in (copy.folder / "stacks", copy.backend, copy.pulumi_home):
        folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(project / name, copy.folder / name)
    _copy_values(project, copy.folder)
    # Pulumi logs each operation in all detail, compressed and encrypted: measured, 2.5 of 13 s of an update without
    # changes, and up to 500 MB. It does without where it can't make its folder.
    logs = copy.pulumi_home / "logs"
    if not logs.exists():
        logs.touch()
    if not copy.passphrase_file.exists():
        copy.passphrase_file.touch(mode=0o600)
        copy.passphrase_file.write_text(secrets.token_urlsafe(32))
    salt_source = stack_file(state / DEPLOYED, stack)
    _write_stack_file(stack_file(project, stack), stack_file(copy.folder, stack), router, salt_source, state, cut)
    return copy


def _copy_values(project: Path, copy: Path) -> None:
    """Copy the entries of the project's `values/` and remove those that are gone. Links are not followed out
    of the folder, and planning has refused what is no entry.
    """
    open_project(project)
    shutil.rmtree(copy / VALUES, ignore_errors=True)
    for file in project_values().files:
        if not (file.outside or file.is_folder) and file.path.endswith(".yaml"):
            target = copy / VALUES / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(project_values().folder / file.path, target)


def _write_stack_file(
    source: Path, target: Path, router: str, salt_source: Path, state: Path, cut: CutStack | None
) -> None:
    """Write a copy's stack file, with the encryption salt of the last update's."""
    document: dict[str, Any] = read(source).value
    stack: dict[str, Any] = front_door.rehearsed_front_door(
        front_door.rehearsed_gateway(document["config"][CONFIG_KEY])
    )
    stack = cut.written_into(stack) if cut else stack
    override: dict[str, Any] = stack.get("override") or {}
    if router != override.get("router", stack.get("release")):
        stack = {**stack, "override": {**override, "router": router}}
    deployed: dict[str, Any] = read(salt_source).value if salt_source.exists() else {}
    salt = {key: deployed[key] for key in ("encryptionsalt",) if key in deployed}
    rehearsed = {SOURCE_URL_KEY: source_hosts().bucket_url, REHEARSED_KEY: True}
    config = {CONFIG_KEY: stack, **rehearsed, **front_door.settings(stack, state)}
    target.write_text(text_of({**salt, "config": config}))


def checkpoint_file(state: Path, stack: str) -> Path:
    """File of a stack's state. It is missing before a project was copied, whose name is a part of its path."""
    copies = (state / kind for kind in (DEPLOYED, PREVIEWED))
    name = next((project_name(copy) for copy in copies if (copy / "Pulumi.yaml").is_file()), "none")
    return state / "backend" / ".pulumi" / "stacks" / name / f"{stack}.json"


def journal_file(state: Path) -> Path:
    """Journal of the stand-in for OCI: what it made, changed and deleted, line by line."""
    return state / OCI_FOLDER / "journal.jsonl"


def latest(checkpoint: Path) -> Mapping[str, Any]:
    """The stack's state as the engine wrote it down last; empty where there is none.

    Raises:
        KitError: the file is not whole.
    """
    if not checkpoint.is_file():
        return {}
    try:
        return json.loads(checkpoint.read_text())["checkpoint"].get("latest") or {}
    except ValueError as error:
        message = f"{checkpoint} is not whole, as where its disk was full: {error}"
        raise KitError(message, "Make room on its disk and run it again: it goes on from the copy beside it.") from None


def mend(checkpoint: Path) -> Path | None:
    """Replace a checkpoint that is not whole by its newest whole copy and return that copy; None where it is whole.

    On a full disk the engine leaves the half of a file that it could write (seen with Pulumi 3.250). It keeps the one
    before in a copy of the same name, and that of each update's end in its history.

    Raises:
        KitError: no copy is whole either.
    """
    if not checkpoint.is_file() or _is_whole(checkpoint):
        return None
    stack = checkpoint.stem
    history = checkpoint.parents[2] / "history" / checkpoint.parent.name / stack
    copies = [checkpoint.with_name(f"{checkpoint.name}.bak"), *sorted(history.glob("*.checkpoint.json"), reverse=True)]
    whole = next((copy for copy in copies if copy.is_file() and _is_whole(copy)), None)
    if whole is None:
        over = f"Start over: scripts/rehearse down --stack {stack}"
        raise KitError(f"{checkpoint} is not whole, as where its disk was full, and no copy is.", over)
    shutil.copyfile(whole, checkpoint)
    return whole


def _is_whole(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_text()), dict)
    except ValueError:
        return False


def in_oci(journal: Path) -> dict[str, dict[str, Any]]:
    """Resources of the stand-in for OCI by id, from its journal; empty where there is no journal."""
    resources: dict[str, dict[str, Any]] = {}
    for line in journal.read_text().splitlines() if journal.is_file() else ():
        record: dict[str, Any] = json.loads(line)
        if "token" in record:
            resources[record["id"]] = record
        else:
            resources.pop(record["id"], None)
    return resources
