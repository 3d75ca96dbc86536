import pytest
from llmd_oke.errors import KitError
from llmd_oke.results.comparison import Side, compare
from llmd_oke.results.metrics import metric
from llmd_oke.results.row import Basis
from results_rows import row

TTFT = metric("ttft_ms.p95")


def sides(a, b):
    return compare(Side("before", tuple(a)), Side("after", tuple(b)))


def change(a, b, of=TTFT):
    (load,) = sides(a, b).loads
    return load.change(of)


def test_a_shorter_time_is_better_and_a_higher_rate_too():
    a, b = [row(ttft=500.0, output_tokens_per_s=800.0)], [row(ttft=400.0, output_tokens_per_s=700.0)]
    assert change(a, b).relative == pytest.approx(-0.2)
    assert change(a, b).verdict == "better"
    assert change(a, b, metric("tpsg")).verdict == "worse"


def test_a_single_run_has_no_confidence_and_says_so():
    compared = sides([row()], [row(ttft=400.0)])
    assert compared.loads[0].change(TTFT).interval is None
    assert any("single run" in note for note in compared.notes)


def test_a_change_within_what_repeats_differ_by_is_unclear():
    a = [row(ttft=ttft) for ttft in (400.0, 500.0, 600.0)]
    b = [row(ttft=ttft) for ttft in (420.0, 510.0, 620.0)]
    assert change(a, b).verdict == "unclear"


def test_a_change_beyond_what_repeats_differ_by_is_clear():
    a = [row(ttft=ttft) for ttft in (500.0, 505.0, 495.0)]
    b = [row(ttft=ttft) for ttft in (600.0, 606.0, 594.0)]
    found = change(a, b)
    assert found.verdict == "worse"
    low, high = found.relative_interval
    assert low < 0.2 < high
    assert low > 0.15


def test_loads_are_compared_each_with_its_like():
    compared = sides([row(concurrency=8), row(concurrency=16)], [row(concurrency=16.1), row(concurrency=32)])
    assert [load.load.level for load in compared.loads] == [16]
    assert [load.level for load in compared.only_a] == [8]
    assert [load.level for load in compared.only_b] == [32]


def test_single_deployments_are_compared_with_each_other():
    assert sides([row(topology="agg-tp1-4r")], [row(topology="2p-tp1-1d-tp2")]).loads


def test_several_deployments_are_compared_each_with_itself():
    a = [row(topology="agg-tp1-4r", ttft=500.0), row(topology="2p-tp1-1d-tp2", ttft=300.0)]
    b = [row(topology="2p-tp1-1d-tp2", ttft=330.0), row(topology="agg-tp1-4r", ttft=500.0)]
    changes = {load.load.deployment: load.change(TTFT).relative for load in sides(a, b).loads}
    assert changes == {"agg-tp1-4r": 0, "2p-tp1-1d-tp2": pytest.approx(0.1)}


def test_results_that_share_no_load_are_refused_with_what_each_has():
    with pytest.raises(KitError, match="no load in common") as caught:
        sides([row(concurrency=8)], [row(concurrency=9)])
    assert "8 users" in caught.value.remedy
    assert "9 users" in caught.value.remedy


def test_figures_of_different_kinds_are_pointed_out():
    compared = sides([row()], [row(basis=Basis.CALIBRATED)])
    assert any("not of the same kind" in note for note in compared.notes)


def test_a_run_that_could_not_follow_its_rate_is_pointed_out():
    behind = row(arrival="constant", offered_requests_per_s=45, achieved_requests_per_s=32.6)
    kept_up = row(arrival="constant", offered_requests_per_s=45, achieved_requests_per_s=44.9)
    notes = [note for note in sides([behind], [kept_up]).notes if "were offered" in note]
    assert len(notes) == 1
    assert notes[0].startswith("before answered 72% of the 45 requests/s")


def test_idle_reserved_gpus_are_pointed_out():
    compared = sides([row(gpus_counted=3, gpus_reserved=4)], [row()])
    assert any("3 MI300X, 4 reserved" in note for note in compared.notes)


def test_failures_are_told_and_are_not_taken_for_slowness():
    busy = row(arrival="constant", offered_requests_per_s=20, achieved_requests_per_s=13.1, requests=40, failures=13)
    calm = row(arrival="constant", offered_requests_per_s=20, achieved_requests_per_s=19.6)
    notes = sides([calm], [busy]).notes
    assert any(note.startswith("after: 13 of 40 requests failed") for note in notes)
    assert not any("were offered" in note for note in notes)
