"""Restoration of a stack's Pulumi state from an archive, and its move to another state backend."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from llmd_base.errors import KitError
from llmd_base.progress import Progress

from llmd_oke.config import yaml_files
from llmd_oke.config.load import project_name, stack_file
from llmd_oke.operations.backend import PASSPHRASE, Terminal, environment, require_passphrase
from llmd_oke.operations.pulumi_cli import NoStackError, PulumiCli
from llmd_oke.operations.recovery import pending_operations
from llmd_oke.operations.state_archives import (
    StateArchive,
    StateDifference,
    compare,
    pack,
    resources,
    secrets_provider,
)

_ENCRYPTION = re.compile(r"^(encryptionsalt|encryptedkey|secretsprovider):[ ]*(.+?)[ ]*$", re.MULTILINE)
"""Lines of a stack file by which Pulumi decrypts its secrets and those of the state."""

_LONGEST_LIST = 10


@dataclass(frozen=True)
class Restoration:
    """Comparison of an archive with the backend and the project, from which a stack's state can be restored.

    `present` is the backend's state, None without such a stack; `lost` are the pending operations of both states, which
    Pulumi doesn't import. `writes_stack_file` tells whether a restoration replaces the stack file.
    """

    archive: StateArchive
    present: Mapping[str, Any] | None
    difference: StateDifference
    lost: tuple[str, ...]
    writes_stack_file: bool

    @property
    def needed(self) -> bool:
        """True if the backend or the stack file differs from the archive, so that a restoration would change
        something.
        """
        return self.present is None or bool(self.difference) or self.writes_stack_file


def judge_restoration(
    pulumi: PulumiCli, archive: StateArchive, *, overwrite: bool = False, with_stack_file: bool = False
) -> Restoration:
    """Compare an archive with the backend and the project, and return what a restoration would change, without a
    change.

    Args:
        pulumi: the CLI and the stack.
        archive: the archive.
        overwrite: allow that a state which was written after the archive's is replaced.
        with_stack_file: replace the stack file that is there by the archive's.

    Raises:
        KitError: the archive is another stack's, the backend's state is newer, or the stack file that is there can't
            decrypt the archive's secrets.
    """
    archive.require(project_name(pulumi.project), pulumi.stack.rpartition("/")[2])
    own = stack_file(pulumi.project, pulumi.stack)
    content = own.read_text(encoding="utf-8") if own.is_file() else ""
    known = _encryption(content)
    if known and not with_stack_file and known != _encryption(archive.stack_file):
        raise KitError(
            f"{own} has another encryption than the archive's stack file: an update couldn't read the state's secrets.",
            "--stack-file puts the archive's stack file in its place.",
        )
    present = _present(pulumi)
    difference = compare(archive, present or {"deployment": None})
    if present is not None and difference and difference.newer and not overwrite:
        names = "\n".join(f"  {line}" for line in _shortened(difference.lines()))
        raise KitError(
            f"The backend's state is newer than the archive's, of {archive.manifest.written}:\n{names}",
            "--overwrite replaces it, after a backup; resources that only the backend knows stay in OCI as orphans.",
        )
    pending = pending_operations((present or {}).get("deployment") or {})
    lost = (*archive.manifest.pending, *(str(item) for item in pending if str(item) not in archive.manifest.pending))
    writes = bool(archive.stack_file) and (content != archive.stack_file if with_stack_file else not content)
    return Restoration(archive, present, difference, lost, writes)


def restore(pulumi: PulumiCli, judged: Restoration, terminal: Terminal | None = None) -> None:
    """Restore a stack's state from an archive, and the stack file if the comparison said so; on an error both stay as
    they were.

    Raises:
        KitError: the backend has changed since the judgement, the passphrase is missing or wrong, an engine holds the
            stack's lock, or the backend has another state afterwards.
    """
    own, document = stack_file(pulumi.project, pulumi.stack), judged.archive.document
    require_passphrase(judged.archive.manifest.secrets, terminal, new=False)
    before = own.read_text(encoding="utf-8") if own.is_file() else None
    if judged.writes_stack_file:
        yaml_files.write_whole(own, judged.archive.stack_file)
    created = False
    try:
        if judged.present is None:
            pulumi.create_stack_unasked()
            created = True
        elif _present(pulumi) != judged.present:
            raise KitError("Another engine has changed the stack meanwhile.", "Run the command again.")
        pulumi.import_state(document)
        if difference := compare(judged.archive, pulumi.export()):
            raise KitError(f"The backend has another state now: {', '.join(_shortened(difference.lines()))}.")
    except BaseException:
        if created:
            pulumi.remove_stack()
        if before is None:
            own.unlink(missing_ok=True)
        elif own.read_text(encoding="utf-8") != before:
            yaml_files.write_whole(own, before)
        raise


@dataclass(frozen=True)
class MoveOptions:
    """Options of a move to another backend.

    `provider` is the new provider of secrets: `passphrase`, `default` (Pulumi Cloud's own) or the URL of a key; None
    keeps provider and key. `passphrase` is the file with the passphrase for the provider of that name. With `keep` the
    stack stays in its old backend too.
    """

    url: str
    provider: str | None = None
    passphrase: Path | None = None
    keep: bool = False


def refuse_move(pulumi: PulumiCli, options: MoveOptions) -> None:
    """Refuse a move that can't be done, before anything is changed.

    Raises:
        KitError: the state has pending operations, the backend is the same, or the secrets can't be encrypted anew.
    """
    document = pulumi.export()
    if pending := pending_operations(document["deployment"] or {}):
        names = ", ".join(_shortened([str(item) for item in pending]))
        raise KitError(
            f"An engine had begun and not ended: {names}. Pulumi drops such operations in a move.",
            f"Settle them: llmd-oke recover --stack {pulumi.stack} --yes",
        )
    if pulumi.backend_url().rstrip("/") == options.url.rstrip("/"):
        raise KitError(f"The stack is in {options.url} already.", "Name another backend: --to URL")
    if secrets_provider(document) == "service" and options.provider in {None, "default"}:
        raise KitError(
            "Pulumi Cloud itself encrypts the stack's secrets, so that another backend can't read them.",
            f"First: pulumi stack change-secrets-provider passphrase --stack {pulumi.stack}",
        )
    if options.provider == "passphrase" and options.passphrase is None:
        raise KitError("The new passphrase is missing.", "--new-passphrase-file FILE names a file with it.")
    if options.passphrase and not options.passphrase.read_text().strip():
        raise KitError(f"{options.passphrase} is empty.", "Its first line is the new passphrase.")


def move(pulumi: PulumiCli, options: MoveOptions, progress: Progress, terminal: Terminal | None = None) -> StateArchive:
    """Move a stack's state to another backend; return the archive of the state that was moved.

    The new backend gets the state, encrypted anew if wanted, in a copy of the project; both states are compared with
    their secrets in memory; then the stack file is replaced and the stack removed from its old backend.

    Raises:
        KitError: as for `refuse_move`; the new backend has another state of that stack; the states differ afterwards;
            or an engine holds the stack's lock. The old backend and the stack file are left as they were.
    """
    refuse_move(pulumi, options)
    archive = pack(pulumi)
    require_passphrase(archive.manifest.secrets, terminal, new=False)
    own = stack_file(pulumi.project, pulumi.stack)
    with TemporaryDirectory(prefix="llmd-oke-") as folder:  # mode 0700
        copy = Path(folder)
        (copy / own.parent.name).mkdir()
        copyfile(pulumi.project / "Pulumi.yaml", copy / "Pulumi.yaml")
        moved = stack_file(copy, pulumi.stack)
        copyfile(own, moved)
        there = replace(pulumi, project=copy, _exported=[])
        progress.step(f"writing the state to {options.url}")
        with environment({"PULUMI_BACKEND_URL": options.url}):
            created = _import_into(there, archive)
        try:
            with environment({"PULUMI_BACKEND_URL": options.url}):
                _encrypt_anew(there, options, archive.manifest.secrets, progress)
            _require_same(pulumi, there, options)
            before = own.read_text(encoding="utf-8")
            yaml_files.write_whole(own, moved.read_text(encoding="utf-8"))
            try:
                if not options.keep:
                    progress.step("removing the stack from its old backend")
                    pulumi.remove_stack()
            except BaseException:
                yaml_files.write_whole(own, before)
                raise
        except BaseException:
            if created:
                with environment({"PULUMI_BACKEND_URL": options.url}):
                    there.remove_stack()
            raise
    return archive


def _import_into(there: PulumiCli, archive: StateArchive) -> bool:
    """Import an archive's state into a backend that has no other state of the stack; tell whether the stack was
    created.
    """
    present = _present(there)
    if present is not None and resources(present) and compare(archive, present):
        raise KitError(
            f"The new backend has a stack {there.stack} with {len(resources(present))} resources already.",
            "Remove or rename that one, or choose another backend.",
        )
    created = present is None
    if created:
        there.create_stack_unasked()
    try:
        there.import_state(archive.document)
    except BaseException:
        if created:
            there.remove_stack()
        raise
    return created


def _encrypt_anew(there: PulumiCli, options: MoveOptions, old: str, progress: Progress) -> None:
    if options.provider is None:
        return
    progress.step("encrypting the secrets anew")
    if old == "passphrase":
        there.change_secrets_provider(options.provider, options.passphrase)
    else:
        with environment(_new_passphrase(options)):
            there.change_secrets_provider(options.provider)


def _new_passphrase(options: MoveOptions) -> Mapping[str, str | None]:
    if options.passphrase is None:
        return {}
    return {PASSPHRASE: None, f"{PASSPHRASE}_FILE": str(options.passphrase.resolve())}


def _require_same(pulumi: PulumiCli, there: PulumiCli, options: MoveOptions) -> None:
    """Require that both backends have the same resources with the same secrets."""
    old = resources(pulumi.export_with_secrets())
    with environment({"PULUMI_BACKEND_URL": options.url, **_new_passphrase(options)}):
        new = resources(there.export_with_secrets())
    if old != new:
        raise KitError(
            "The state in the new backend isn't the old one: another engine may have changed the stack meanwhile.",
            "Nothing was moved. Run the command again once no engine works on the stack.",
        )


def _present(pulumi: PulumiCli) -> dict[str, Any] | None:
    """Return the stack's present state in the backend; None without such a stack."""
    try:
        return replace(pulumi, _exported=[]).export()
    except NoStackError:
        return None


def _encryption(text: str) -> Mapping[str, str]:
    return dict(_ENCRYPTION.findall(text))


def _shortened(lines: Sequence[str]) -> list[str]:
    shown = list(lines[:_LONGEST_LIST])
    return [*shown, f"and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else shown
