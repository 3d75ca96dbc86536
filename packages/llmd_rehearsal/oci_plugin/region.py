"""The simulated region: resources in memory and in a journal, error responses, and the scaled clock.

The region's fixed data are in `facts`.
"""

import json
import re
import secrets
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TextIO

from llmd_rehearsal.oci_plugin.facts import ResourceType, lifecycles, resource_of
from llmd_rehearsal.plugin_values import JsonObject

DEFAULT_TIME_SCALE: Final = 0.001
"""Wall seconds that the simulated OCI takes for one second of OCI's time: a cluster that takes seven minutes exists
after less than half a second.
"""
_OCID: Final = re.compile(r"ocid1\.[a-z0-9]+\.[A-Za-z0-9.\-_]+")


@dataclass(frozen=True)
class ResourceRecord:
    """Resource as the simulated OCI stores it: outputs, latest inputs, and the machines that become nodes."""

    id: str
    token: str
    state: JsonObject
    inputs: JsonObject
    machines: tuple[JsonObject, ...] = ()

    @property
    def resource(self) -> ResourceType:
        """Type of the OCI resource."""
        return resource_of(self.token)

    @property
    def display_name(self) -> str:
        """Display name of the OCI resource; its OCID if it has no name."""
        return self.state.get("displayName") or self.state.get("name") or self.id


class Records:
    """Resources of the simulated region by id, for concurrent use by many threads. Each change is appended to the
    journal file as a line.
    """

    def __init__(self, journal: Path | None = None) -> None:
        self._lock = threading.RLock()
        self._records: dict[str, ResourceRecord] = {}
        self._by_type: dict[str, dict[str, ResourceRecord]] = {}
        self._referring: dict[str, set[str]] = {}
        self._deleted: set[str] = set()
        self._journal: TextIO | None = None
        if journal is not None:
            self._load(journal)
            journal.parent.mkdir(parents=True, exist_ok=True)
            self._journal = journal.open("a")

    def close(self) -> None:
        """Close the journal file."""
        if self._journal is not None:
            self._journal.close()

    def get(self, id_: str) -> ResourceRecord | None:
        """Return the record of the resource with this id; None if the region has no such resource."""
        with self._lock:
            return self._records.get(id_)

    def is_deleted(self, id_: str) -> bool:
        """Tell whether a resource with this id was deleted."""
        with self._lock:
            return id_ in self._deleted

    def all_of(self, name: str) -> list[ResourceRecord]:
        """Return the records of all resources of one type, for example `Subnet`."""
        with self._lock:
            return list(self._by_type.get(name, {}).values())

    def referring_to(self, id_: str) -> list[ResourceRecord]:
        """Return the records of resources whose state contains this id, except the record of the resource with the
        id.
        """
        with self._lock:
            return [self._records[user] for user in sorted(self._referring.get(id_, ())) if user != id_]

    def with_machines(self, but: str) -> list[ResourceRecord]:
        """Return the records of resources that have machines, except the record with the id `but`."""
        with self._lock:
            return [record for record in self._records.values() if record.machines and record.id != but]

    def put(self, record: ResourceRecord) -> None:
        """Add a resource's record, or replace the record with the same id."""
        with self._lock:
            self._set(record)
            self._write(asdict(record))

    def remove(self, id_: str) -> None:
        """Remove a resource's record and remember its id as deleted."""
        with self._lock:
            self._unset(id_)
            self._deleted.add(id_)
            self._write({"id": id_})

    def _set(self, record: ResourceRecord) -> None:
        self._unset(record.id)
        self._records[record.id] = record
        self._by_type.setdefault(record.resource.name, {})[record.id] = record
        for id_ in _references(record):
            self._referring.setdefault(id_, set()).add(record.id)

    def _unset(self, id_: str) -> None:
        old = self._records.pop(id_, None)
        if old is None:
            return
        del self._by_type[old.resource.name][id_]
        for reference in _references(old):
            self._referring.get(reference, set()).discard(id_)

    def _write(self, line: JsonObject) -> None:
        if self._journal is not None:
            self._journal.write(json.dumps(line) + "\n")
            self._journal.flush()

    def _load(self, journal: Path) -> None:
        if not journal.exists():
            return
        with journal.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
        for row in read_journal(journal):
            if "token" in row:
                machines = tuple(row.pop("machines"))
                self._set(ResourceRecord(**row, machines=machines))
            else:
                self._unset(row["id"])
                self._deleted.add(row["id"])


def read_journal(journal: Path) -> list[JsonObject]:
    """Return the rows that `Records` wrote to a journal, oldest first.

    A last line without a newline is ignored: it is still being written, or its writer was killed.
    """
    rows: list[JsonObject] = [json.loads(line) for line in journal.read_text().split("\n")[:-1]]
    return rows


def _references(record: ResourceRecord) -> set[str]:
    return set(_OCID.findall(json.dumps(record.state)))


def new_id(resource: ResourceType, key: str) -> str:
    """Return a new unique OCID for a resource of this type; `key` is the region's key, for example `IAD`."""
    return f"ocid1.{resource.name.lower()}.oc1.{key.lower()}.aaaaaaaa{secrets.token_hex(26)}"


def request_id() -> str:
    """Return a random id for a request, in OCI's format."""
    return "/".join(secrets.token_hex(16).upper() for _ in range(3))


class ServiceError(Exception):
    """Error response of an OCI service, with HTTP status, code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status}-{code}, {message}")
        self.status = status
        self.code = code
        self.message = message


class NoAnswerError(Exception):
    """A request to OCI got no answer."""


class WorkRequestFailed(Exception):
    """Work that OCI had accepted (a work request) failed; the resource may exist partly."""


class NodesNotJoined(WorkRequestFailed):
    """Machines of a node pool were launched but didn't join the cluster as nodes."""


class WaitEnded(WorkRequestFailed):
    """The wait for OCI's work ended before the work, because the time limit passed or the engine cancelled the
    operation.
    """


def invalid(message: str) -> ServiceError:
    """Return OCI's error response for an invalid parameter."""
    return ServiceError(400, "InvalidParameter", message)


def limit_exceeded(name: str) -> ServiceError:
    """Return OCI's error response for a request beyond the service limit with this name."""
    advice = "Request a service limit increase from the service limits page in the console."
    return ServiceError(400, "LimitExceeded", f"The following service limits were exceeded: {name}. {advice}")


def not_found(id_: str) -> ServiceError:
    """Return OCI's error response for an id that doesn't exist or that the caller may not see."""
    return ServiceError(404, "NotAuthorizedOrNotFound", f"Authorization failed or requested resource not found: {id_}")


class RegionClock:
    """Clock of the simulated region, which shortens the time that real OCI takes (OCI's time). `scale` is wall seconds
    for one second of OCI's time.
    """

    def __init__(self, scale: float = DEFAULT_TIME_SCALE) -> None:
        self.scale = scale
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End all waits that were started without a cancellation event of their own."""
        self._cancelled.set()

    def wait(self, seconds: float, cancelled: threading.Event | None = None) -> None:
        """Wait `seconds` of OCI's time, which the simulated region shortens.

        Raises:
            WaitEnded: the wait was cancelled.
        """
        if (cancelled or self._cancelled).wait(seconds * self.scale):
            raise WaitEnded("the operation was cancelled")

    def work(
        self,
        resource: ResourceType,
        operation: str,
        limit_s: float,
        cancelled: threading.Event | None = None,
        factor: float = 1.0,
    ) -> None:
        """Wait as long as OCI takes for an operation on a resource of this type, multiplied by `factor`; `limit_s` is
        in seconds of OCI's time.

        Raises:
            WaitEnded: the operation takes longer than `limit_s`, which has passed, or the wait was cancelled.
        """
        durations = lifecycles()["durations_s"]
        seconds = durations.get(resource.token, durations["default"])[operation] * factor
        if seconds > limit_s:
            raise WaitEnded(self.give_up(limit_s, cancelled))
        self.wait(seconds, cancelled)

    def give_up(self, limit_s: float, cancelled: threading.Event | None = None) -> str:
        """Wait `limit_s` seconds of OCI's time, which the simulated region shortens, and return
        terraform-provider-oci's message about a timeout.
        """
        self.wait(limit_s, cancelled)
        return f"timeout while waiting for state to become 'SUCCEEDED' (timeout: {limit_s / 60:.0f}m0s)"
