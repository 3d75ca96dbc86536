from llmd_oke.bench.records.request import Failure, RequestRecord
from llmd_oke.bench.records.windows import NOTHING_TRIMMED, Trim, Window, window_of
from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate


def request(index, started_s, latency_s, **changes) -> RequestRecord:
    events = {"event_times_s": (latency_s / 2, latency_s), "output_tokens": 4}
    return RequestRecord(index, started_s, latency_s, **{**events, **changes})


EVEN = [request(index, float(index), 2.0) for index in range(11)]


def test_nothing_trimmed_is_from_the_first_request_to_the_last_answer():
    assert window_of(EVEN, ConstantRate(1), NOTHING_TRIMMED) == Window(0.0, 12.0)


def test_shares_are_of_the_time_in_which_requests_were_sent():
    window = window_of(EVEN, ConstantRate(1), Trim(head_share=0.2, tail_share=0.2))
    assert (window.begin_s, window.end_s) == (2.0, 8.0)
    assert sum(window.has(record) for record in EVEN) == 7


def test_a_warm_up_goes_before_shares():
    window = window_of(EVEN, ConstantRate(1), Trim(warmup_s=5, head_share=0.2))
    assert (window.begin_s, window.end_s) == (6.0, 10.0)
    assert window.rule == "without the first 5 s, without the first 20% of the time"


def test_a_closed_loop_is_busy_while_all_its_users_are():
    records = [request(0, 0.0, 2.0), request(1, 1.0, 3.0), request(2, 2.0, 3.0), request(3, 4.1, 4.0)]
    window = window_of(records, ClosedLoop(2), Trim(busy=True))
    assert (window.begin_s, window.end_s, window.rule) == (1.0, 5.0, "all users busy")


def test_users_who_never_were_busy_together_leave_all_of_it():
    records = [request(0, 0.0, 1.0), request(1, 3.0, 1.0)]
    window = window_of(records, ClosedLoop(2), Trim(busy=True))
    assert (window.begin_s, window.end_s) == (0.0, 3.0)


def test_an_open_loop_is_busy_from_its_first_answer_to_its_last_request():
    window = window_of(EVEN, ConstantRate(1), Trim(busy=True))
    assert (window.begin_s, window.end_s) == (2.0, 10.0)


def test_tokens_count_when_they_arrive():
    assert Window(1.5, 2.5).tokens([request(0, 0.0, 2.0), request(1, 1.0, 2.0)]) == 4.0
    assert Window(0.0, 9.0).tokens([request(0, 0.0, 2.0, failure=Failure.CUT)]) == 0.0


def test_requests_in_flight_are_a_mean_over_the_window():
    assert Window(0.0, 4.0).in_flight([request(0, 0.0, 2.0), request(1, 1.0, 1.0), request(2, 3.0, 9.0)]) == 1.0


def test_a_trim_that_leaves_nothing_leaves_an_empty_window():
    window = window_of(EVEN, ConstantRate(1), Trim(warmup_s=100))
    assert window.duration_s == 0.0
    assert window_of([], ConstantRate(1), Trim()).rule == "no requests"
