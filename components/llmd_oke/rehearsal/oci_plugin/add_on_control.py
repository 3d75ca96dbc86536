"""How OKE's add-ons come into the rehearsal's cluster and leave it, and what they need there."""

import logging
import threading
from collections.abc import Mapping
from typing import Protocol

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.add_ons import AddOns
from llmd_oke.rehearsal.oci_plugin.clocks import Clock
from llmd_oke.rehearsal.oci_plugin.errors import WorkRequestFailed
from llmd_oke.rehearsal.oci_plugin.records import Record, Records
from llmd_oke.rehearsal.oci_plugin.region import region_facts
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject

_log = logging.getLogger(__name__)


class AddOnControl(Protocol):
    """Installs and removes add-ons."""

    def install(self, name: str, configurations: Mapping[str, str]) -> None:
        """Begins to install an add-on, or to bring it to another configuration."""
        ...

    def remove(self, name: str) -> None:
        """Removes an add-on; one that isn't there is no error."""
        ...

    def forget(self) -> None:
        """Ends what has begun: the cluster goes, and its add-ons with it."""
        ...


class NoAddOns:
    """For a plug-in that stands alone: add-ons are known to OCI only."""

    def install(self, name: str, configurations: Mapping[str, str]) -> None:
        """Nothing."""

    def remove(self, name: str) -> None:
        """Nothing."""

    def forget(self) -> None:
        """Nothing."""


class ClusterAddOns:
    """The cluster of the plug-in's world. As in OKE, an add-on counts as active before it is there."""

    def __init__(self, add_ons: AddOns, clock: Clock) -> None:
        self._add_ons = add_ons
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted: dict[str, Mapping[str, str]] = {}

    def install(self, name: str, configurations: Mapping[str, str]) -> None:
        """Begins to install an add-on; what goes wrong is logged."""
        with self._lock:
            self._wanted[name] = configurations
        threading.Thread(target=self._install, args=(name, configurations), name=f"add-on {name}", daemon=True).start()

    def remove(self, name: str) -> None:
        """Removes an add-on. Raises WorkRequestFailed where Helm can't."""
        with self._lock:
            self._wanted.pop(name, None)
            try:
                self._add_ons.remove(name)
            except (KitError, Refusal) as error:
                raise WorkRequestFailed(str(error)) from error

    def forget(self) -> None:
        """Waits for what is being installed and lets nothing else begin."""
        with self._lock:
            self._wanted.clear()

    def _install(self, name: str, configurations: Mapping[str, str]) -> None:
        try:
            self._clock.wait(self._add_ons.delay_s(name))
            with self._lock:
                if self._wanted.get(name) is configurations:
                    self._add_ons.install(name, configurations)
        except (KitError, Refusal, WorkRequestFailed) as error:
            _log.error("add-on %s: %s", name, error)


def need_dependencies(record: Record, records: Records) -> None:
    """Raises WorkRequestFailed for an add-on whose cluster lacks, or is still installing, what OKE checks for."""
    check = region_facts().add_on_checks.get(record.state.get("addonName", ""))
    if check is None or configurations_of(record.state).get(check.skipped_by) == "true":
        return
    there = {
        other.state["addonName"]
        for other in records.all_of("Addon")
        if (other.state["clusterId"], other.state["state"]) == (record.state["clusterId"], "ACTIVE")
    }
    if missing := [name for name in check.needs if name not in there]:
        raise WorkRequestFailed(f"Dependency check failed: {', '.join(missing)} must be installed and active")


def configurations_of(state: JsonObject) -> dict[str, str]:
    """An add-on's configuration by key."""
    return {entry["key"]: entry["value"] for entry in state.get("configurations") or ()}
