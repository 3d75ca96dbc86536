"""What a container says at its end: the termination message, as kubelet takes it."""

from pathlib import Path

from lightkube.models.core_v1 import Container

from llmd_oke.rehearsal.pods.sandboxes import Mount

DEFAULT_PATH = "/dev/termination-log"
LONGEST_BYTES = 4096
LONGEST_LOG_BYTES = 2048
LONGEST_LOG_LINES = 80
"""Limits of kubelet: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/."""


def empty_file(path: Path) -> Path:
    """Makes the file that a container's run may write its last words to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def mount(model: Container, file: Path) -> Mount:
    """Shows the file where the container expects it."""
    return Mount(file, model.terminationMessagePath or DEFAULT_PATH)


def last_words(model: Container, code: int, file: Path, log: Path) -> str | None:
    """What the container wrote there or, where it failed without and asks for that, the end of its log."""
    said = _end(file, LONGEST_BYTES)
    if not said and code and model.terminationMessagePolicy == "FallbackToLogsOnError":
        said = "".join(_end(log, LONGEST_LOG_BYTES).splitlines(keepends=True)[-LONGEST_LOG_LINES:])
    return said or None


def _end(path: Path, longest_bytes: int) -> str:
    try:
        return path.read_bytes()[-longest_bytes:].decode(errors="replace")
    except FileNotFoundError:
        return ""
