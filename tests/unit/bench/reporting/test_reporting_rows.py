import pytest
from llmd_oke import catalogue
from llmd_oke.bench.load.stage import Stage, StageResult
from llmd_oke.bench.records.health import Health
from llmd_oke.bench.records.request import Failure, RequestRecord
from llmd_oke.bench.records.windows import Window
from llmd_oke.bench.reporting.rows import stage_row
from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate, PoissonRate, Trace
from llmd_oke.results.row import Basis

RECORDS = (
    RequestRecord(0, 0.0, 1.0, (0.5, 1.0), 100, 2),
    RequestRecord(1, 1.0, 1.0, (0.3, 1.0), 100, 2),
    RequestRecord(2, 1.5, 0.1, failure=Failure.STATUS, error="HTTP 503", status=503),
)


def result(shape, **changes) -> StageResult:
    whole = {"records": RECORDS, "health": Health(), "window": Window(0.0, 2.0)}
    return StageResult(Stage(shape, requests=3), **{**whole, **changes})


def of(shape, **changes):
    return stage_row(result(shape, **changes), model="m", gpu="MI300X", gpus_counted=2, topology="agg-tp1-2r")


def test_a_row_has_rates_and_latencies_of_the_window():
    found = of(ConstantRate(1.5))
    assert (found.achieved_requests_per_s, found.output_tokens_per_s, found.tpsg) == (1.0, 2.0, 1.0)
    assert (found.ttft_ms.mean, found.ttft_ms.p50, found.e2e_ms.max) == (400.0, 400.0, 1000.0)
    assert (found.requests, found.failures, found.duration_s, found.basis) == (3, 1, 2.0, Basis.MEASURED)
    assert (found.input_tokens, found.output_tokens, found.offered_requests_per_s) == (100, 2, 1.5)


@pytest.mark.parametrize(
    ("shape", "arrival", "concurrency"),
    [(ClosedLoop(8), "closed", 8), (PoissonRate(2), "poisson", 1.05), (Trace(()), "trace", 1.05)],
)
def test_users_are_those_of_the_loop_or_those_in_flight(shape, arrival, concurrency):
    found = of(shape)
    assert found.arrival == arrival
    assert found.concurrency == pytest.approx(concurrency)


def test_what_has_to_be_known_stands_in_the_notes():
    found = of(
        ConstantRate(1), health=Health(spoiled="too slow"), window=Window(0, 2, "all"), second_try_because="it ended"
    )
    assert found.notes == (
        "counted: all",
        "too slow",
        "1 x HTTP 503 (no server is ready), first at 1.5 s: HTTP 503",
        "measured at the second try; the first: it ended",
    )


def test_a_stage_in_which_nothing_succeeded_has_no_latencies():
    found = of(ConstantRate(1), records=RECORDS[2:])
    assert (found.ttft_ms.mean, found.output_tokens_per_s, found.failures) == (None, 0.0, 1)


def test_a_model_is_called_by_its_key_in_the_catalogue():
    model = catalogue.model("gpt-oss-120b")
    found = stage_row(result(ConstantRate(1)), model=model.repository, gpu="MI300X", gpus_counted=2)
    assert found.model == model.name
