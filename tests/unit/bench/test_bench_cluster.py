import json
from pathlib import Path

import httpx
import pytest
from llmd_base.cluster import PAUSES_S, InCluster, from_environment
from llmd_base.errors import KitError


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    return tmp_path


def cluster(account: Path, answer, pause=lambda _: None) -> tuple[InCluster, list[httpx.Request]]:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answer(request)

    return InCluster("https://10.96.0.1:443", account, httpx.MockTransport(handle), pause), seen


def pod(name: str, address: str | None, **metadata) -> dict:
    return {"metadata": {"name": name, **metadata}, "status": {"podIP": address} if address else {}}


def test_running_pods_with_an_address_are_found_by_their_labels(account):
    gone = pod("old", "10.0.0.3", deletionTimestamp="now")
    items = [pod("b", "10.0.0.2"), pod("a", "10.0.0.1"), pod("new", None), gone]
    result, seen = cluster(account, lambda _: httpx.Response(200, json={"items": items}))
    assert [item.name for item in result.pods("ns", {"x/y": "z", "w": "v"})] == ["a", "b"]
    assert seen[0].url.params["labelSelector"] == "x/y=z,w=v"
    assert seen[0].headers["Authorization"] == "Bearer first"


@pytest.mark.parametrize(("started", "expected"), [([True, True], True), ([True, False], False)])
def test_a_pod_tells_the_restarts_of_its_containers_and_whether_all_have_started(account, started, expected: bool):
    containers = [{"started": container, "restartCount": 1} for container in started]
    status = {"podIP": "10.0.0.1", "initContainerStatuses": [{"restartCount": 1}], "containerStatuses": containers}
    item = {"metadata": {"name": "a", "labels": {"x": "y"}}, "status": status}
    result, _ = cluster(account, lambda _: httpx.Response(200, json={"items": [item]}))
    (told,) = result.pods("ns", {})
    assert (told.restarts, told.started, told.labels) == (3, expected, {"x": "y"})


def test_inside_a_cluster_services_are_called_by_dns_name_and_pods_by_ip_address(account):
    result, _ = cluster(account, lambda _: httpx.Response(200))
    assert result.service("ns", "gpt").url == "http://gpt.ns.svc.cluster.local"
    assert result.pod("ns", type("P", (), {"address": "10.0.0.1"})(), 8000).url == "http://10.0.0.1:8000"


def test_a_configmap_is_created_or_replaced_by_name(account):
    applied, seen = cluster(account, lambda _: httpx.Response(201, json={}))
    applied.apply({"metadata": {"name": "smoke", "namespace": "ns"}, "data": {"a": "b"}})
    (request,) = seen
    assert (request.method, request.url.path) == ("PATCH", "/api/v1/namespaces/ns/configmaps/smoke")
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert json.loads(request.content)["data"] == {"a": "b"}


def test_a_busy_api_server_is_called_again_with_a_fresh_token(account):
    def answer(request: httpx.Request) -> httpx.Response:
        (account / "token").write_text("second")
        return httpx.Response(429 if request.headers["Authorization"] == "Bearer first" else 200, json={"items": []})

    result, seen = cluster(account, answer)
    assert result.pods("ns", {}) == []
    assert len(seen) == 2


def test_an_unreachable_api_server_is_an_error_with_its_cause(account):
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route")

    pauses: list[float] = []
    result, seen = cluster(account, answer, pauses.append)
    with pytest.raises(KitError, match="no answer in 4 tries"):
        result.pods("ns", {})
    assert len(seen) == 4
    assert pauses == [0, *PAUSES_S]


def test_the_api_client_reports_refusals_in_the_servers_words_and_runs_in_pods_only(account):
    refused, _ = cluster(account, lambda _: httpx.Response(403, json={"message": "smoke may not"}))
    with pytest.raises(KitError, match="HTTP 403: smoke may not"):
        refused.apply({"metadata": {"name": "smoke", "namespace": "ns"}})
    with pytest.raises(KitError, match="runs in pods only"):
        from_environment({})


def test_the_api_client_returns_a_configmaps_creation_time_or_none_if_it_is_missing(account):
    metadata = {"creationTimestamp": "2026-03-02T12:00:05Z"}
    result, _ = cluster(account, lambda _: httpx.Response(200, json={"metadata": metadata}))
    assert result.created_s("ns", "start") == 1772452805.0
    missing, _ = cluster(account, lambda _: httpx.Response(404, json={"message": "not found"}))
    assert (missing.created_s("ns", "start"), missing.config_map("ns", "start")) == (None, None)
