"""Where the engine and the stand-in for OCI keep what they know, in a world's folder."""

from pathlib import Path

OCI_FOLDER = "oci"
"""What the stand-in for OCI keeps."""


def checkpoint_file(state: Path, stack: str) -> Path:
    """What the engine knows of a stack."""
    return state / "backend" / ".pulumi" / "stacks" / "llmd-oke" / f"{stack}.json"


def journal_file(state: Path) -> Path:
    """What the stand-in for OCI has made, changed and deleted, line by line."""
    return state / OCI_FOLDER / "journal.jsonl"
