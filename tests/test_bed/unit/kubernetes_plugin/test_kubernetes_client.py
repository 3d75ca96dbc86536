"""The way to an API server that all calls of the plug-in share."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from http_for_tests import HttpAnswer, address_of, http_server
from llmd_rehearsal.kubernetes_plugin.client import Access, ApiError, Cluster
from llmd_rehearsal.plugin_values import JsonObject

CALLERS, CALLS = 48, 40


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns often, so that what can happen between two steps does."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with http_server(lambda _request: HttpAnswer(200, b"{}")) as server:
        server.socket.listen(CALLERS)  # so many may connect at the same time
        cluster = Cluster(Access({"server": address_of(server)}, {}))
        yield cluster
        cluster.close()


def test_after_a_conflict_an_update_is_repeated_on_the_newest_object(monkeypatch: pytest.MonkeyPatch, cluster: Cluster):
    versions = iter([2, 3])
    monkeypatch.setattr(cluster, "get", lambda *_: config_map(next(versions)))

    def change(live: JsonObject) -> JsonObject:
        if live["metadata"]["resourceVersion"] != "3":
            raise ApiError(409, {"reason": "Conflict"})
        return live

    assert cluster.on_latest(config_map(1), change) == config_map(3)


def config_map(version: int) -> JsonObject:
    metadata = {"name": "c", "namespace": "n", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


@pytest.mark.usefixtures("hasty_threads")
def test_parallel_calls_of_the_api_client_never_mix_their_connections(cluster: Cluster):
    def call() -> int:
        return sum(cluster.get_path("/version") == {} for _ in range(CALLS))

    with ThreadPoolExecutor(CALLERS) as callers:
        answered = [item.result() for item in [callers.submit(call) for _ in range(CALLERS)]]
    assert answered == [CALLS] * CALLERS
