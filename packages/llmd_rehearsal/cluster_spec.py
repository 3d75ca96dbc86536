"""The spec of a local cluster and its record: what it is to run, and how that goes, as files of its state folder.

Only the standard library is imported here, because the first process of every local cluster reads these.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from llmd_rehearsal.namespaces import ProcessIdentity

Phase = Literal["starting", "ready", "stopping", "failed"]

POLICIES_FILE = "network-policies"
"""File in the state folder with the reason why NetworkPolicies are not enforced; empty where they are."""

SELDOM_COLLECTED: Mapping[str, str] = {"GOGC": "400", "GOMEMLIMIT": "2GiB"}
"""Variables that make programs in Go collect garbage less often, below a limit. With them an API server
starts in 2.0 CPU-seconds, and in 4.1 by the defaults of Go.
"""

_END_BYTES = 16_384
"""Longest end of a log that a message shows."""

RESTARTS_WITHIN_S = 300.0
"""Wall seconds in which the restarts of a process are counted."""


@dataclass(frozen=True)
class HttpReady:
    """Ready when a GET of `url` is answered with 200.

    An https server is checked against `ca_file`, or not at all without it; `certificate_file` and `key_file` are the
    client's own.
    """

    url: str
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True)
class TcpReady:
    """Readiness of a process by a TCP port that accepts connections."""

    port: int
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class FileReady:
    """Readiness of a process by a file that it writes; one left by an earlier run is removed before the start."""

    path: str


Readiness = HttpReady | TcpReady | FileReady

_KINDS: dict[str, type[HttpReady] | type[TcpReady] | type[FileReady]] = {
    "http": HttpReady,
    "tcp": TcpReady,
    "file": FileReady,
}


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a local cluster.

    It starts when all processes named in `after` are ready, and stops before them. `env` is added to the local
    cluster's clean environment. Without `readiness` it counts as ready once started. A process that isn't ready after
    `ready_timeout_s` fails the start of the local cluster; one that has not ended `stop_timeout_s` after SIGTERM is
    killed. One that ends on its own is started again, at most `restarts` times within `RESTARTS_WITHIN_S`; the next end
    makes the local cluster fail.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    after: tuple[str, ...] = ()
    readiness: Readiness | None = None
    ready_timeout_s: float = 120
    stop_timeout_s: float = 3
    restarts: int = 0


@dataclass(frozen=True)
class ClusterSpec:
    """All that a local cluster is made of.

    `address` is where its own processes listen and what pods go through; names of processes in the local cluster are
    resolved by `nameserver`. `facts` are copied to the local cluster's status for whoever uses the local
    cluster (ports, versions); people are told of those whose names don't end in `digest`.
    """

    processes: tuple[ProcessSpec, ...]
    address: str = "10.244.0.1"
    nameserver: str = "10.96.0.10"
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        names: set[str] = set()
        for process in self.processes:
            if process.name in names:
                raise ValueError(f"two processes are named {process.name}")
            missing = [name for name in process.after if name not in names]
            if missing:
                raise ValueError(f"{process.name} starts after {', '.join(missing)}, which must be listed before it")
            names.add(process.name)

    def to_json(self) -> str:
        """The spec as text: the same spec gives the same text."""
        tree = asdict(self)
        for process, fields in zip(self.processes, tree["processes"], strict=True):
            if process.readiness is not None:
                kind = next(kind for kind, type_ in _KINDS.items() if isinstance(process.readiness, type_))
                fields["readiness"] = {kind: fields["readiness"]}
        return json.dumps(tree, indent=2, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "ClusterSpec":
        """The spec that `to_json` wrote."""
        tree: dict[str, Any] = json.loads(text)
        processes: list[ProcessSpec] = []
        rows: list[dict[str, Any]] = tree.pop("processes")
        for fields in rows:
            if fields["readiness"] is not None:
                ((kind, values),) = fields["readiness"].items()
                fields["readiness"] = _KINDS[kind](**values)
            fields |= {"argv": tuple(fields["argv"]), "after": tuple(fields["after"])}
            processes.append(ProcessSpec(**fields))
        return ClusterSpec(processes=tuple(processes), **tree)

    def digest(self) -> str:
        """Digest of the spec, by which a running local cluster is recognised."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ProcessRecord:
    """A process of a local cluster: its number inside, the seconds from its latest start until it was ready, and how
    often it was started again since the cluster's start.
    """

    pid: int
    ready_after_s: float | None = None
    restarts: int = 0


@dataclass(frozen=True)
class ClusterRecord:
    """The state of a local cluster as its first process wrote it last.

    `supervisor` and `launcher` are the local cluster's first process and the `unshare` that made it, as the host sees
    them. `failure` says, once the phase is `failed`, which process failed and how, with the end of its log.
    """

    phase: Phase
    supervisor: ProcessIdentity
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
    """The files of one local cluster."""

    path: Path

    @property
    def record_file(self) -> Path:
        """File in which the local cluster keeps its status."""
        return self.path / "cluster.json"

    @property
    def spec_file(self) -> Path:
        """File with the spec of the local cluster."""
        return self.path / "cluster-spec.json"

    @property
    def lock_file(self) -> Path:
        """File that is locked while the local cluster is started or stopped."""
        return self.path / "cluster.lock"

    @property
    def logs(self) -> Path:
        """One log for each process."""
        return self.path / "logs"

    @property
    def home(self) -> Path:
        """The home folder of every process in the local cluster."""
        return self.path / "home"

    def log_file(self, process: str) -> Path:
        """The log of one process; the supervisor of the local cluster logs as `supervisor`."""
        return self.logs / f"{process}.log"

    def write_record(self, record: ClusterRecord) -> None:
        """Replace the record in one step, so that a reader never sees one that is written in part."""
        new = self.record_file.with_suffix(".json.new")
        new.write_text(json.dumps(asdict(record), indent=2))
        new.replace(self.record_file)

    def read_record(self) -> ClusterRecord | None:
        """The record, or None when there is none that can be read."""
        try:
            tree: dict[str, Any] = json.loads(self.record_file.read_text())
            supervisor = ProcessIdentity(**tree.pop("supervisor"))
            processes = {name: ProcessRecord(**values) for name, values in tree.pop("processes").items()}
            return ClusterRecord(supervisor=supervisor, processes=processes, **tree)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def spec_differences(before: ClusterSpec, now: ClusterSpec) -> list[str]:
    """Differences between two specs, for people: facts that differ, or that something else
    does.
    """
    changes = [
        f"{name.replace('_', ' ')} {before.facts[name]} becomes {value}"
        for name, value in now.facts.items()
        if before.facts.get(name, value) != value and not name.endswith("digest")
    ]
    return changes or ["other programs, or other nodes"]


def end_of_log(path: Path, lines: int = 12) -> str:
    """The last lines of a log, indented, for messages."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _END_BYTES))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (empty log)"


def keep_previous(log_file: Path) -> None:
    """Move the log of the run before out of the way."""
    if log_file.exists():
        log_file.replace(log_file.with_suffix(".previous.log"))
