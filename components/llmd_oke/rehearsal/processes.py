"""What a world runs: its processes and how each shows that it is ready.

Only the standard library is imported here, because the first process of every world reads these.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


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
    """Ready when a connection is accepted."""

    port: int
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class FileReady:
    """Ready when the process has written this file; one left by an earlier run is removed before the start."""

    path: str


RESTARTS_WITHIN_S = 300.0
"""Wall seconds in which the restarts of a process are counted."""

Readiness = HttpReady | TcpReady | FileReady

_KINDS: dict[str, type[HttpReady] | type[TcpReady] | type[FileReady]] = {
    "http": HttpReady,
    "tcp": TcpReady,
    "file": FileReady,
}


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a world.

    It starts when all processes named in `after` are ready, and stops before them. `env` is added to the world's clean
    environment. Without `readiness` it counts as ready once started. A process that isn't ready after `ready_timeout_s`
    fails the start of the world; one that has not ended `stop_timeout_s` after SIGTERM is killed. One that ends on its
    own is started again, at most `restarts` times within `RESTARTS_WITHIN_S`; the next end makes the world fail.
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
class WorldSpec:
    """All that a world is made of.

    `bridge` carries the pod network and has `bridge_address` (with the prefix length); names of processes in the world
    are resolved by `nameserver`. `facts` are copied to the world's status for whoever uses the world (ports, versions);
    people are told of those whose names don't end in `digest`.
    """

    processes: tuple[ProcessSpec, ...]
    bridge: str = "pods0"
    bridge_address: str = "10.244.0.1/16"
    nameserver: str = "10.96.0.10"
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        known: set[str] = set()
        for process in self.processes:
            if process.name in known:
                raise ValueError(f"two processes are named {process.name}")
            missing = [name for name in process.after if name not in known]
            if missing:
                raise ValueError(f"{process.name} starts after {', '.join(missing)}, which must be listed before it")
            known.add(process.name)

    def to_json(self) -> str:
        """The spec as text: the same spec gives the same text."""
        tree = asdict(self)
        for process, written in zip(self.processes, tree["processes"], strict=True):
            if process.readiness is not None:
                written["readiness"] = {_kind(process.readiness): written["readiness"]}
        return json.dumps(tree, indent=2, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "WorldSpec":
        """The spec that `to_json` wrote."""
        tree: dict[str, Any] = json.loads(text)
        processes = tuple(_process(written) for written in tree.pop("processes"))
        return WorldSpec(processes=processes, **tree)

    def digest(self) -> str:
        """Tells whether a running world is the one that this spec describes."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def differences(before: WorldSpec, now: WorldSpec) -> list[str]:
    """Why a world of one spec isn't one of the other, for people: facts that differ, or that something else does."""
    told = [
        f"{name.replace('_', ' ')} {before.facts[name]} becomes {value}"
        for name, value in now.facts.items()
        if before.facts.get(name, value) != value and not name.endswith("digest")
    ]
    return told or ["other programs, or other nodes"]


def _kind(readiness: Readiness) -> str:
    return next(kind for kind, type_ in _KINDS.items() if isinstance(readiness, type_))


def _process(written: dict[str, Any]) -> ProcessSpec:
    fields: dict[str, Any] = {**written, "argv": tuple(written["argv"]), "after": tuple(written["after"])}
    if written["readiness"] is not None:
        ((kind, values),) = written["readiness"].items()
        fields["readiness"] = _KINDS[kind](**values)
    return ProcessSpec(**fields)
