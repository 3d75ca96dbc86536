"""The Pulumi project that a rehearsal's engine runs: a copy of the user's project with a state backend of its own.

The user's project is never changed. Of the stack file the stack itself and the plain config of a program of the user's
are copied: secrets encrypted for the real stack can't be decrypted here. The copy has its own credentials of model
sources, and its own secrets of a front door.
"""

import filecmp
import json
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from llmd_base.errors import KitError
from llmd_base.private_files import write_private
from llmd_oke.config import CONFIG_KEY, project_name, read, setting_names, settings, stack_file, yaml_files
from llmd_oke.config.yaml_files import text_of
from llmd_oke.values import VALUES, open_project, project_values
from llmd_oke.version import __version__

from llmd_rehearsal import front_door, source_credentials
from llmd_rehearsal.cluster_spec import SELDOM_COLLECTED
from llmd_rehearsal.real_vllm.topologies import CutStack

PACKAGE = "llmd-oke"
"""Name of the kit's Pulumi package of components."""

DEPLOYED, PREVIEWED, BEFORE = "project", "preview", "before"
"""Names of the copies' folders in a local cluster's folder: the copy of the last update, the copy for previews since,
and the copy of another project that is deployed before.
"""

REHEARSED_KEY = "llmd-oke:rehearsed"
ROUTER_KEY = "llmd-oke:rehearsedRouter"
"""Config key with the release whose router is rehearsed in place of the stack's, for programs that read no stack."""
RANDOM_WEIGHTS_KEY = "llmd-oke:randomWeights"

_PYTHON_FILES = ("__main__.py",)
_NOT_COPIED = (".*", "stacks", "node_modules", "reports", "*.md")
_NODE_MODULES = "node_modules"
_PROJECT_FILE = "Pulumi.yaml"
PYTHON = "python"

OCI_FOLDER = "oci"
"""Name of the folder, in a local cluster's folder, with the journal of the stand-in for OCI."""


@dataclass(frozen=True)
class ProjectCopy:
    """Folders of a rehearsed stack's Pulumi project, state backend and Pulumi home, and the file with the
    passphrase.
    """

    folder: Path
    backend: Path
    pulumi_home: Path
    passphrase_file: Path

    def variables(self) -> dict[str, str]:
        """Return the environment variables that direct the engine to the copied project, its state backend and its
        passphrase.
        """
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
    """Update a rehearsal's copy of the user's project in the folder `kind` and return the copy's paths.

    Args:
        project: folder of the user's project.
        stack: name of the stack.
        state: folder of the local cluster.
        router: name of the release whose router is rehearsed; written as an override if it isn't the stack's own.
        kind: `DEPLOYED`, `PREVIEWED` or `BEFORE`.
        cut: stack with so few servers that they fit this machine's memory; None if all servers of the stack are
            rehearsed.
    """
    copy = ProjectCopy(state / kind, state / "backend", state / "pulumi", state / "passphrase")
    for folder in (copy.folder / "stacks", copy.backend, copy.pulumi_home):
        folder.mkdir(parents=True, exist_ok=True)
    if runtime(project) == PYTHON:
        for name in (_PROJECT_FILE, *_PYTHON_FILES):
            shutil.copyfile(project / name, copy.folder / name)
    else:
        _copy_other_program(project, copy.folder)
    copy_values(project, copy.folder)
    # Pulumi logs each operation in full detail, compressed and encrypted. Measured: 2.5 s of an update of 13 s without
    # changes, and up to 500 MB. A file in the place of its log folder prevents that.
    logs = copy.pulumi_home / "logs"
    if not logs.exists():
        logs.touch()
    if not copy.passphrase_file.exists():
        write_private(copy.passphrase_file, secrets.token_urlsafe(32))
    salt_source = stack_file(state / DEPLOYED if kind == PREVIEWED else copy.folder, stack)
    of_program = {} if (name := project_name(project)) == PACKAGE else settings(project, stack)
    own: dict[str, Any] = {key: value for key, value in of_program.items() if key.startswith(f"{name}:")}
    written = read(project, stack)
    own |= source_credentials.settings(written, setting_names(project, stack), state)
    _write_stack_file(written, own, stack_file(copy.folder, stack), router, salt_source, state, cut)
    return copy


def runtime(project: Path) -> str:
    """Return the name of the language runtime in a project's Pulumi.yaml, such as `nodejs`; `python` if it names none.

    Raises:
        KitError: Pulumi.yaml can't be read.
    """
    document: dict[str, Any] = yaml_files.read(project / _PROJECT_FILE).value or {}
    written: Any = document.get("runtime") or PYTHON
    return str(cast("dict[str, Any]", written).get("name") if isinstance(written, dict) else written)


def _copy_other_program(project: Path, copy: Path) -> None:
    """Copy a program in another language than Python and link its installed packages. Its Pulumi.yaml doesn't name the
    kit's component package any more, which the rehearsal has among the engine's plug-ins.
    """
    shutil.copytree(project, copy, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED), dirs_exist_ok=True)
    packages = project / _NODE_MODULES
    if packages.is_dir() and not (copy / _NODE_MODULES).exists():
        (copy / _NODE_MODULES).symlink_to(packages.resolve())
    document: dict[str, Any] = yaml_files.read(project / _PROJECT_FILE).value
    named: dict[str, Any] = document.get("packages") or {}
    others = {name: source for name, source in named.items() if name != PACKAGE}
    (copy / _PROJECT_FILE).write_text(text_of({**document, "packages": others}))


def install_package(pulumi_home: Path) -> None:
    """Install the kit's Pulumi package of components as a plug-in of an engine, which starts it with this Python."""
    folder = pulumi_home / "plugins" / f"resource-{PACKAGE}-v{__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"pulumi-resource-{PACKAGE}"
    start = "from llmd_oke.package import serve; serve()"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(start)} "$@"\n')
    program.chmod(0o755)


def copy_values(project: Path, copy: Path) -> None:
    """Make the `values/` of the folder `copy` equal to that of a project, and let this process read the project's
    entries from then on. Running programs may read `copy`: unchanged files aren't touched, others are replaced as a
    whole.

    Links that lead out of the project's `values/` aren't followed; planning has refused files that aren't entries.
    """
    open_project(project)
    entries = {
        file.path
        for file in project_values().files
        if not (file.outside or file.is_folder) and file.path.endswith(".yaml")
    }
    for path in entries:
        source, target = project_values().folder / path, copy / VALUES / path
        if not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
            target.parent.mkdir(parents=True, exist_ok=True)
            new = target.with_name(f".{target.name}.new")
            shutil.copyfile(source, new)
            new.replace(target)
    for stale in (copy / VALUES).rglob("*.yaml"):
        if str(stale.relative_to(copy / VALUES)) not in entries:
            stale.unlink()


def _write_stack_file(
    written: dict[str, Any],
    own: Mapping[str, Any],
    target: Path,
    router: str,
    salt_source: Path,
    state: Path,
    cut: CutStack | None,
) -> None:
    """Write the stack file of the project's copy, with the encryption salt of the last update's stack file. `written`
    is the stack as its file and those that it builds on have it, `own` the config of the project's own program and the
    credentials of model sources.
    """
    stack: dict[str, Any] = front_door.rehearsed_front_door(front_door.rehearsed_gateway(written))
    rehearsed: dict[str, Any] = {REHEARSED_KEY: True}
    if cut:
        stack = cut.written_into(stack)
        rehearsed[RANDOM_WEIGHTS_KEY] = True
    override: dict[str, Any] = stack.get("override") or {}
    if router != override.get("router", stack.get("release")):
        stack = {**stack, "override": {**override, "router": router}}
        rehearsed[ROUTER_KEY] = router
    deployed: dict[str, Any] = yaml_files.read(salt_source).value if salt_source.exists() else {}
    salt = {key: deployed[key] for key in ("encryptionsalt",) if key in deployed}
    config = {**own, CONFIG_KEY: stack, **rehearsed, **front_door.settings(stack, state)}
    target.write_text(text_of({**salt, "config": config}))


def checkpoint_file(state: Path, stack: str, kinds: Sequence[str] = (DEPLOYED, PREVIEWED)) -> Path:
    """Return the path of a stack's state file in the rehearsal's backend. The path contains the name of the project,
    which is read from the first existing copy of the project among `kinds`; before the project was copied the file
    doesn't exist.
    """
    copies = (state / kind for kind in kinds)
    name = next((project_name(copy) for copy in copies if (copy / "Pulumi.yaml").is_file()), "none")
    return state / "backend" / ".pulumi" / "stacks" / name / f"{stack}.json"


def journal_file(state: Path) -> Path:
    """Return the path of the journal of the stand-in for OCI, which has one line for each created, changed or deleted
    resource.
    """
    return state / OCI_FOLDER / "journal.jsonl"


def latest(checkpoint: Path) -> Mapping[str, Any]:
    """Return the state of a stack that the engine wrote last; empty if the state file is missing.

    Raises:
        KitError: the state file is truncated or invalid.
    """
    if not checkpoint.is_file():
        return {}
    try:
        return json.loads(checkpoint.read_text())["checkpoint"].get("latest") or {}
    except ValueError as error:
        message = f"{checkpoint} is not whole, as where its disk was full: {error}"
        raise KitError(message, "Make room on its disk and run it again: it goes on from the copy beside it.") from None


def mend(checkpoint: Path, over: str) -> Path | None:
    """Replace the engine's state file, if it is truncated, by its newest valid copy and return the path of that copy;
    None if the state file is valid or missing. `over` is the command line that starts the rehearsal over.

    On a full disk the engine leaves a partly written file (observed with Pulumi 3.250). It keeps the previous state in
    a `.bak` file, and the state after each update in the stack's history.

    Raises:
        KitError: no copy is valid either.
    """
    if not checkpoint.is_file() or _is_whole(checkpoint):
        return None
    stack = checkpoint.stem
    history = checkpoint.parents[2] / "history" / checkpoint.parent.name / stack
    copies = [checkpoint.with_name(f"{checkpoint.name}.bak"), *sorted(history.glob("*.checkpoint.json"), reverse=True)]
    whole = next((copy for copy in copies if copy.is_file() and _is_whole(copy)), None)
    if whole is None:
        raise KitError(f"{checkpoint} is not whole, as where its disk was full, and no copy is.", f"Start over: {over}")
    shutil.copyfile(whole, checkpoint)
    return whole


def _is_whole(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_text()), dict)
    except ValueError:
        return False


def in_oci(journal: Path) -> dict[str, dict[str, Any]]:
    """Return the resources of the stand-in for OCI by OCID, read from its journal; empty if there is no journal."""
    resources: dict[str, dict[str, Any]] = {}
    for line in journal.read_text().splitlines() if journal.is_file() else ():
        record: dict[str, Any] = json.loads(line)
        if "token" in record:
            resources[record["id"]] = record
        else:
            resources.pop(record["id"], None)
    return resources
