"""Add-ons come into the cluster after their delay and never once removed; a cluster's objects go with it."""

import base64
import json
import threading
from collections.abc import Mapping
from typing import Any, cast

import httpx2
import pytest
from llmd_base.errors import KitError
from llmd_rehearsal.oci_plugin.local_cluster import ClusterAddOns, EtcdStore, configurations_of, etcd_client
from llmd_rehearsal.oci_plugin.region import RegionClock, WorkRequestFailed


class Cluster:
    """A cluster with the list of what was installed; `failure` is what Helm says to everything."""

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


class GatedClock(RegionClock):
    """Time passes when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def wait(self, seconds: float, cancelled: threading.Event | None = None) -> None:
        assert self.opened.wait(10)


def control(cluster: Cluster, clock: RegionClock) -> ClusterAddOns:
    return ClusterAddOns(cast("Any", cluster), clock)


def test_the_oci_stand_in_installs_an_oke_add_on_after_the_rehearsals_delay():
    cluster, clock = Cluster(), GatedClock()
    control(cluster, clock).install("CertManager", {"a": "b"})
    assert cluster.installed == {}
    clock.opened.set()
    assert cluster.changed.wait(10)
    assert cluster.installed == {"CertManager": {"a": "b"}}


def test_an_add_on_that_was_deleted_before_its_delay_ended_is_not_installed():
    cluster, clock = Cluster(), GatedClock()
    add_ons = control(cluster, clock)
    add_ons.install("CertManager", {})
    add_ons.remove("CertManager")
    clock.opened.set()
    for thread in threading.enumerate():
        if thread.name == "add-on CertManager":
            thread.join(10)
    assert cluster.installed == {}


def test_deleting_an_add_on_fails_if_helm_fails():
    with pytest.raises(WorkRequestFailed, match="no way"):
        control(Cluster("no way"), RegionClock(0)).remove("CertManager")


def test_the_configuration_list_of_an_oke_add_on_becomes_a_map_from_key_to_value():
    state = {"configurations": [{"key": "worker.tolerations", "value": "[]"}]}
    assert configurations_of(state) == {"worker.tolerations": "[]"}
    assert configurations_of({}) == {}


OWN = "/registry/namespaces/default"


class Etcd:
    """Keys and nothing else, as etcd's JSON gateway gives them; `busy` are made again when they are deleted, once."""

    def __init__(self, *keys: str, busy: str = "") -> None:
        self.keys = set(keys)
        self._busy = busy

    def store(self) -> EtcdStore:
        http = httpx2.Client(base_url="http://etcd", transport=httpx2.MockTransport(self._answer))
        return EtcdStore(http, pause_s=0)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        key = base64.b64decode(body["key"]).decode()
        if request.url.path.endswith("/range"):
            known = [{"key": base64.b64encode(item.encode()).decode()} for item in sorted(self.keys)]
            return httpx2.Response(200, json={"kvs": known} if known else {})
        self.keys.discard(key)
        if key == self._busy:
            self.keys.add(key)
            self._busy = ""
        return httpx2.Response(200, json={"deleted": "1"})


@pytest.mark.parametrize("busy", ["", "/registry/pods/llm-d/decode-0"])
def test_deleting_a_cluster_removes_objects_created_after_it_and_meanwhile(busy: str) -> None:
    etcd = Etcd(OWN, busy=busy)
    store = etcd.store()
    store.snapshot()
    etcd.keys |= {"/registry/pods/llm-d/decode-0", "/registry/namespaces/llm-d"}
    store.snapshot()
    store.restore()
    assert etcd.keys == {OWN}


def test_deleting_a_cluster_that_was_never_created_removes_nothing() -> None:
    etcd = Etcd(OWN)
    etcd.store().restore()
    assert etcd.keys == {OWN}


def test_deleting_a_cluster_fails_if_etcd_does_not_answer() -> None:
    with pytest.raises(WorkRequestFailed, match="etcd does not answer"):
        EtcdStore(etcd_client("http://127.0.0.1:1"), pause_s=0).snapshot()
