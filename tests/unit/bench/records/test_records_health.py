from llmd_oke.bench.generator.crews import Findings
from llmd_oke.bench.generator.examination import examine
from llmd_oke.bench.records.health import Delay, Health, delay_of, spoiled
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate

FINE = Health(
    slip_ms=Delay(0.1, 0.1, 4.0, 9.0),
    loop_lag_ms=Delay(0.1, 0.1, 1.0, 2.0),
    cpu_share=(0.4,),
    offered_requests_per_s=45.0,
    sent_requests_per_s=44.9,
)


def sent(index, due_s, started_s) -> RequestRecord:
    return RequestRecord(index, started_s, 1.0, (0.1, 0.2), due_s=due_s)


def test_a_generator_that_keeps_up_spoils_nothing():
    assert spoiled(FINE, 100.0) is None


def test_requests_that_were_sent_late_spoil_a_run():
    late = Health(slip_ms=Delay(2, 1, 12, 30), cpu_share=(0.5, 0.97))
    assert spoiled(late, 100.0) == (
        "the load generator was too slow: requests were sent 12.0 ms late (p99, limit 5.0 ms); "
        "its busiest process took 97% of a core"
    )


def test_what_is_late_against_a_slow_server_anyway_spoils_nothing():
    assert spoiled(Health(slip_ms=Delay(2, 1, 12, 30)), 1000.0) is None


def test_a_loop_that_wakes_up_late_spoils_a_run():
    assert "its event loop was 8.0 ms late" in (spoiled(Health(loop_lag_ms=Delay(1, 1, 8, 9)), None) or "")


def test_a_rate_that_was_not_kept_spoils_a_run():
    assert "40.0 of 45.0 requests/s" in (
        spoiled(Health(offered_requests_per_s=45.0, sent_requests_per_s=40.0), None) or ""
    )


def test_health_follows_from_the_requests():
    records = [sent(0, 0.0, 0.001), sent(1, 1.0, 1.002), sent(2, 2.0, 2.003)]
    health = examine(records, ConstantRate(1), Findings(lags_s=[0.001], cpu_share=[0.2]))
    assert (round(health.slip_ms.max, 6), round(health.slip_ms.mean, 6)) == (3.0, 2.0)
    assert (health.offered_requests_per_s, round(health.sent_requests_per_s, 2)) == (1.0, 1.0)


def test_a_closed_loop_offers_no_rate():
    assert examine([sent(0, 0, 0)], ClosedLoop(1), Findings()).offered_requests_per_s is None


def test_a_lost_process_spoils_a_run():
    assert examine([], ClosedLoop(1), Findings(lost=["process 2 hung"])).spoiled == "process 2 hung"


def test_no_samples_have_no_delay():
    assert delay_of([]) is None
