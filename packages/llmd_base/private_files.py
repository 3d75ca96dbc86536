"""Files with secrets, which only their owner may read."""

from pathlib import Path


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file with mode 0600, whatever mode a file in its place has; programs that read it meanwhile see the old
    content or the new one.
    """
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    unfinished.touch(mode=0o600, exist_ok=False)
    unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
    unfinished.replace(path)
