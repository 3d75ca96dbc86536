"""The objects of a cluster go with it; those of the API server itself stay."""

import base64
import json

import httpx2
import pytest
from llmd_oke.rehearsal.oci_plugin.cluster_store import EtcdStore, etcd_client
from llmd_oke.rehearsal.oci_plugin.errors import WorkRequestFailed

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
            known = [{"key": base64.b64encode(each.encode()).decode()} for each in sorted(self.keys)]
            return httpx2.Response(200, json={"kvs": known} if known else {})
        self.keys.discard(key)
        if key == self._busy:
            self.keys.add(key)
            self._busy = ""
        return httpx2.Response(200, json={"deleted": "1"})


def test_what_came_after_the_first_cluster_goes() -> None:
    etcd = Etcd(OWN)
    store = etcd.store()
    store.begin()
    etcd.keys |= {"/registry/pods/llm-d/decode-0", "/registry/namespaces/llm-d"}
    store.begin()
    store.empty()
    assert etcd.keys == {OWN}


def test_what_a_controller_makes_meanwhile_goes_too() -> None:
    etcd = Etcd(OWN, busy="/registry/pods/llm-d/decode-0")
    store = etcd.store()
    store.begin()
    etcd.keys.add("/registry/pods/llm-d/decode-0")
    store.empty()
    assert etcd.keys == {OWN}


def test_nothing_goes_where_no_cluster_was_made() -> None:
    etcd = Etcd(OWN)
    etcd.store().empty()
    assert etcd.keys == {OWN}


def test_an_etcd_that_does_not_answer_fails_the_deletion() -> None:
    with pytest.raises(WorkRequestFailed, match="etcd does not answer"):
        EtcdStore(etcd_client("http://127.0.0.1:1"), pause_s=0).begin()
