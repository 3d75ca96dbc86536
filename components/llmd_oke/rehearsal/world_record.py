"""What a world says of itself in `<state>/world.json`, and where its files lie."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from llmd_oke.rehearsal.host_processes import Identity

Phase = Literal["starting", "ready", "stopping", "failed"]


@dataclass(frozen=True)
class ProcessRecord:
    """A process of a world: its number inside the world, the seconds from its latest start until it was ready, and how
    often it was started again since the world's start.
    """

    pid: int
    ready_after_s: float | None = None
    restarts: int = 0


@dataclass(frozen=True)
class WorldRecord:
    """The state of a world as its first process wrote it last.

    `supervisor` and `launcher` are the world's first process and the `unshare` that made it, as the host sees them.
    `failure` says, once the phase is `failed`, which process failed and how, with the end of its log.
    """

    phase: Phase
    supervisor: Identity
    launcher_pid: int
    user_namespace: bool
    namespaces: Mapping[str, str]
    spec_digest: str
    started_at: str
    processes: Mapping[str, ProcessRecord] = field(default_factory=dict[str, ProcessRecord])
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    failure: str | None = None


@dataclass(frozen=True)
class StateFolder:
    """The files of one world."""

    path: Path

    @property
    def record_file(self) -> Path:
        """Where the world says how it is."""
        return self.path / "world.json"

    @property
    def spec_file(self) -> Path:
        """What the world was asked to be."""
        return self.path / "world-spec.json"

    @property
    def lock_file(self) -> Path:
        """Held while the world is started or stopped."""
        return self.path / "world.lock"

    @property
    def logs(self) -> Path:
        """One log for each process."""
        return self.path / "logs"

    @property
    def home(self) -> Path:
        """The home folder of every process in the world."""
        return self.path / "home"

    def log_file(self, process: str) -> Path:
        """The log of one process; the supervisor of the world logs as `supervisor`."""
        return self.logs / f"{process}.log"

    def write_record(self, record: WorldRecord) -> None:
        """Replace the record in one step, so that a reader never sees half of it."""
        written = self.record_file.with_suffix(".json.new")
        written.write_text(json.dumps(asdict(record), indent=2))
        written.replace(self.record_file)

    def read_record(self) -> WorldRecord | None:
        """The record, or None when there is none that can be read."""
        try:
            tree: dict[str, Any] = json.loads(self.record_file.read_text())
            supervisor = Identity(**tree.pop("supervisor"))
            processes = {name: ProcessRecord(**values) for name, values in tree.pop("processes").items()}
            return WorldRecord(supervisor=supervisor, processes=processes, **tree)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def end_of_log(path: Path, lines: int = 12, limit_bytes: int = 16_384) -> str:
    """The last lines of a log, indented, for messages."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - limit_bytes))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (empty log)"
