"""Which group a measurement belongs to: never mixed, and never called held out without knowing."""

import pytest
from llmd_oke.results.row import Basis
from llmd_oke.tuning.fidelity.standings import Known, Standing
from tuning_for_tests import FIGURES, row

IMAGE = "vllm:1"
FITTED = row(image=IMAGE)
KNOWN = Known(FIGURES, (FITTED,), (row(image=IMAGE, concurrency=4),))


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
def test_a_row_stands_by_its_gpu_image_and_load(measured, standing):
    assert KNOWN.standing(measured) is standing


def test_a_simulation_that_rests_on_an_assumed_prefill_is_no_forecast():
    assumed = FIGURES.model_copy(update={"prefill": FIGURES.prefill.model_copy(update={"basis": Basis.BOUND})})
    known = Known(assumed, (FITTED,))
    assert known.standing(end_to_end(image=IMAGE)) is Standing.ASSUMED
    assert known.standing(FITTED) is Standing.IN_SAMPLE


def test_servers_count_as_fitted_where_nobody_says_what_a_fit_has_seen():
    known = Known(FIGURES.model_copy(update={"image": IMAGE}), None)
    assert known.standing(row(image=IMAGE, concurrency=99)) is Standing.IN_SAMPLE
    assert known.standing(end_to_end(image=IMAGE)) is Standing.HELD_OUT


def test_figures_of_one_image_have_that_image():
    assert Known(FIGURES.model_copy(update={"image": "vllm:3"}), (FITTED,)).images == {"vllm:3"}


def test_figures_of_several_rows_have_the_images_of_these():
    assert KNOWN.images == {IMAGE}
