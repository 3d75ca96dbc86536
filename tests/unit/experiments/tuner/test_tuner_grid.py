"""Which points are measured, and that what is said about them is so."""

import pytest
from llmd_oke.experiments.tuner.grid import decode_levels, grids, prefill_levels, sizes_of_grid
from llmd_oke.tuning.calibration.fit import DECODE, PREFILL, Role
from llmd_oke.tuning.calibration.validation import predict
from llmd_oke.tuning.measurements.hygiene import Limits, inspect
from llmd_oke.tuning.measurements.points import Point, decode_points, prefill_points
from llmd_oke.tuning.measurements.published import published_points
from llmd_oke.tuning.search import asking
from llmd_oke.tuning.servers.figures import latency_model_of

MODEL, SHAPE = asking.known_model("gpt-oss-120b"), asking.known_shape("BM.GPU.MI300X.8")
LATENCY = latency_model_of(asking.known_figures(MODEL, SHAPE), MODEL, SHAPE)


def test_the_adaptive_grid_has_the_least_the_most_and_one_between():
    assert sizes_of_grid("adaptive", (1, 2, 4, 8)) == (1, 8)
    assert decode_levels("adaptive", 8, 256) == (4, 32, 256)


def test_the_full_grid_is_the_published_one_as_far_as_servers_take_it():
    assert decode_levels("full", 2, 256)[-3:] == (64, 128, 256)
    assert decode_levels("full", 8, 512)[-3:] == (128, 256, 512)
    assert prefill_levels("full", 256) == (1, 4, 8, 16)


@pytest.mark.parametrize("grid", ["adaptive", "full"])
@pytest.mark.parametrize("most", [2, 3, 81, 256])
def test_no_level_is_above_what_a_server_takes_and_the_largest_batch_is_one(grid, most):
    assert max(decode_levels(grid, 4, most)) == most
    assert max(prefill_levels(grid, most)) <= most


def kept_points(role: Role) -> list[Point]:
    published = published_points("gpt-oss-120b", "MI300X")
    assert published is not None
    rows = inspect(published.kept_rows(), Limits(LATENCY)).accepted
    return decode_points(rows) if role is DECODE else prefill_points(rows)


@pytest.mark.parametrize(
    ("role", "levels", "error"),
    [(DECODE, {4, 32, 256}, grids().adaptive.decode_error), (PREFILL, {1}, grids().adaptive.prefill_error)],
    ids=["decode", "prefill"],
)
def test_the_adaptive_points_predict_the_published_others_as_well_as_it_is_said(role, levels, error):
    points = kept_points(role)
    known = [each for each in points if each.tensor_parallel_size in {1, 8} and each.sequences in levels]
    unseen = [each for each in points if each not in known]
    assert predict(role, known, unseen, LATENCY).mean == pytest.approx(error, abs=0.001)


@pytest.mark.parametrize(
    ("role", "error"),
    [(DECODE, grids().adaptive.full_decode_error), (PREFILL, grids().adaptive.full_prefill_error)],
    ids=["decode", "prefill"],
)
def test_a_fit_of_all_published_points_is_off_by_what_is_said(role, error):
    points = kept_points(role)
    assert predict(role, points, points, LATENCY).mean == pytest.approx(error, abs=0.001)
