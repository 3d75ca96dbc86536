"""The answer: what wins, why others lost, what changes it, and what to do where nothing will do."""

import pytest
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_oke.catalogue.latency_figures import latency_figures
from llmd_tuner.confidence import confine
from llmd_tuner.ranking import rank
from llmd_tuner.search import search
from llmd_tuner.search_inputs import Targets, parse_targets
from tuning_for_tests import FIGURES, question


def test_tune_rank_says_why_each_losing_kind_of_deployment_lost():
    result = rank(question(), sensitivity=False)
    assert result.best is not None
    reasons = {loser.deployment.family: loser.why for loser in result.losers}
    assert result.best.family not in reasons
    assert reasons["agg-tp1"].startswith("ITL 3")
    assert reasons["agg-tp1"].endswith("25 ms allowed")
    assert "of its rate" in reasons["p-tp8-d-tp8"]


def test_tune_rank_varies_each_input_by_ten_percent_in_both_directions():
    result = rank(question())
    inputs = {"decode step", "prefill time", "ISL", "OSL", "qps", "TTFT target", "ITL target"}
    assert {swing.name for swing in result.swings} == inputs
    assert {swing.factor for swing in result.swings} == {0.9, 1.1}


def test_tune_rank_reports_that_a_small_change_of_load_would_change_the_best():
    best = search(question("itl=25,qps=45")).best()
    assert best is not None
    edge = rank(question(f"itl=25,qps={best.capacity_per_s * 0.98}"))
    assert any(swing.changes for swing in edge.swings if swing.name == "qps" and swing.factor > 1)


def test_if_nothing_meets_the_targets_the_nearest_come_first_with_remedies_that_help():
    result = rank(question("ttft=200,itl=8,qps=45"))
    assert result.best is None
    ratios = [item.ratio for item in result.first]
    assert ratios == sorted(ratios)
    assert ratios[0] > 1
    load = next(item for item in result.remedies if item.startswith("qps="))
    gpus = next(item for item in result.remedies if "GPUs instead of 16" in item)
    assert search(question(f"ttft=200,itl=8,{load.split()[0]}")).best() is not None
    assert search(question("ttft=200,itl=8,qps=45", gpus=int(gpus.split()[0]))).best() is not None


def test_without_extrapolation_batches_stay_in_the_measured_range():
    asked, trust = confine(question(workload="64/64"), FIGURES, allow_extrapolation=False)
    assert asked.room.max_num_seqs == 256
    assert trust.tag == "calibrated"


def test_a_ranking_by_assumed_latency_figures_is_marked_as_bounds():
    figures = latency_figures("llama-3.3-70b-instruct-fp8-dynamic", "MI300X")
    assert figures is not None
    assert (figures.prefill.basis, figures.decode.basis) == (Basis.BOUND, Basis.CALIBRATED)
    _, trust = confine(question(), figures, allow_extrapolation=True)
    assert trust.basis is Basis.BOUND
    assert trust.tag == "bound"
    assert "decode ±2% in sample, prefill not measured" in trust.sentence
    assert "decode: servers tp1, tp2, tp4, measured tp8" in trust.beyond


def test_targets_are_parsed_in_milliseconds_and_requests_per_second():
    assert parse_targets("ttft=2000, itl=25,qps=45") == Targets(ttft_s=2.0, itl_s=0.025, requests_per_s=45.0)
    assert str(parse_targets("e2e=9000,qps=1.5")) == "e2e=9000,qps=1.5"


@pytest.mark.parametrize("text", ["ttft", "ttft=-1", "itl=nan", "p99=3", "qps=0", "ttft=1,ttft=2"])
def test_invalid_latency_targets_are_refused_with_an_example(text):
    with pytest.raises(KitError) as refused:
        parse_targets(text)
    assert "ttft=2000,itl=25,qps=45" in (refused.value.remedy or "")
