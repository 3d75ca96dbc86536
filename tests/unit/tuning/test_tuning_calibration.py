"""The fit on published points: held-out errors within their tolerances, with and without the outlier, misses shown."""

from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_oke.catalogue.conditions import Conditions
from llmd_oke.catalogue.latency_figures import figures_text, known_figures, read_figures
from llmd_tuner import search_inputs
from llmd_tuner.calibration import (
    DECODE,
    PREFILL,
    by_load,
    by_spread,
    calibrate,
    leave_out,
    left_out_models,
    nonnegative_least_squares,
    predict,
)
from llmd_tuner.latency_models import latency_model_of
from llmd_tuner.measurements import decode_points, prefill_points
from llmd_tuner.row_filters import RowLimits, inspect
from tuning_for_tests import (
    FIGURES,
    LATENCY,
    MODEL,
    SHAPE,
    prompts_row,
    published,
    row,
    steps_row,
    tpot,
    tuning_values,
    unloaded_prefill_s,
)

TOLERANCES = tuning_values("tolerances")
SEQUENCES, SIZE = attrgetter("sequences"), attrgetter("parallelism.tensor_parallel_size")


def rows(kept):
    points = published()
    return inspect(points.kept_rows() if kept else points.rows(), RowLimits(LATENCY)).accepted


BOTH = pytest.mark.parametrize("kept", [True, False], ids=["without the outlier", "with the outlier"])


@BOTH
@pytest.mark.parametrize(
    ("role", "points", "by", "tolerance"),
    [
        pytest.param(DECODE, decode_points, by_load, "decode_each_load", id="decode by concurrency"),
        pytest.param(DECODE, decode_points, by_spread, "decode_each_size", id="decode by size"),
        pytest.param(PREFILL, prefill_points, by_spread, "prefill_each_size", id="prefill by size"),
    ],
)
def test_each_measured_load_and_size_is_predicted_from_the_others_within_tolerance(kept, role, points, by, tolerance):
    result = leave_out(role, points(rows(kept)), LATENCY, by)
    assert result is not None
    assert result.mean <= TOLERANCES[tolerance]


@BOTH
@pytest.mark.parametrize(
    ("by", "measured", "tolerance"),
    [
        pytest.param(SEQUENCES, {4, 32, 256}, "decode_unseen_loads", id="concurrency 4, 32 and 256"),
        pytest.param(SIZE, {1, 2}, "decode_sizes_1_and_2_predict_4_and_8", id="size 1 and 2"),
        pytest.param(SIZE, {2, 8}, "decode_sizes_2_and_8_predict_1_and_4", id="size 2 and 8"),
    ],
)
def test_a_decode_fit_of_some_loads_predicts_the_others_with_a_known_error(kept, by, measured, tolerance):
    points = decode_points(rows(kept))
    known = [point for point in points if by(point) in measured]
    unseen = [point for point in points if by(point) not in measured]
    assert predict(DECODE, known, unseen, LATENCY).mean <= TOLERANCES[tolerance]


@pytest.mark.parametrize("product", ["MI300X", "H100", "H200"])
def test_the_kits_latency_figures_equal_the_fit_of_published_points(product):
    node = search_inputs.known_gpu(product)
    shipped = known_figures(MODEL, node.gpu)
    unfitted = shipped.model_copy(update={"prefill": shipped.prefill.model_copy(update={"overhead_s": 0.0})})
    accepted = inspect(published(product).kept_rows(), RowLimits(latency_model_of(shipped, MODEL, node))).accepted
    fitted = calibrate(accepted, MODEL, node, unfitted).figures
    for now, then in ((fitted.prefill.fit, shipped.prefill.fit), (fitted.decode.fit, shipped.decode.fit)):
        assert now is not None
        assert then is not None
        stated = (then.error, then.unseen_load_error, then.unseen_size_error)
        assert (now.error, now.unseen_load_error, now.unseen_size_error) == pytest.approx(stated, abs=0.001)
    for factor in ("overhead_s", "compute_efficiency"):
        assert getattr(fitted.prefill, factor) == pytest.approx(getattr(shipped.prefill, factor), rel=0.01)
    for factor in ("fixed_s", "bytes_factor"):
        assert getattr(fitted.decode, factor) == pytest.approx(getattr(shipped.decode, factor), rel=0.01)
    assert set(fitted.measured_conditions().values()) == {shipped.conditions}


@pytest.mark.parametrize("product", ["H100", "H200"])
def test_held_out_errors_of_fits_for_other_gpus_are_within_tolerances(product):
    figures = known_figures(MODEL, search_inputs.known_gpu(product).gpu)
    assert figures.decode.fit is not None
    assert figures.prefill.fit is not None
    assert (figures.decode.fit.unseen_load_error or 1) <= TOLERANCES["decode_each_load"]
    assert (figures.decode.fit.unseen_size_error or 1) <= TOLERANCES["decode_each_size"]
    assert (figures.prefill.fit.unseen_size_error or 1) <= TOLERANCES["prefill_each_size"]


def test_a_fit_of_generated_points_recovers_the_latency_model_behind_them():
    made = [
        steps_row(size, batch, LATENCY.decode_step_s(batch, 4224, size), input_tokens=4096)
        for size in (1, 2, 4)
        for batch in (4, 32, 128)
    ]
    fit = calibrate(made, MODEL, SHAPE, FIGURES).figures.decode.fit
    assert fit is not None
    assert fit.error < 0.001
    assert (fit.most_sequences, fit.most_tokens) == (128, 4224)


@pytest.mark.parametrize("tokens", [1024, 4096], ids=["that go on together", "that take turns"])
def test_a_prefill_fit_lets_one_prompts_overhead_overlap_others_computation(tokens):
    """Eight prompts of 1024 tokens are one step of vLLM's budget, of 4096 tokens four steps."""
    together = min(8, 8192 // tokens)

    def served(size, concurrency):
        gpu_s, overhead_s = LATENCY.prefill_s(tokens, 0, size), LATENCY.factors.prefill_overhead_s
        alone_s = (gpu_s * min(concurrency, together) + overhead_s) / concurrency
        rate = 1 / max(gpu_s, alone_s)
        return prompts_row(size, concurrency=concurrency, input_tokens=tokens, achieved_requests_per_s=rate)

    made = [served(size, concurrency) for size in (1, 2) for concurrency in (1, 8)]
    figures = calibrate(made, MODEL, SHAPE, FIGURES).figures.prefill
    assert figures.compute_efficiency == pytest.approx(FIGURES.prefill.compute_efficiency, rel=0.01)
    assert figures.overhead_s == pytest.approx(FIGURES.prefill.overhead_s, rel=0.01)


def test_a_role_with_too_few_points_for_a_fit_keeps_its_former_latency_figures():
    result = calibrate(rows(True)[:5], MODEL, SHAPE, FIGURES)
    assert result.fitted == ("decode",)
    assert result.figures.prefill == FIGURES.prefill


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([{"output_tokens_per_s": 1000}, {"model": "other"}], "1 of 2 rows are of gpt-oss-120b on MI300X"),
        ([{"image": "one"}, {"image": "two"}], "several images: one, two"),
    ],
)
def test_fitting_too_few_rows_or_those_of_two_vllm_images_is_refused(changes, why):
    with pytest.raises(KitError, match=why):
        calibrate([row(**item) for item in changes], MODEL, SHAPE, FIGURES)


def decode_rows(count=3, **changes):
    return [row(concurrency=4 * (i + 1), tpot_ms=tpot(5.0 + i), **changes) for i in range(count)]


TOLD = {"image": "one", "attention_backend": "A", "quick_reduce": "NONE", "block_size": 16}


def test_fitting_rows_with_several_server_settings_is_refused_with_their_differences():
    mixed = [*decode_rows(2, **TOLD), *decode_rows(2, **{**TOLD, "block_size": 128}), row(image="one", concurrency=64)]
    with pytest.raises(KitError, match="The decode rows were measured under several conditions") as refused:
        calibrate(mixed, MODEL, SHAPE, FIGURES)
    assert "block size 128 (2 rows), 16 (2 rows), not told (1 rows)" in refused.value.message
    assert "attention backend A (4 rows), not told (1 rows)" in refused.value.message
    assert "--only block_size=VALUE" in (refused.value.remedy or "")


def test_fitted_latency_figures_record_server_settings_for_each_role(tmp_path):
    large = {**TOLD, "block_size": 128}
    made = [
        prompts_row(size, **large, achieved_requests_per_s=1 / LATENCY.prefill_s(4096, 0, size)) for size in (1, 2, 4)
    ]
    fitted = calibrate([*made, *decode_rows(4, **TOLD)], MODEL, SHAPE, FIGURES)
    assert fitted.fitted == ("prefill", "decode")
    (tmp_path / "fit.yaml").write_text(figures_text(fitted.figures))
    read = read_figures(tmp_path / "fit.yaml")
    assert (read.image, read.conditions) == ("one", None)
    sizes = {name: result.block_size for name, result in read.measured_conditions().items() if result}
    assert sizes == {"prefill": 128, "decode": 16}
    deployed = Conditions(image="one", attention_backend="A", quick_reduce="NONE", block_size=128)
    (told,) = read.differences(deployed)
    assert told.startswith("decode: block size 128, measured 16")


def test_a_fit_of_rows_without_server_settings_says_that_these_are_unknown():
    fitted = calibrate(decode_rows(4, image="one"), MODEL, SHAPE, FIGURES).figures
    told = fitted.differences(Conditions(image="one", attention_backend="A", block_size=16))
    assert (
        "decode: conditions unknown: what the measured servers were started with beside their image is not told" in told
    )
    assert any(text.startswith("prefill: attention backend A") for text in told)


def test_written_latency_figures_are_read_back_equal(tmp_path):
    fitted = calibrate(rows(True), MODEL, SHAPE, FIGURES).figures
    (tmp_path / "fit.yaml").write_text(figures_text(fitted))
    read = read_figures(tmp_path / "fit.yaml")
    assert read.decode.basis is Basis.CALIBRATED
    again = latency_model_of(read, MODEL, SHAPE).decode_step_s(64, 4224, 4)
    assert again == pytest.approx(latency_model_of(fitted, MODEL, SHAPE).decode_step_s(64, 4224, 4), rel=1e-3)


def test_a_file_without_latency_figures_is_refused_with_the_missing_field(tmp_path):
    (tmp_path / "fit.yaml").write_text("model: x\ngpu: y\n")
    with pytest.raises(KitError, match="prefill: is missing"):
        read_figures(tmp_path / "fit.yaml")


@given(
    st.lists(st.floats(0.1, 10), min_size=3, max_size=3),
    st.lists(st.lists(st.floats(0.1, 10), min_size=3, max_size=3), min_size=4, max_size=8),
)
@settings(max_examples=50)
def test_a_least_squares_fit_is_optimal_without_negative_coefficients(factors, matrix):
    columns = np.array(matrix)
    values = columns @ (np.array(factors) - 3)
    result = nonnegative_least_squares(columns, values)
    assert (result >= 0).all()
    slope = columns.T @ (values - columns @ result)
    assert (slope <= 1e-6 * np.abs(columns.T @ values).max() + 1e-9).all()


def exact(size, concurrency):
    """Return what a server of the latency model would measure."""
    step_s = LATENCY.decode_step_s(concurrency, 130, size)
    return row(tensor_parallel_size=size, concurrency=concurrency, output_tokens_per_s=concurrency / step_s)


ROWS = [exact(size, concurrency) for size in (1, 2) for concurrency in (4, 16, 64, 128, 256)]


def test_a_measured_point_held_out_of_a_fit_does_not_influence_its_own_prediction():
    wrong = ROWS[0].model_copy(update={"output_tokens_per_s": 10 * (ROWS[0].output_tokens_per_s or 0)})
    result = dict(left_out_models([wrong, *ROWS[1:]], LATENCY))
    assert result[wrong].decode_step_s(4, 130, 1) == pytest.approx(LATENCY.decode_step_s(4, 130, 1), rel=0.01)
    assert result[ROWS[1]].decode_step_s(4, 130, 1) < 0.8 * LATENCY.decode_step_s(4, 130, 1)


def test_each_of_more_than_three_measured_rows_is_held_out_of_exactly_one_fit():
    assert [row for row, _ in left_out_models(ROWS, LATENCY)] == ROWS
    assert list(left_out_models(ROWS[:3], LATENCY)) == []


def test_prefill_points_of_a_single_load_are_held_out_by_parallelism():
    made = [
        prompts_row(size, achieved_requests_per_s=1 / unloaded_prefill_s(LATENCY, 4096, size)) for size in (1, 2, 4, 8)
    ]
    base = replace(LATENCY, factors=replace(LATENCY.factors, prefill_overhead_s=1.0))
    result = {item.tensor_parallel_size: model for item, model in left_out_models(made, base)}
    assert unloaded_prefill_s(result[8], 4096, 8) == pytest.approx(unloaded_prefill_s(LATENCY, 4096, 8), rel=0.01)
