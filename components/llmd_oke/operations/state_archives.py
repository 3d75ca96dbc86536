"""Archives of a stack's state: one file with the encrypted state, the stack file, and a manifest with checksums.

An archive contains what `pulumi stack export` returns, in which secrets are encrypted; one in plain text is refused.
"""

import gzip
import hashlib
import io
import json
import tarfile
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, cast

from llmd_base.errors import KitError
from pydantic import TypeAdapter, ValidationError

from llmd_oke.config.load import project_name, stack_file
from llmd_oke.operations.previews import ResourceChange
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.operations.recovery import State, pending_operations
from llmd_oke.operations.redaction import IS_SECRET, without_secrets

FORMAT = "llmd-oke state 1"
"""First words of each manifest: name and version of the archive's format."""

MAX_BYTES = 512 * 2**20
"""Largest size of a file in an archive: the reference stack's state has 1.2 MiB."""

_MANIFEST, _STATE, _STACK_FILE, _PROJECT = "manifest.json", "state.json", "stack.yaml", "project.yaml"
_PROVIDER_TYPE = "pulumi:providers:"


@dataclass(frozen=True)
class Manifest:
    """Manifest of a state archive: the stack, when its state was written and packed, the programs that it was made with
    (`versions`), and the SHA-256 of each file.

    `written` is the time at which an engine last wrote the state, `secrets` the type of the provider that encrypted its
    secrets (`passphrase`, `cloud`, `service`), empty without one.
    """

    format: str
    project: str
    stack: str
    backend: str
    made: str
    written: str
    secrets: str
    resources: int
    pending: tuple[str, ...]
    versions: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True)
class StateArchive:
    """A stack's state with its stack file and the project's Pulumi.yaml."""

    manifest: Manifest
    files: Mapping[str, bytes] = field(repr=False)

    @property
    def document(self) -> dict[str, Any]:
        """State of the stack as `pulumi stack export` returned it."""
        return cast("dict[str, Any]", json.loads(self.files[_STATE]))

    @property
    def stack_file(self) -> str:
        """Text of the stack file, whose secrets are encrypted; empty if the project had none."""
        return self.files[_STACK_FILE].decode()

    def require(self, project: str, stack: str) -> None:
        """Require that the archive's state is that of a stack, by the names of project and stack.

        Raises:
            KitError: it is that of another project or stack.
        """
        own = self.manifest
        if (own.project, own.stack) != (project, stack):
            raise KitError(
                f"The archive has the state of {own.project}/{own.stack}, not of {project}/{stack}.",
                "A state belongs to its stack: the names are part of every resource's URN.",
            )

    def write(self, file: Path) -> None:
        """Write the archive as tar.gz of mode 0600: all of it, or nothing."""
        everything = {_MANIFEST: json.dumps(asdict(self.manifest), indent=1).encode(), **self.files}
        with NamedTemporaryFile(dir=file.parent, prefix=".llmd-oke-", delete=False) as target:
            part = Path(target.name)
        try:
            with tarfile.open(part, "w:gz") as archive:
                for path, content in everything.items():
                    entry = tarfile.TarInfo(path)
                    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                    archive.addfile(entry, io.BytesIO(content))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def pack(pulumi: PulumiCli) -> StateArchive:
    """Return an archive of the stack's present state. Nothing is changed, and an engine that runs isn't waited for.

    Raises:
        KitError: the state can't be read, or has a secret in plain text.
    """
    document = pulumi.export()
    state: State = document["deployment"] or {}
    _refuse_plain_text(document)
    stack, own = pulumi.stack.rpartition("/")[2], stack_file(pulumi.project, pulumi.stack)
    files = {
        _STATE: json.dumps(document).encode(),
        _STACK_FILE: own.read_bytes() if own.is_file() else b"",
        _PROJECT: (pulumi.project / "Pulumi.yaml").read_bytes(),
    }
    manifest = Manifest(
        FORMAT,
        project_name(pulumi.project),
        stack,
        pulumi.backend_url(),
        datetime.now(UTC).isoformat(timespec="seconds"),
        written(document),
        secrets_provider(document),
        len(state.get("resources") or ()),
        tuple(str(pending) for pending in pending_operations(state)),
        _versions(state),
        {path: hashlib.sha256(content).hexdigest() for path, content in files.items()},
    )
    return StateArchive(manifest, files)


def read(file: Path) -> StateArchive:
    """Return the archive in a file, after a check of all its checksums.

    Raises:
        KitError: the file is no archive of a state, is incomplete or damaged, or has a format that this version of the
            kit doesn't know.
    """
    try:
        contents = _contents(file)
        manifest = TypeAdapter(Manifest).validate_json(contents.pop(_MANIFEST))
    except (tarfile.TarError, EOFError, zlib.error, OSError, KeyError, ValidationError) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
            raise
        raise KitError(
            f"{file} is no whole archive of a state: {_reason(error)}.", "`llmd-oke state backup` writes such archives."
        ) from error
    if manifest.format != FORMAT:
        raise KitError(
            f"{file} has the format {manifest.format!r}; this version of the kit reads {FORMAT!r}.",
            f"It was written by llmd-oke {manifest.versions.get('llmd-oke', 'unknown')}: use that version.",
        )
    needed = {_STATE, _STACK_FILE, _PROJECT}
    damaged = [
        path
        for path in sorted(needed | manifest.files.keys())
        if hashlib.sha256(contents.get(path, b"")).hexdigest() != manifest.files.get(path)
    ]
    if damaged:
        raise KitError(f"{file} is damaged: {', '.join(damaged)} differs from its checksum.", "Take another backup.")
    archive = StateArchive(manifest, contents)
    _refuse_foreign(archive, file)
    return archive


def _contents(file: Path) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    with gzip.open(file) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        for entry in archive:
            if entry.name not in {_MANIFEST, _STATE, _STACK_FILE, _PROJECT}:
                continue
            stored = archive.extractfile(entry)
            if stored is None or entry.size > MAX_BYTES:
                raise tarfile.TarError(f"{entry.name} is no file of at most {MAX_BYTES // 2**20} MiB")
            contents[entry.name] = stored.read()
        stream.read(tarfile.RECORDSIZE + 1)  # the end, whose checksum tells whether all of it is there
    return contents


def _reason(error: Exception) -> str:
    match error:
        case KeyError():
            return f"it has no {error.args[0]}"
        case ValidationError():
            return f"its {_MANIFEST} is none of a state"
        case _:
            return str(error) or type(error).__name__


def _refuse_foreign(archive: StateArchive, file: Path) -> None:
    """Refuse a state with resources of another stack than the manifest's, or that is none."""
    prefix = f"urn:pulumi:{archive.manifest.stack}::{archive.manifest.project}::"
    try:
        deployment: State = archive.document["deployment"] or {}
        urns = [str(item["urn"]) for item in deployment.get("resources") or ()]
        foreign = [urn for urn in urns if not urn.startswith(prefix)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KitError(f"{file} has no state of a stack in it.") from error
    if foreign:
        raise KitError(f"{file} has resources of another stack than its manifest says: {foreign[0]}.")


def written(document: Mapping[str, Any]) -> str:
    """Return the time at which an engine last wrote a state, in ISO format with UTC; empty for an empty state."""
    manifest: Mapping[str, Any] = _deployment(document).get("manifest") or {}
    try:
        moment = datetime.fromisoformat(str(manifest.get("time", "")))
    except ValueError:
        return ""
    return moment.astimezone(UTC).isoformat(timespec="microseconds") if moment.tzinfo and moment.year > 1 else ""


def secrets_provider(document: Mapping[str, Any]) -> str:
    """Return the type of the provider that encrypted a state's secrets; empty if the state has none."""
    provider: Mapping[str, Any] = _deployment(document).get("secrets_providers") or {}
    return str(provider.get("type", ""))


def resources(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the resources of a state."""
    return list(_deployment(document).get("resources") or ())


def _deployment(document: Mapping[str, Any]) -> State:
    deployment: State | None = document.get("deployment")
    return deployment or {}


def _versions(state: State) -> dict[str, str]:
    """Return the versions of the kit, of the engine that wrote the state, and of the plug-ins of its providers."""
    manifest: Mapping[str, Any] = state.get("manifest") or {}
    plugins: dict[str, str] = {}
    for item in state.get("resources") or ():
        inputs: Mapping[str, Any] = item.get("inputs") or {}
        if str(item.get("type", "")).startswith(_PROVIDER_TYPE) and inputs.get("version"):
            plugins[f"plug-in {str(item['type']).removeprefix(_PROVIDER_TYPE)}"] = str(inputs["version"])
    return {"llmd-oke": metadata.version("llmd-oke"), "pulumi": str(manifest.get("version") or "unknown"), **plugins}


def _refuse_plain_text(value: Any) -> None:
    """Refuse a state that has a secret in plain text.

    Raises:
        KitError: it has one.
    """
    match value:
        case {"4dabf18193072939515e22adb298388d": mark, **rest} if mark == IS_SECRET:
            if "plaintext" in rest:
                raise KitError("The state has a secret in plain text, which no archive may have.")
        case dict():
            for item in cast("dict[str, Any]", value).values():
                _refuse_plain_text(item)
        case list():
            for item in cast("list[Any]", value):
                _refuse_plain_text(item)
        case _:
            pass


@dataclass(frozen=True)
class StateDifference:
    """Differences between an archive's state and the backend's: short names of the resources that only the backend or
    only the archive knows, and of those that differ. Values of secrets aren't compared.

    `newer` tells whether the backend's state was written after the archive's.
    """

    newer: bool = False
    only_in_backend: tuple[str, ...] = ()
    only_in_archive: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.only_in_backend or self.only_in_archive or self.changed)

    def lines(self) -> Sequence[str]:
        """Return a line for each resource that differs."""
        return (
            *(f"only in the backend: {name}" for name in self.only_in_backend),
            *(f"only in the archive: {name}" for name in self.only_in_archive),
            *(f"differs: {name}" for name in self.changed),
        )


def compare(archive: StateArchive, present: Mapping[str, Any]) -> StateDifference:
    """Return the differences between an archive's state and the backend's (`present`, of `pulumi stack export`)."""
    packed, there = _by_identity(archive.document), _by_identity(present)
    return StateDifference(
        written(present) > archive.manifest.written,
        tuple(_short_name(key) for key in there if key not in packed),
        tuple(_short_name(key) for key in packed if key not in there),
        tuple(_short_name(key) for key, item in there.items() if key in packed and packed[key] != item),
    )


def _by_identity(document: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return a state's resources by URN and ID, with a placeholder for each secret."""
    items = resources(without_secrets(document))
    return {(str(item["urn"]), str(item.get("id", ""))): item for item in items}


def _short_name(key: tuple[str, str]) -> str:
    return ResourceChange("", key[0]).short_name
