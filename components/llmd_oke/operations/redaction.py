"""States and stack files without secrets, for previews of unreviewed code, such as that of pull requests.

A program that previews a stack can decrypt its state: Pulumi Cloud's `Stack Read` includes `stack:decrypt` (pulumi.com,
Permission Sets), and self-managed backends need the passphrase. So a job that runs only code of `main` writes the state
without secrets, and the preview uses that state in a temporary backend.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import yaml
from llmd_base.errors import KitError

from llmd_oke.config import yaml_files
from llmd_oke.config.cluster import KUBECONFIG_CREDENTIALS, read_kubeconfig
from llmd_oke.config.load import stack_file
from llmd_oke.operations.backend import PASSPHRASE, environment
from llmd_oke.operations.guards import steps
from llmd_oke.operations.previews import Preview, ResourceChange
from llmd_oke.operations.pulumi_cli import PulumiCli, pulumi_cli

SIGNATURE = "4dabf18193072939515e22adb298388d"
IS_SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - marks secrets, is none
"""Key and value by which a state marks a secret (Pulumi 3.250, sdk/go/common/resource/sig)."""

PLACEHOLDER = "https://secret.invalid/left-out-of-previews"
"""Replacement of each secret text: a URL, because some secrets must be URLs."""

_SHOWN = "[secret]"
"""Text that previews show instead of a secret."""

_OF_PASSPHRASE = ("encryptionsalt", "encryptedkey", "secretsprovider")


def without_secrets(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state (result of `pulumi stack export --show-secrets`) in which each secret is replaced by a placeholder
    of the same JSON type. A kubeconfig without credentials is kept, so that a preview can reach the cluster.
    """
    deployment = cast("dict[str, Any]", _public(document["deployment"] or {}))
    deployment.pop("secrets_providers", None)
    return {**document, "deployment": {**deployment, "pending_operations": []}}


def _public(value: Any) -> Any:
    """Return a part of a state in which secrets are replaced by placeholders."""
    match value:
        case {"4dabf18193072939515e22adb298388d": mark, **rest} if mark == IS_SECRET:
            secret = json.loads(str(rest["plaintext"])) if "plaintext" in rest else ""
            return {SIGNATURE: IS_SECRET, "plaintext": json.dumps(_placeholder(secret))}
        case dict():
            return {key: _public(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_public(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _placeholder(value: Any) -> Any:
    match value:
        case dict():
            return {key: _placeholder(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_placeholder(item) for item in cast("list[Any]", value)]
        case str():
            return value if _lets_nobody_in(value) else PLACEHOLDER
        case bool() | None:
            return value
        case _:
            return 0


def _lets_nobody_in(text: str) -> bool:
    """Return True if a text is a kubeconfig without credentials."""
    if "clusters" not in text:
        return False
    try:
        return not KUBECONFIG_CREDENTIALS & set(read_kubeconfig(text).user)
    except KitError:
        return False


@contextmanager
def preview_project(project: Path, stack: str, states: Path) -> Generator[PulumiCli]:
    """Yield the CLI for a stack in a temporary copy of the project, with a temporary backend that has the states of the
    directory `states` (`STACK.json`, results of `without_secrets`). Secrets of the stack files become placeholders.

    Raises:
        KitError: the directory has no state of the stack, or a state can't be imported.
    """
    files = sorted(states.glob("*.json"))
    if stack not in {file.stem for file in files}:
        raise KitError(f"{states} has no {stack}.json.", f"llmd-oke pipeline state --stack {stack} --output FILE")
    with TemporaryDirectory(prefix="llmd-oke-") as folder:
        copy, backend = Path(folder) / "project", Path(folder) / "backend"
        backend.mkdir()
        _copy(project, copy)
        own = {"PULUMI_BACKEND_URL": f"file://{backend}", PASSPHRASE: "none", f"{PASSPHRASE}_FILE": None}
        with environment({**own, "PULUMI_ACCESS_TOKEN": None}):
            for file in files:
                cli = pulumi_cli(copy, file.stem)
                if cli.create_stack():
                    raise KitError(f"No stack {file.stem} for its preview.", "`pulumi stack init` said why.")
                cli.import_state(_encrypted(file, stack_file(copy, file.stem)))
            yield pulumi_cli(copy, stack)


def _encrypted(state: Path, settings: Path) -> dict[str, Any]:
    """Read a state without secrets, with the secrets provider of a new stack, whose salt `pulumi stack init` has
    written to the stack file `settings`.

    Raises:
        KitError: the file isn't a stack's state, or the stack file has no salt.
    """
    try:
        document = json.loads(state.read_text())
        salt = cast("dict[str, Any]", yaml_files.read(settings).value)["encryptionsalt"]
        provider = {"type": "passphrase", "state": {"salt": salt}}
        return {**document, "deployment": {**document["deployment"], "secrets_providers": provider}}
    except (ValueError, KeyError, TypeError) as error:
        raise KitError(f"{state} is no state of a stack.", "`llmd-oke pipeline state` writes one.") from error


def _copy(project: Path, copy: Path) -> None:
    """Copy a project: symbolic links to its files and to those that stack files build on, but stack files with
    placeholders for secrets.
    """
    own = stack_file(project, "any").parent
    copy.mkdir()
    for item in project.iterdir():
        if item != own:
            (copy / item.name).symlink_to(item.resolve())
    (copy / own.name).mkdir()
    stack_files = set(own.glob("Pulumi.*.yaml"))
    for file in set(own.iterdir()) - stack_files:
        (copy / own.name / file.name).symlink_to(file.resolve())
    for file in stack_files:
        document = cast("dict[str, Any]", yaml_files.read(file).value)
        public = {key: _unsealed(value) for key, value in document.items() if key not in _OF_PASSPHRASE}
        (copy / own.name / file.name).write_text(yaml.safe_dump(public, sort_keys=False))


def _unsealed(value: Any) -> Any:
    """Return a part of a stack file in which secrets are replaced by placeholders."""
    match value:
        case {"secure": _, **rest} if not rest:
            return PLACEHOLDER
        case dict():
            return {key: _unsealed(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_unsealed(item) for item in cast("list[Any]", value)]
        case _:
            return value


def compared(preview: Preview) -> tuple[Preview, int]:
    """Return a preview of a stack without secrets, without the changes that placeholders cause, and the number of
    resources with secrets, which therefore weren't compared.
    """
    changes = tuple(map(_without_placeholders, preview.changes))
    return replace(preview, changes=changes), sum(_has_secret(change.old) for change in preview.changes)


def _without_placeholders(change: ResourceChange) -> ResourceChange:
    if change.operation != "update" or not change.changed:
        return change
    known = tuple(path for path in change.changed if not _leads_to_secret(change.old, path))
    return replace(change, operation="update" if known else "same", changed=known)


def _leads_to_secret(inputs: Any, path: str) -> bool:
    current = inputs
    for step in steps(path):
        if current == _SHOWN:
            return True
        try:
            current = current[step]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(current == _SHOWN)


def _has_secret(value: Any) -> bool:
    match value:
        case dict():
            return any(map(_has_secret, cast("dict[str, Any]", value).values()))
        case list():
            return any(map(_has_secret, cast("list[Any]", value)))
        case _:
            return bool(value == _SHOWN)
