"""Where the engine of a test keeps its own files."""

from pathlib import Path


def home_without_logs(folder: Path) -> str:
    """A folder for `PULUMI_HOME` in which the engine can't keep its logs of each operation, a fifth of its work."""
    folder.mkdir()
    (folder / "logs").touch()
    return str(folder)
