from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_oke.values import read_yaml
from llmd_tuner.fidelity import (
    FidelityContext,
    KnownFigures,
    PublishedRun,
    Simulator,
    Standing,
    compare,
    published_runs,
    simulated,
    unsuitable,
)
from llmd_tuner.row_filters import Inspection, RowFinding, Rule
from tuning_for_tests import FIGURES, LATENCY, MODEL, SHAPE, prompts_row, row, unloaded_prefill_s

IMAGE = "vllm:1"


def measured(**changes):
    return row(**{"image": IMAGE, "requests": 64, "output_tokens_per_s": 4000.0, **changes})


def rehearsed(**changes):
    return measured(**{"basis": Basis.CALIBRATED, **changes})


def held(*rows, fitted=(), rehearsed=(), findings=()):
    subject = FidelityContext(MODEL, SHAPE, KnownFigures(FIGURES.model_copy(update={"image": IMAGE}), fitted))
    inspection = Inspection((), tuple(findings))
    return compare(subject, [PublishedRun(row=item) for item in rows], rehearsed, inspection)


def finding(row, rule):
    return RowFinding(row, rule, "rejected", "why")


def test_a_fidelity_case_reports_the_relative_error_of_simulated_throughput():
    (case,) = held(measured()).cases
    assert case.standing is Standing.HELD_OUT
    assert {item.metric.name: item.error for item in case.figures}["tpsg"] == pytest.approx(
        (case.simulated.tpsg or 0) / 2000 - 1
    )


def test_a_rehearsal_of_the_same_load_is_shown_beside_its_measurement_but_no_bound():
    (case,) = held(measured(), rehearsed=[rehearsed(image="vllm:9", output_tokens_per_s=4400.0)]).cases
    assert [item.error for item in case.rehearsed_figures] == pytest.approx([0.1, 0.1, 0.1])
    (case,) = held(measured(), rehearsed=[measured(basis=Basis.BOUND)]).cases
    assert case.rehearsed is None


def test_a_rehearsal_without_a_measurement_of_its_load_is_a_separate_case():
    cases = held(measured(), rehearsed=[rehearsed(concurrency=8)]).cases
    assert [case.standing for case in cases] == [Standing.HELD_OUT, Standing.REHEARSED]
    assert cases[1].rehearsed_figures == []


def test_measurements_used_in_the_fit_are_also_predicted_by_a_fit_without_them():
    rows = [measured(concurrency=level, output_tokens_per_s=60.0 * level) for level in (4, 16, 64, 128, 256)]
    standings = [case.standing for case in held(*rows, fitted=tuple(rows)).cases]
    assert standings == 5 * [Standing.IN_SAMPLE] + 5 * [Standing.LEFT_OUT]


def test_measurements_above_the_hardwares_bound_are_not_compared_with_simulations():
    wrong = measured()
    result = held(wrong, findings=[finding(wrong, Rule.HARDWARE_BOUND)])
    assert result.cases == ()
    assert "above the hardware's bound" in str(result.omitted[0])


def test_requests_that_queued_in_a_measurement_queue_in_its_simulation():
    waited = measured(concurrency=512, max_num_seqs=256)
    assert len(held(waited, findings=[finding(waited, Rule.MAX_NUM_SEQS)]).cases) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "llama"}, "it is of llama"),
        ({"basis": Basis.BOUND}, "a bound"),
        ({"arrival": "trace"}, "trace"),
        ({"input_tokens": 1e8}, "doesn't fit its KV cache"),
        # A part of it is another load: under overload queues grow as long as it lasts.
        ({"requests": 60_000}, "60,000 requests would have to be simulated, at most 20,000 are"),
    ],
)
@pytest.mark.parametrize("role", ["measured", "rehearsed"])
def test_measurements_and_rehearsals_left_out_of_a_fidelity_report_have_a_reason(role, changes, why):
    result = held(measured(**changes)) if role == "measured" else held(rehearsed=[rehearsed(**changes)])
    assert result.cases == ()
    assert why in str(result.omitted[0])


SIMULATOR = Simulator(MODEL, SHAPE, LATENCY)


def open_loop(**changes):
    told = {"topology": "1p-tp1-1d-tp2", "tensor_parallel_size": None, "gpus_counted": 3, "concurrency": None}
    load = {"arrival": "constant", "offered_requests_per_s": 2.0, "input_tokens": 4096, "output_tokens": 16}
    return row("end-to-end", **{**told, **load, "requests": 40, **changes})


def test_a_prompts_simulated_ttft_is_the_latency_models_less_that_of_cache_hits():
    whole_ms, half_ms = (
        simulated(prompts_row(requests=200, prefix_cache_hit_share=share), SIMULATOR).ttft_ms.mean
        for share in (None, 0.5)
    )
    least_ms = LATENCY.factors.prefill_overhead_s * 1000
    assert whole_ms == pytest.approx(1000 * unloaded_prefill_s(LATENCY, 4096, 2))
    assert half_ms < least_ms + 0.7 * (whole_ms - least_ms)


def test_simulations_of_decode_measurements_do_not_prefill_prompts():
    result = simulated(row(input_tokens=4096, concurrency=1, requests=1), SIMULATOR)
    steps_s = [LATENCY.decode_step_s(1, 4096 + place, 2) for place in range(1, 256)]
    assert result.tpot_ms.mean == pytest.approx(1000 * sum(steps_s) / 255, rel=1e-3)
    assert result.ttft_ms.mean < 1000 * LATENCY.factors.prefill_overhead_s + 20


def test_fidelity_simulations_send_and_count_the_requests_that_were_measured():
    result = simulated(open_loop(), SIMULATOR)
    assert (result.requests, result.offered_requests_per_s, result.topology) == (3 * 40, 2.0, "1p-tp1-1d-tp2")
    result = simulated(open_loop(notes=("counted: all users busy",)), SIMULATOR)
    assert "the middle 60 % of the sending time" in result.notes


def test_a_simulated_closed_loop_without_a_number_of_requests_runs_for_a_minute():
    result = simulated(row(concurrency=512, max_num_seqs=256), SIMULATOR)
    assert result.duration_s is not None
    assert result.duration_s > 55


def test_a_simulation_with_bounds_for_latencies_has_the_basis_bound():
    bound = Simulator(MODEL, SHAPE, LATENCY, Basis.BOUND)
    assert {simulated(item, bound).basis for item in (prompts_row(requests=10), row(requests=None))} == {Basis.BOUND}


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        (open_loop(arrival="trace"), "trace"),
        (open_loop(offered_requests_per_s=None), "rate"),
        (open_loop(topology=None), "topology"),
        (row(concurrency=None), "concurrency"),
        (row(tensor_parallel_size=None), "tensor parallel size"),
        (open_loop(requests=20_001), "20,001 requests"),
        (open_loop(requests=12_001, notes=("counted: all users busy",)), "20,002 requests"),
    ],
)
def test_a_measurement_of_unknown_load_or_over_20000_requests_is_not_simulated(measured, why):
    assert why in str(unsuitable(measured))
    assert unsuitable(open_loop(requests=20_000)) is None


def test_simulating_a_measurement_whose_prompt_fits_no_server_is_refused():
    with pytest.raises(KitError):
        simulated(row(input_tokens=100_000_000, requests=1), SIMULATOR)


FITTED = row(image=IMAGE)
KNOWN = KnownFigures(FIGURES, (FITTED,), (row(image=IMAGE, concurrency=4),))


def end_to_end(**changes):
    return row("end-to-end", topology="8p-tp1-4d-tp2", tensor_parallel_size=None, gpus_counted=16, **changes)


@pytest.mark.parametrize(
    ("measured", "standing"),
    [
        (FITTED, Standing.IN_SAMPLE),
        (row(image=IMAGE, concurrency=32), Standing.HELD_OUT),
        (end_to_end(image=IMAGE), Standing.HELD_OUT),
        (row(image=IMAGE, concurrency=4), Standing.SET_ASIDE),
        (row(image="vllm:2"), Standing.OTHER_IMAGE),
        (row(image=None), Standing.UNKNOWN_IMAGE),
        (end_to_end(gpu="H200", image=IMAGE), Standing.OTHER_ACCELERATOR),
        (end_to_end(basis=Basis.CALIBRATED, image=IMAGE), Standing.REHEARSED),
    ],
)
def test_a_row_is_grouped_by_gpu_vllm_image_and_whether_it_was_fitted(measured, standing):
    assert KNOWN.standing(measured) is standing


def test_a_fidelity_case_with_a_bound_for_prefill_latency_counts_as_assumed():
    assumed = FIGURES.model_copy(update={"prefill": FIGURES.prefill.model_copy(update={"basis": Basis.BOUND})})
    known = KnownFigures(assumed, (FITTED,))
    assert known.standing(end_to_end(image=IMAGE)) is Standing.ASSUMED
    assert known.standing(FITTED) is Standing.IN_SAMPLE


def test_single_server_rows_count_as_fitted_if_a_fits_rows_are_unknown():
    known = KnownFigures(FIGURES.model_copy(update={"image": IMAGE}), None)
    assert known.standing(row(image=IMAGE, concurrency=99)) is Standing.IN_SAMPLE
    assert known.standing(end_to_end(image=IMAGE)) is Standing.HELD_OUT


def test_latency_figures_are_of_their_own_vllm_image_or_else_of_that_of_their_rows():
    assert KnownFigures(FIGURES.model_copy(update={"image": "vllm:3"}), (FITTED,)).images == {"vllm:3"}
    assert KNOWN.images == {IMAGE}


REPORT = Path(__file__).parents[1] / "bench" / "data" / "published-guide-report-v0.1.yaml"


@pytest.fixture(name="guide")
def guide_fixture():
    return next(run.row for run in published_runs("gpt-oss-120b", "H200") if run.row.topology == "8p-tp1-2d-tp4")


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("ttft_ms", "time_to_first_token"),
        ("tpot_ms", "time_per_output_token"),
        ("itl_ms", "inter_token_latency"),
        ("e2e_ms", "request_latency"),
    ],
)
def test_the_kits_copy_of_the_llm_d_guides_latencies_equals_the_published_report(guide, field, key):
    source = read_yaml(REPORT)["metrics"]["latency"][key]
    told = getattr(guide, field).model_dump(exclude_none=True)
    assert told == pytest.approx({name: 1000 * source[name] for name in told}, rel=1e-3)


def test_the_kits_copy_of_the_llm_d_guides_throughput_equals_the_published_one(guide):
    source = read_yaml(REPORT)["metrics"]["throughput"]
    assert guide.output_tokens_per_s == pytest.approx(source["output_tokens_per_sec"], rel=1e-3)
    assert guide.concurrency == pytest.approx(source["requests_per_sec"] * (guide.e2e_ms.mean or 0) / 1000, rel=2e-3)


def test_published_benchmark_runs_are_selected_by_model_and_gpu():
    runs = published_runs("gpt-oss-120b", "H200")
    assert {(run.row.model, run.row.gpu) for run in runs} == {("gpt-oss-120b", "H200")}
    assert len(published_runs("llama-3.3-70b-instruct-fp8-dynamic", "MI300X")) == 16
