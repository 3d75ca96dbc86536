import pytest
from llmd_base.errors import KitError
from llmd_base.metrics import metric
from llmd_base.row import Basis
from llmd_bench.comparison import (
    Side,
    breaches,
    compare,
    difference_interval,
    forecast_errors,
    mean_absolute_error,
    parse_gates,
    t_quantile,
    worst,
)
from results_rows import row

TTFT = metric("ttft_ms.p95")


def sides(a, b):
    return compare(Side("before", tuple(a)), Side("after", tuple(b)))


def change(a, b, of=TTFT):
    (load,) = sides(a, b).loads
    return load.change(of)


def test_a_comparison_rates_shorter_times_as_better_and_lower_rates_as_worse():
    a, b = [row(ttft=500.0, output_tokens_per_s=800.0)], [row(ttft=400.0, output_tokens_per_s=700.0)]
    assert (change(a, b).relative, change(a, b).verdict) == (pytest.approx(-0.2), "better")
    assert change(a, b, metric("tpsg")).verdict == "worse"


def test_a_comparison_of_single_runs_has_no_confidence_interval_and_says_so():
    compared = sides([row()], [row(ttft=400.0)])
    assert compared.loads[0].change(TTFT).interval is None
    assert any("single run" in note for note in compared.notes)


def test_a_change_within_the_variation_of_repeated_runs_is_unclear_and_beyond_worse():
    def of(*ttfts):
        return [row(ttft=ttft) for ttft in ttfts]

    assert change(of(400.0, 500.0, 600.0), of(420.0, 510.0, 620.0)).verdict == "unclear"
    result = change(of(500.0, 505.0, 495.0), of(600.0, 606.0, 594.0))
    assert result.verdict == "worse"
    low, high = result.relative_interval
    assert 0.15 < low < 0.2 < high


def test_results_are_compared_under_equal_loads_and_other_loads_are_listed():
    compared = sides([row(concurrency=8), row(concurrency=16)], [row(concurrency=16.1), row(concurrency=32)])
    assert [load.load.level for load in compared.loads] == [16]
    assert [load.level for load in compared.only_a] == [8]
    assert [load.level for load in compared.only_b] == [32]


def test_several_results_are_compared_by_equal_deployment_and_single_ones_always():
    assert sides([row(topology="agg-tp1-4r")], [row(topology="2p-tp1-1d-tp2")]).loads
    a = [row(topology="agg-tp1-4r", ttft=500.0), row(topology="2p-tp1-1d-tp2", ttft=300.0)]
    b = [row(topology="2p-tp1-1d-tp2", ttft=330.0), row(topology="agg-tp1-4r", ttft=500.0)]
    changes = {load.load.deployment: load.change(TTFT).relative for load in sides(a, b).loads}
    assert changes == {"agg-tp1-4r": 0, "2p-tp1-1d-tp2": pytest.approx(0.1)}


def test_results_without_a_common_load_are_refused_with_each_sides_loads():
    with pytest.raises(KitError, match="no load in common") as caught:
        sides([row(concurrency=8)], [row(concurrency=9)])
    assert "8 users" in caught.value.remedy
    assert "9 users" in caught.value.remedy


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"basis": Basis.CALIBRATED}, "not of the same kind"),
        ({"gpus_counted": 3, "gpus_reserved": 4}, {}, "3 MI300X, 4 reserved"),
    ],
)
def test_a_comparisons_note_reports_another_basis_and_unused_reserved_gpus(before, after, told):
    assert any(told in note for note in sides([row(**before)], [row(**after)]).notes)


def test_a_comparisons_note_names_a_run_that_could_not_keep_its_request_rate():
    behind = row(arrival="constant", offered_requests_per_s=45, achieved_requests_per_s=32.6)
    kept_up = row(arrival="constant", offered_requests_per_s=45, achieved_requests_per_s=44.9)
    (note,) = (note for note in sides([behind], [kept_up]).notes if "were offered" in note)
    assert note.startswith("before answered 72% of the 45 requests/s")


def test_a_comparisons_note_reports_failed_requests_and_does_not_count_them_as_slow():
    busy = row(arrival="constant", offered_requests_per_s=20, achieved_requests_per_s=13.1, requests=40, failures=13)
    calm = row(arrival="constant", offered_requests_per_s=20, achieved_requests_per_s=19.6)
    notes = sides([calm], [busy]).notes
    assert any(note.startswith("after: 13 of 40 requests failed") for note in notes)
    assert not any("were offered" in note for note in notes)


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (30, 2.0423)]
)
def test_quantiles_of_students_t_distribution_equal_those_of_published_tables(freedom, value):
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-5)


def test_the_confidence_interval_of_a_difference_is_that_of_welchs_t_test():
    """Reference: mean difference 3.5, variances 4/4 and 1/3, freedom 4.6, computed by hand."""
    low, high = difference_interval([10.0, 12.0, 14.0, 12.0], [15.0, 16.0, 15.5]) or (0, 0)
    assert (low + high) / 2 == pytest.approx(3.5)
    error = (8 / 3 / 4 + 0.25 / 3) ** 0.5
    freedom = (8 / 3 / 4 + 0.25 / 3) ** 2 / ((8 / 3 / 4) ** 2 / 3 + (0.25 / 3) ** 2 / 2)
    assert (high - low) / 2 == pytest.approx(error * t_quantile(0.975, freedom))


@pytest.mark.parametrize(("one", "other", "interval"), [([1.0], [1.0, 2.0], None), ([1.0, 1.0], [2.0, 2.0], (1, 1))])
def test_one_run_gives_no_confidence_interval_and_equal_runs_one_of_zero_width(one, other, interval):
    assert difference_interval(one, other) == interval


def judged(gate, a, b):
    return breaches(parse_gates([gate]), compare(Side("a", (a,)), Side("b", (b,))))


@pytest.mark.parametrize(
    ("gate", "fails"),
    [
        ("ttft_ms.p95>+10%", True),
        ("ttft_ms.p95>+20%", False),
        ("ttft_ms.p95 > +50", True),
        ("ttft_ms.p95>+80", False),
        ("ttft_ms.p95>570", True),
        ("ttft_ms.p95>600", False),
        ("output_tokens_per_s<-5%", True),
        ("output_tokens_per_s<-15%", False),
        ("output_tokens_per_s<500", False),
        ("tpsg<-5%", True),
    ],
)
def test_a_comparisons_gate_fails_beyond_its_limit(gate, fails):
    b = row(ttft=575.0, output_tokens_per_s=720.0)
    assert bool(judged(gate, row(), b)) is fails


def test_a_comparisons_failed_gate_says_by_how_much_and_under_which_load():
    (breach,) = judged("ttft_ms.p95>+10%", row(), row(ttft=575.0))
    assert "+15.0%, from 500 to 575 ms" in str(breach)
    assert "8 users" in str(breach)


@pytest.mark.parametrize("gate", ["goodput_share<0.9", "itl_ms.p95>+10%"])
def test_a_comparisons_gate_fails_if_the_metric_is_unmeasured_and_not_if_it_is_zero(gate):
    assert judged(gate, row(), row())
    assert not judged("failures_share>+10%", row(), row())


def test_all_invalid_gates_of_a_comparison_are_named_at_once():
    with pytest.raises(KitError) as caught:
        parse_gates(["ttft.p95>+10%", "ttft_ms.p95=3", "ttft_ms.p95>+10%"])
    assert "ttft_ms.p95" in caught.value.message.splitlines()[0]
    assert len(caught.value.message.splitlines()) == 2


def test_a_comparisons_gate_fails_if_one_side_lacks_a_load_of_the_baseline():
    compared = compare(Side("a", (row(), row(concurrency=64))), Side("b", (row(),)))
    (breach,) = breaches(parse_gates(["ttft_ms.p95>+10%"]), compared)
    assert "B has no result under it" in str(breach)
    assert "64 users" in str(breach)


def test_forecast_errors_are_predicted_over_measured_less_one_in_both_directions():
    errors = [
        item
        for value in (120.0, 70.0, 110.0)
        for item in forecast_errors(["tpsg"], row(output_tokens_per_s=value), row(output_tokens_per_s=100.0))
    ]
    assert [item.error for item in errors] == pytest.approx([0.2, -0.3, 0.1])
    assert worst(errors).error == pytest.approx(-0.3)
    assert mean_absolute_error(errors[1:]) == pytest.approx((0.1 + 0.3) / 2)
    assert list(forecast_errors(["goodput_share"], row(), row())) == []  # neither side has it
