from array import array

import pytest
from llmd_base.errors import KitError
from llmd_bench.load.processes import SectionResult
from llmd_bench.load.records import (
    NOTHING_TRIMMED,
    Delay,
    Failure,
    Health,
    MeasuredWindow,
    RequestRecord,
    Trim,
    as_line,
    classify,
    delay_of,
    read_lines,
    spoiled_reason,
    window_of,
)
from llmd_bench.load.stages import generator_health
from llmd_bench.load.workload import ClosedLoop, ConstantRate


def failed(index, failure, error, **more) -> RequestRecord:
    return RequestRecord(index, float(index), 0.1, failure=failure, error=error, **more)


def test_failures_are_counted_by_kind_with_the_first_as_example():
    records = [
        failed(5, Failure.STATUS, "HTTP 429: later", status=429, retry_after_s=9.0),
        failed(2, Failure.STATUS, "HTTP 429: first", status=429, retry_after_s=2.0),
        failed(3, Failure.CUT, "peer closed connection"),
        RequestRecord(0, 0.0, 1.0),
    ]
    assert [str(result) for result in classify(records)] == [
        "2 x HTTP 429 (the router or server sheds load, Retry-After up to 9 s), first at 2.0 s: HTTP 429: first",
        "1 x cut (a server or proxy ended while it answered), first at 3.0 s: peer closed connection",
    ]


@pytest.mark.parametrize(
    ("status", "meaning"),
    [(404, "no such model, or a wrong path in the address"), (500, "the server failed"), (599, "the server failed")],
)
def test_failure_kinds_of_http_statuses_have_an_explanation(status, meaning):
    (result,) = classify([failed(0, Failure.STATUS, "x", status=status)])
    assert (result.kind, result.meaning) == (f"HTTP {status}", meaning)


@pytest.mark.parametrize("failure", list(Failure))
def test_every_failure_kind_has_an_explanation(failure):
    (result,) = classify([failed(0, failure, "x", status=400)])
    assert result.meaning


FINE = Health(Delay(0.1, 0.1, 4.0, 9.0), Delay(0.1, 0.1, 1.0, 2.0), (0.4,), 45.0, 44.9)


def sent(index, due_s, started_s) -> RequestRecord:
    return RequestRecord(index, started_s, 1.0, (0.1, 0.2), due_s=due_s)


LATE = Health(slip_ms=Delay(2, 1, 12, 30), cpu_share=(0.5, 0.97))


@pytest.mark.parametrize(
    ("health", "latency_ms", "reason"),
    [
        (FINE, 100.0, None),
        (LATE, 1000.0, None),
        (
            LATE,
            100.0,
            "the load generator was too slow: requests were sent 12.0 ms late (p99, limit 5.0 ms); "
            "its busiest process took 97% of a core",
        ),
        (Health(loop_lag_ms=Delay(1, 1, 8, 9)), None, "its event loop was 8.0 ms late"),
        (Health(offered_requests_per_s=45.0, sent_requests_per_s=40.0), None, "40.0 of 45.0 requests/s"),
    ],
    ids=["keeps up", "late by little of the latency", "sent late", "woken late", "slower than asked"],
)
def test_a_load_generator_that_does_not_keep_up_makes_a_measurement_invalid(health, latency_ms, reason):
    spoiled = spoiled_reason(health, latency_ms)
    assert spoiled is None if reason is None else reason in spoiled


def test_the_load_generators_delays_and_rates_are_computed_from_its_requests():
    records = [sent(0, 0.0, 0.001), sent(1, 1.0, 1.002), sent(2, 2.0, 2.003)]
    health = generator_health(records, ConstantRate(1), SectionResult(lags_s=[0.001], cpu_share=[0.2]))
    assert (round(health.slip_ms.max, 6), round(health.slip_ms.mean, 6)) == (3.0, 2.0)
    assert (health.offered_requests_per_s, round(health.sent_requests_per_s, 2)) == (1.0, 1.0)
    assert generator_health([sent(0, 0, 0)], ClosedLoop(1), SectionResult()).offered_requests_per_s is None
    assert delay_of([]) is None


WHOLE = RequestRecord(3, 0.5, 1.25, array("d", [0.25, 0.5]), 128, 2, counted_by_server=True, due_s=0.499, status=200)
FAILED = RequestRecord(4, 1.0, 0.1, failure=Failure.STATUS, error="HTTP 429: busy", status=429, retry_after_s=3.0)


def test_written_request_records_are_read_back_equal():
    (first, second) = read_lines([as_line(0, WHOLE), as_line(1, FAILED)])
    assert first == (0, WHOLE)
    assert (second[0], second[1].failure, second[1].retry_after_s) == (1, Failure.STATUS, 3.0)


def test_token_gaps_are_unknown_if_only_first_and_last_token_times_were_stored():
    long = RequestRecord(3, 0.0, 2.0, (0.25, 0.5, 1.5), output_tokens=3, due_s=0.0)
    ((_, arrived),) = read_lines([as_line(0, long.thinned())])
    assert (list(arrived.event_times_s), arrived.gaps_s, arrived.tpot_s) == ([0.25, 1.5], [], long.tpot_s)


def test_an_invalid_line_of_request_records_is_reported_unless_it_is_the_last_one():
    assert len(read_lines([as_line(0, WHOLE), as_line(0, FAILED)[:40]])) == 1
    with pytest.raises(KitError, match="line 1 of requests is no request"):
        read_lines(["{}", as_line(0, WHOLE)])


def request(index, started_s, latency_s, **changes) -> RequestRecord:
    events = {"event_times_s": (latency_s / 2, latency_s), "output_tokens": 4}
    return RequestRecord(index, started_s, latency_s, **{**events, **changes})


EVEN = [request(index, float(index), 2.0) for index in range(11)]
USERS = [request(0, 0.0, 2.0), request(1, 1.0, 3.0), request(2, 2.0, 3.0), request(3, 4.1, 4.0)]
BUSY, HEAD_AND_TAIL = Trim(busy=True), Trim(head_share=0.2, tail_share=0.2)


@pytest.mark.parametrize(
    ("records", "shape", "trim", "begin_s", "end_s"),
    [
        (EVEN, ConstantRate(1), NOTHING_TRIMMED, 0.0, 12.0),
        (EVEN, ConstantRate(1), Trim(warmup_s=5, head_share=0.2), 6.0, 10.0),
        (EVEN, ConstantRate(1), HEAD_AND_TAIL, 2.0, 8.0),
        (EVEN, ConstantRate(1), BUSY, 2.0, 10.0),
        (USERS, ClosedLoop(2), BUSY, 1.0, 5.0),
        ([request(0, 0.0, 1.0), request(1, 3.0, 1.0)], ClosedLoop(2), BUSY, 0.0, 3.0),
    ],
    ids=[
        "untrimmed",
        "share after the warm-up",
        "head and tail of the time of sending",
        "first answer to last request",
        "all users busy",
        "never all busy",
    ],
)
def test_the_measured_window_follows_from_shape_and_trimming(records, shape, trim, begin_s, end_s):
    window = window_of(records, shape, trim)
    assert (window.begin_s, window.end_s) == (begin_s, end_s)


def test_the_measured_window_says_by_what_rule_it_was_chosen_and_has_requests_in_it():
    shared = window_of(EVEN, ConstantRate(1), Trim(warmup_s=5, head_share=0.2))
    assert shared.rule == "without the first 5 s, without the first 20% of the time"
    assert window_of(USERS, ClosedLoop(2), BUSY).rule == "all users busy"
    assert sum(window_of(EVEN, ConstantRate(1), HEAD_AND_TAIL).has(record) for record in EVEN) == 7


def test_tokens_and_requests_in_flight_are_counted_in_the_measured_window():
    assert MeasuredWindow(1.5, 2.5).tokens([request(0, 0.0, 2.0), request(1, 1.0, 2.0)]) == 4.0
    assert MeasuredWindow(0.0, 9.0).tokens([request(0, 0.0, 2.0, failure=Failure.CUT)]) == 0.0
    assert MeasuredWindow(0.0, 4.0).in_flight([request(0, 0.0, 2.0), request(1, 1.0, 1.0), request(2, 3.0, 9.0)]) == 1.0


def test_trimming_a_whole_measurement_leaves_an_empty_window():
    window = window_of(EVEN, ConstantRate(1), Trim(warmup_s=100))
    assert window.duration_s == 0.0
    assert window_of([], ConstantRate(1), Trim()).rule == "no requests"
