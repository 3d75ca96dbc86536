import pytest
from llmd_base.row import Basis
from llmd_bench.load.records import Failure, Health, MeasuredWindow, RequestRecord
from llmd_bench.load.stages import LoadStage, StageResult
from llmd_bench.load.workload import ClosedLoop, ConstantRate, PoissonRate, Trace
from llmd_bench.rows import stage_row
from llmd_oke import catalogue
from llmd_oke.catalogue.models import model_name

RECORDS = (
    RequestRecord(0, 0.0, 1.0, (0.5, 1.0), 100, 2),
    RequestRecord(1, 1.0, 1.0, (0.3, 1.0), 100, 2),
    RequestRecord(2, 1.5, 0.1, failure=Failure.STATUS, error="HTTP 503", status=503),
)


def of(shape, **changes):
    whole = {"records": RECORDS, "health": Health(), "window": MeasuredWindow(0.0, 2.0)}
    result = StageResult(LoadStage(shape, requests=3), **{**whole, **changes})
    return stage_row(result, model="m", gpu="MI300X", gpus_counted=2, topology="agg-tp1-2r")


def test_a_load_stages_row_has_rates_and_latencies_of_its_measured_window():
    outcome = of(ConstantRate(1.5))
    assert (outcome.achieved_requests_per_s, outcome.output_tokens_per_s, outcome.tpsg) == (1.0, 2.0, 1.0)
    assert (outcome.ttft_ms.mean, outcome.ttft_ms.p50, outcome.e2e_ms.max) == (400.0, 400.0, 1000.0)
    assert (outcome.requests, outcome.failures, outcome.duration_s, outcome.basis) == (3, 1, 2.0, Basis.MEASURED)
    assert (outcome.input_tokens, outcome.output_tokens, outcome.offered_requests_per_s) == (100, 2, 1.5)


@pytest.mark.parametrize(
    ("shape", "arrival", "concurrency"),
    [(ClosedLoop(8), "closed", 8), (PoissonRate(2), "poisson", 1.05), (Trace(()), "trace", 1.05)],
)
def test_a_rows_concurrency_is_that_of_its_closed_loop_or_else_the_mean_in_flight(shape, arrival, concurrency):
    outcome = of(shape)
    assert outcome.arrival == arrival
    assert outcome.concurrency == pytest.approx(concurrency)


def test_a_result_rows_notes_have_its_stages_window_health_failures_and_repetition():
    changes = {"health": Health(spoiled="too slow"), "window": MeasuredWindow(0, 2, "all")}
    outcome = of(ConstantRate(1), second_try_because="it ended", **changes)
    assert outcome.notes == (
        "counted: all",
        "too slow",
        "1 x HTTP 503 (no server is ready), first at 1.5 s: HTTP 503",
        "measured at the second try; the first: it ended",
    )


def test_the_result_row_of_a_load_stage_without_successes_has_no_latencies():
    outcome = of(ConstantRate(1), records=RECORDS[2:])
    assert (outcome.ttft_ms.mean, outcome.output_tokens_per_s, outcome.failures) == (None, 0.0, 1)


def test_a_result_rows_model_has_the_catalogues_name_instead_of_the_repository():
    model = catalogue.model("gpt-oss-120b")
    assert model_name(model.repository) == model.name
    assert model_name("somebody/else") == "somebody/else"
