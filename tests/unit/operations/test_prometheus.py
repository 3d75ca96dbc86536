import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from llmd_base.errors import KitError
from llmd_oke.operations.prometheus import alerts, query, query_range

URL = "http://prometheus.test:9090/under"


def answering(answer: Any, status: int = 200, seen: list[httpx2.Request] | None = None) -> httpx2.Client:
    """A client whose every request is answered so."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        if seen is not None:
            seen.append(request)
        return httpx2.Response(status, content=answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    return httpx2.Client(transport=httpx2.MockTransport(handle))


def result(kind: str, rows: Any) -> Any:
    """An answer without error."""
    return {"status": "success", "data": {"resultType": kind, "result": rows}}


def test_an_instant_query_yields_one_point_for_each_series() -> None:
    seen: list[httpx2.Request] = []
    rows = [{"metric": {"pod": "a"}, "value": [10.5, "2"]}, {"metric": {"pod": "b"}, "value": [10.5, "NaN"]}]
    series = query(URL, 'up{pod=~"a|b"}', http=answering(result("vector", rows), seen=seen))
    assert [dict(one.labels) for one in series] == [{"pod": "a"}, {"pod": "b"}]
    assert series[0].value == 2.0
    assert series[1].value != series[1].value  # not a number
    assert str(seen[0].url).partition("?")[0] == f"{URL}/api/v1/query"
    assert (seen[0].method, seen[0].url.params["query"]) == ("GET", 'up{pod=~"a|b"}')


def test_ranges_scalars_and_empty_results_of_prometheus_are_parsed() -> None:
    rows = [{"metric": {}, "values": [[1, "1"], [2, "3"]]}]
    (series,) = query_range(URL, "x", start_s=1, end_s=2, step_s=1, http=answering(result("matrix", rows)))
    assert series.points == ((1.0, 1.0), (2.0, 3.0))
    (series,) = query(URL, "1", http=answering(result("scalar", [1, "1"])))
    assert (dict(series.labels), series.value) == ({}, 1.0)
    assert query(URL, "absent_metric", http=answering(result("vector", []))) == []


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        ({"status": "error", "errorType": "bad_data", "error": "unexpected end"}, 400, "unexpected end"),
        (b"<html>", 200, "is no Prometheus"),
        (b"", 503, "is no Prometheus"),
        (
            {"kind": "Status", "status": "Failure", "message": "no such Service"},
            404,
            "is no Prometheus: no such Service",
        ),
    ],
)
def test_an_error_of_prometheus_or_answer_of_another_server_is_reported(answer: Any, status: int, message: str) -> None:
    with pytest.raises(KitError, match=message):
        query(URL, "sum(", http=answering(answer, status))


def test_only_firing_alerts_of_prometheus_are_returned() -> None:
    rows = [
        {
            "labels": {"alertname": "A"},
            "state": "firing",
            "activeAt": "2026-11-01T00:00:00Z",
            "annotations": {"x": "y"},
        },
        {"labels": {"alertname": "B"}, "state": "pending"},
    ]
    (alert,) = alerts(URL, http=answering({"status": "success", "data": {"alerts": rows}}))
    assert (alert.labels, alert.annotations, alert.since and alert.since.day) == ({"alertname": "A"}, {"x": "y"}, 1)


@pytest.fixture(params=[b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n", b""])
def trickling(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that sends a byte at a time after its beginning: in its headers, in its content, or not at all."""
    listener, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(request.param)
            while request.param and not ended.wait(0.02):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return
            ended.wait()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    ended.set()
    thread.join()
    listener.close()


def test_the_time_limit_of_a_query_holds_for_a_prometheus_that_answers_slowly(trickling: str) -> None:
    started_s = time.monotonic()
    with pytest.raises(KitError, match=r"did not answer within 0\.3 s"):
        query(trickling, "up", limit_s=0.3)
    assert time.monotonic() - started_s < 30  # the server never ends
