"""What there is in the simulated region: one record for each resource, kept in memory and in a journal."""

import json
import re
import secrets
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from llmd_oke.rehearsal.oci_plugin.schemas import Resource, resource_of
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject

_OCID: Final = re.compile(r"ocid1\.[a-z0-9]+\.[A-Za-z0-9.\-_]+")


@dataclass(frozen=True)
class Record:
    """A resource as OCI knows it. `state` are its outputs, `inputs` what was asked for last, `machines` its nodes."""

    id: str
    token: str
    state: JsonObject
    inputs: JsonObject
    machines: tuple[JsonObject, ...] = ()

    @property
    def resource(self) -> Resource:
        """Its type."""
        return resource_of(self.token)

    @property
    def display_name(self) -> str:
        """What people know it by."""
        return self.state.get("displayName") or self.state.get("name") or self.id


class Records:
    """All records by id, for use by many threads at once. Each change is a line in the journal."""

    def __init__(self, journal: Path | None = None) -> None:
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}
        self._by_type: dict[str, dict[str, Record]] = {}
        self._named_by: dict[str, set[str]] = {}
        self._gone: set[str] = set()
        self._journal: TextIO | None = None
        if journal is not None:
            self._load(journal)
            journal.parent.mkdir(parents=True, exist_ok=True)
            self._journal = journal.open("a")

    def close(self) -> None:
        """Ends the journal."""
        if self._journal is not None:
            self._journal.close()

    def get(self, id_: str) -> Record | None:
        """The record, or None."""
        with self._lock:
            return self._records.get(id_)

    def is_gone(self, id_: str) -> bool:
        """Whether it was there once and was deleted."""
        with self._lock:
            return id_ in self._gone

    def all_of(self, name: str) -> list[Record]:
        """The records of a type, such as `Subnet`."""
        with self._lock:
            return list(self._by_type.get(name, {}).values())

    def naming(self, id_: str) -> list[Record]:
        """The records that name another."""
        with self._lock:
            return [self._records[each] for each in sorted(self._named_by.get(id_, ())) if each != id_]

    def with_machines(self, but: str) -> list[Record]:
        """The records with machines, except one."""
        with self._lock:
            return [record for record in self._records.values() if record.machines and record.id != but]

    def put(self, record: Record) -> None:
        """Adds a record or replaces it."""
        with self._lock:
            self._set(record)
            self._write(asdict(record))

    def remove(self, id_: str) -> None:
        """Takes a record away; it is remembered that there was one."""
        with self._lock:
            self._unset(id_)
            self._gone.add(id_)
            self._write({"id": id_})

    def _set(self, record: Record) -> None:
        self._unset(record.id)
        self._records[record.id] = record
        self._by_type.setdefault(record.resource.name, {})[record.id] = record
        for named in _named_in(record):
            self._named_by.setdefault(named, set()).add(record.id)

    def _unset(self, id_: str) -> None:
        old = self._records.pop(id_, None)
        if old is None:
            return
        del self._by_type[old.resource.name][id_]
        for named in _named_in(old):
            self._named_by.get(named, set()).discard(id_)

    def _write(self, line: JsonObject) -> None:
        if self._journal is not None:
            self._journal.write(json.dumps(line) + "\n")
            self._journal.flush()

    def _load(self, journal: Path) -> None:
        if not journal.exists():
            return
        for line in journal.read_text().splitlines():
            read: Any = json.loads(line)
            if "token" in read:
                machines = tuple(read["machines"])
                self._set(Record(read["id"], read["token"], read["state"], read["inputs"], machines))
            else:
                self._unset(read["id"])
                self._gone.add(read["id"])


def _named_in(record: Record) -> Iterator[str]:
    yield from set(_OCID.findall(json.dumps(record.state)))


def new_id(resource: Resource, key: str) -> str:
    """An OCID that no other resource has."""
    return f"ocid1.{resource.name.lower()}.oc1.{key.lower()}.aaaaaaaa{secrets.token_hex(26)}"
