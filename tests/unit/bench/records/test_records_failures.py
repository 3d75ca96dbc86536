import pytest
from llmd_oke.bench.records.failures import classify
from llmd_oke.bench.records.request import Failure, RequestRecord


def failed(index, failure, error, **more) -> RequestRecord:
    return RequestRecord(index, float(index), 0.1, failure=failure, error=error, **more)


def test_kinds_are_counted_with_the_first_of_each_as_example():
    records = [
        failed(5, Failure.STATUS, "HTTP 429: later", status=429, retry_after_s=9.0),
        failed(2, Failure.STATUS, "HTTP 429: first", status=429, retry_after_s=2.0),
        failed(3, Failure.CUT, "peer closed connection"),
        RequestRecord(0, 0.0, 1.0),
    ]
    assert [str(found) for found in classify(records)] == [
        "2 x HTTP 429 (the router or server sheds load, Retry-After up to 9 s), first at 2.0 s: HTTP 429: first",
        "1 x cut (a server or proxy ended while it answered), first at 3.0 s: peer closed connection",
    ]


@pytest.mark.parametrize(
    ("status", "meaning"),
    [(404, "no such model, or a wrong path in the address"), (500, "the server failed"), (599, "the server failed")],
)
def test_statuses_are_explained(status, meaning):
    (found,) = classify([failed(0, Failure.STATUS, "x", status=status)])
    assert (found.kind, found.meaning) == (f"HTTP {status}", meaning)


@pytest.mark.parametrize("failure", list(Failure))
def test_every_kind_is_explained(failure):
    (found,) = classify([failed(0, failure, "x", status=400)])
    assert found.meaning


def test_a_run_without_failures_has_none():
    assert classify([RequestRecord(0, 0.0, 1.0)]) == []
