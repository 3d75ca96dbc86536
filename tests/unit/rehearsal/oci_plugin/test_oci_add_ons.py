"""Add-ons come into the cluster some time after they count as active, and never after they were removed."""

import threading
from collections.abc import Mapping
from typing import Any, cast

import pytest
from llmd_oke.errors import KitError
from llmd_oke.rehearsal.oci_plugin.add_on_control import ClusterAddOns, configurations_of
from llmd_oke.rehearsal.oci_plugin.clocks import Clock
from llmd_oke.rehearsal.oci_plugin.errors import WorkRequestFailed


class Cluster:
    """Remembers what is installed; `failure` is what Helm says to everything."""

    def __init__(self, failure: str = "") -> None:
        self.installed: dict[str, Mapping[str, str]] = {}
        self.changed = threading.Event()
        self._failure = failure

    def delay_s(self, name: str) -> float:
        return 120

    def install(self, name: str, configurations: Mapping[str, str]) -> None:
        self._fail()
        self.installed[name] = configurations
        self.changed.set()

    def remove(self, name: str) -> None:
        self._fail()
        self.installed.pop(name, None)

    def _fail(self) -> None:
        if self._failure:
            raise KitError(self._failure)


class GatedClock(Clock):
    """Time passes when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def wait(self, seconds: float, cancelled: threading.Event | None = None) -> None:
        assert self.opened.wait(10)


def control(cluster: Cluster, clock: Clock) -> ClusterAddOns:
    return ClusterAddOns(cast("Any", cluster), clock)


def test_an_add_on_is_installed_after_its_delay():
    cluster, clock = Cluster(), GatedClock()
    control(cluster, clock).install("CertManager", {"a": "b"})
    assert cluster.installed == {}
    clock.opened.set()

    assert cluster.changed.wait(10)
    assert cluster.installed == {"CertManager": {"a": "b"}}


def test_an_add_on_that_was_removed_meanwhile_does_not_come():
    cluster, clock = Cluster(), GatedClock()
    add_ons = control(cluster, clock)
    add_ons.install("CertManager", {})
    add_ons.remove("CertManager")
    clock.opened.set()
    for thread in threading.enumerate():
        if thread.name == "add-on CertManager":
            thread.join(10)

    assert cluster.installed == {}


def test_a_removal_that_helm_refuses_fails():
    with pytest.raises(WorkRequestFailed, match="no way"):
        control(Cluster("no way"), Clock(0)).remove("CertManager")


def test_a_configuration_is_read_by_key():
    state = {"configurations": [{"key": "worker.tolerations", "value": "[]"}]}

    assert configurations_of(state) == {"worker.tolerations": "[]"}
    assert configurations_of({}) == {}
