"""Factors that no hardware has are told, and nothing is extrapolated along them."""

from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke.catalogue.latency_figures import (
    LatencyFigures,
    figures_text,
    known_figures,
    latency_figures,
    project_problems,
)
from llmd_tuner import search_inputs
from llmd_tuner.calibration import calibrate
from llmd_tuner.confidence import confine
from llmd_tuner.latency_models import unphysical
from project_entries import write_entry
from tuning_for_tests import FIGURES, MODEL, SHAPE, question, steps_row


def decode(**factors: object) -> LatencyFigures:
    return FIGURES.model_copy(update={"decode": FIGURES.decode.model_copy(update=factors)})


def prefill(**factors: object) -> LatencyFigures:
    return FIGURES.model_copy(update={"prefill": FIGURES.prefill.model_copy(update=factors)})


def flat_points(contexts=(130,)):
    """Steps whose time doesn't depend on what is read: the fit has nothing to tell bytes by."""
    return [
        steps_row(size, batch, 0.004 + 0.00005 * batch, input_tokens=context - 128)
        for size in (1, 2)
        for batch in (4, 32, 128)
        for context in contexts
    ]


@pytest.mark.parametrize(
    ("figures", "factor", "free"),
    [
        (decode(bytes_factor=0.0), "bytes_factor 0", "longer contexts cost hardly anything"),
        (decode(bytes_factor=0.9), "bytes_factor 0.9", "longer contexts cost too little"),
        (decode(flops_factor=0.0, sequence_s=0.0), "flops_factor and sequence_s 0", "large batches are free"),
        (decode(fixed_s={1: 0.0, 2: 0.003, 4: 0.0, 8: 0.003}), "fixed_s of TP1, TP4 0", "small batches"),
        (prefill(compute_efficiency=1.2), "compute_efficiency 1.2", "faster than the GPU's peak"),
        (prefill(overhead_s=0.0), "overhead_s 0", "short ones begin too soon"),
        (prefill(all_reduce_efficiency=1.0), "all_reduce_efficiency 1", "links' whole rate"),
    ],
)
def test_a_fitted_latency_factor_that_hardware_cannot_have_is_reported(figures, factor, free):
    result = [str(fault) for fault in unphysical(figures)]
    assert any(factor in text and free in text and " points, " in text for text in result)


@pytest.mark.parametrize(("gpu", "factors"), [("H100", ["bytes_factor"]), ("H200", ["bytes_factor"]), ("MI325X", [])])
def test_the_kits_fitted_latency_figures_that_exceed_memory_bandwidth_are_reported(gpu, factors):
    """No factor was fitted for MI325X."""
    result = unphysical(known_figures(MODEL, search_inputs.known_gpu(gpu).gpu))
    assert [fault.factor.split()[0] for fault in result] == factors


def test_a_decode_fit_of_short_contexts_only_is_reported_with_a_command_to_measure():
    figures = calibrate(flat_points(), MODEL, SHAPE, FIGURES).figures
    assert figures.decode.bytes_factor < 0.1
    (fault,) = [fault for fault in unphysical(figures) if fault.role == "decode"]
    assert fault.data == "6 points, contexts up to 130 tokens, up to 128 sequences"
    assert fault.remedy.startswith("`llmd-oke tune run --workload 4096/256`")


@pytest.mark.parametrize("allowed", [False, True])
def test_a_fit_in_which_contexts_take_no_time_is_not_used_for_longer_contexts(allowed):
    figures = calibrate(flat_points(), MODEL, SHAPE, FIGURES).figures
    with pytest.raises(
        KitError, match=r"can't be extrapolated so far:\n  decode: contexts of 4,224 tokens, measured"
    ) as e:
        confine(question(), figures, allow_extrapolation=allowed)
    assert "tune run --workload" in (e.value.remedy or "")


def test_a_fit_in_which_contexts_take_no_time_warns_within_its_measured_range():
    figures = calibrate(flat_points((4224,)), MODEL, SHAPE, FIGURES).figures
    _, trust = confine(question(), figures, allow_extrapolation=False)
    assert "longer contexts cost hardly anything" in trust.sentence


def test_a_fit_in_which_sequences_or_layers_take_no_time_permits_only_measured_sizes():
    figures = decode(flops_factor=0.0, sequence_s=0.0, fit=FIGURES.decode.fit.model_copy(update={"most_sequences": 64}))
    asked, _ = confine(question(), figures, allow_extrapolation=True)
    assert asked.room.max_num_seqs == 64
    fit = FIGURES.decode.fit.model_copy(update={"tensor_parallel_sizes": (1, 2)})
    asked, _ = confine(question(), decode(fixed_s={}, fit=fit), allow_extrapolation=True)
    assert {spread.kind for spread in asked.choices.spreads} == {"tp1", "tp2"}


def test_forecasts_use_latency_figures_stored_in_the_project(tmp_path: Path):
    write_entry(tmp_path, "latency/MI300X/gpt-oss-120b", figures_text(prefill(overhead_s=0.5)))
    assert not project_problems()
    used = latency_figures("gpt-oss-120b", "MI300X")
    assert used is not None
    assert used.prefill.overhead_s == 0.5
