"""Specification and status record of a local cluster, stored as files in its state folder.

This module imports only the standard library and `namespaces`, because the first process of every local cluster loads
it.
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
"""Name of the file in the local cluster's folder with the reason why NetworkPolicies aren't enforced; empty if they are
enforced.
"""

SELDOM_COLLECTED: Mapping[str, str] = {"GOGC": "400", "GOMEMLIMIT": "2GiB"}
"""Environment variables that make Go programs collect garbage less often, below a memory limit. The API server starts
in 2.0 CPU-seconds with these variables, and in 4.1 with Go's defaults (measured).
"""

_END_BYTES = 16_384
"""Longest end of a log, in bytes, that a message quotes."""

RESTARTS_WITHIN_S = 300.0
"""Sliding window in wall seconds in which restarts of a process are counted."""


@dataclass(frozen=True)
class HttpReady:
    """Readiness of a process by an HTTP GET of `url` that is answered with status 200.

    The certificate of an https server is verified with `ca_file`, and isn't verified without; `certificate_file` and
    `key_file` are the client's certificate and key.
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
    """Readiness of a process by the existence of a file that the process writes. A file of an earlier run is deleted
    before the process starts.
    """

    path: str


Readiness = HttpReady | TcpReady | FileReady

_KINDS: dict[str, type[HttpReady] | type[TcpReady] | type[FileReady]] = {
    "http": HttpReady,
    "tcp": TcpReady,
    "file": FileReady,
}


@dataclass(frozen=True)
class ProcessSpec:
    """Specification of one process of a local cluster.

    The process starts when all processes named in `after` are ready, and is stopped before those. `env` is added to the
    local cluster's environment. Without `readiness` the process counts as ready once started. The start of the local
    cluster fails if the process isn't ready after `ready_timeout_s` seconds. A process that hasn't ended
    `stop_timeout_s` seconds after SIGTERM is killed. A process that ends by itself is restarted, at most `restarts`
    times within `RESTARTS_WITHIN_S` seconds; one more end makes the local cluster fail.
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
    """Specification of a local cluster: its processes, addresses and facts.

    `address` is the IP address at which the local cluster's own processes listen, and the pods' gateway; `nameserver`
    is the DNS server of the local cluster's processes. `facts` (ports, versions) are copied to the local cluster's
    record for its users; facts whose names end in `digest` aren't shown to people.
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
        """Return the local cluster's specification as JSON text; equal specifications give equal texts."""
        tree = asdict(self)
        for process, fields in zip(self.processes, tree["processes"], strict=True):
            if process.readiness is not None:
                kind = next(kind for kind, type_ in _KINDS.items() if isinstance(process.readiness, type_))
                fields["readiness"] = {kind: fields["readiness"]}
        return json.dumps(tree, indent=2, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "ClusterSpec":
        """Return the specification of a local cluster from JSON text that `to_json` wrote."""
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
        """Return a digest of the specification; a running local cluster with an equal digest needn't be started
        anew.
        """
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ProcessRecord:
    """Status of one process of a local cluster: process id inside the PID namespace, wall seconds from the latest start
    to readiness (None if not ready yet), and the number of restarts since the local cluster's start.
    """

    pid: int
    ready_after_s: float | None = None
    restarts: int = 0


@dataclass(frozen=True)
class ClusterRecord:
    """Status of a local cluster as its first process last wrote it to the record file.

    `supervisor` identifies the local cluster's first process, and `launcher_pid` the `unshare` process that started it,
    both with the host's process ids. In the phase `failed`, `failure` says which process failed and how, with the end
    of its log.
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
    """Paths of the files of one local cluster in its folder."""

    path: Path

    @property
    def record_file(self) -> Path:
        """File with the status of the local cluster and its processes (`ClusterRecord`)."""
        return self.path / "cluster.json"

    @property
    def spec_file(self) -> Path:
        """File with the specification by which the local cluster was started."""
        return self.path / "cluster-spec.json"

    @property
    def lock_file(self) -> Path:
        """File that is locked while the local cluster is started or stopped."""
        return self.path / "cluster.lock"

    @property
    def logs(self) -> Path:
        """Folder with one log file for each process."""
        return self.path / "logs"

    @property
    def home(self) -> Path:
        """Home folder of every process of the local cluster."""
        return self.path / "home"

    def log_file(self, process: str) -> Path:
        """Return the path of a process's log; the name of the supervisor's own log is `supervisor`."""
        return self.logs / f"{process}.log"

    def write_record(self, record: ClusterRecord) -> None:
        """Write the local cluster's status, replacing the record file atomically, so that readers never see a partly
        written one.
        """
        new = self.record_file.with_suffix(".json.new")
        new.write_text(json.dumps(asdict(record), indent=2))
        new.replace(self.record_file)

    def read_record(self) -> ClusterRecord | None:
        """Return the local cluster's status; None if the record file is missing or invalid."""
        try:
            tree: dict[str, Any] = json.loads(self.record_file.read_text())
            supervisor = ProcessIdentity(**tree.pop("supervisor"))
            processes = {name: ProcessRecord(**values) for name, values in tree.pop("processes").items()}
            return ClusterRecord(supervisor=supervisor, processes=processes, **tree)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def fact_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the differences between the facts of two local clusters as texts for people: the facts whose values
    changed, or, if none did, one text that says that programs or nodes differ.
    """
    changes = [
        f"{name.replace('_', ' ')} {before[name]} becomes {value}"
        for name, value in now.items()
        if before.get(name, value) != value and not name.endswith("digest")
    ]
    return changes or ["other programs, or other nodes"]


def end_of_log(path: Path, lines: int = 12) -> str:
    """Return the last `lines` lines of a process's log, indented, for an error message."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _END_BYTES))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (empty log)"


def keep_previous(log_file: Path) -> None:
    """Rename an existing log file to `<name>.previous.log`, so that a new log doesn't replace it."""
    if log_file.exists():
        log_file.replace(log_file.with_suffix(".previous.log"))
