"""Where the engine and the stand-in for OCI keep what they know, in a world's folder."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmd_oke.errors import KitError

OCI_FOLDER = "oci"
"""What the stand-in for OCI keeps."""


def checkpoint_file(state: Path, stack: str) -> Path:
    """What the engine knows of a stack."""
    return state / "backend" / ".pulumi" / "stacks" / "llmd-oke" / f"{stack}.json"


def journal_file(state: Path) -> Path:
    """What the stand-in for OCI has made, changed and deleted, line by line."""
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
    """Puts the newest whole copy in the place of a checkpoint that is not whole; that copy, None where it is whole.

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
    """What the stand-in for OCI has, by id, as its journal tells it; nothing where there is no journal."""
    there: dict[str, dict[str, Any]] = {}
    for line in journal.read_text().splitlines() if journal.is_file() else ():
        record: dict[str, Any] = json.loads(line)
        if "token" in record:
            there[record["id"]] = record
        else:
            there.pop(record["id"], None)
    return there
