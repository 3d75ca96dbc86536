"""Errors by group and metric, against figures that were computed by hand."""

import json

import pytest
from llmd_base.row import Basis
from llmd_tuner import fidelity_report
from llmd_tuner.fidelity import METRICS_BY_SUBJECT, Case, ClaimSimulation, Omission, Standing
from llmd_tuner.fidelity_report import Report, verdict_of
from tuning_for_tests import row, tpot


def case(standing, seen, simulated, rehearsed=None, **changes):
    """Output tokens/s at concurrency 100 of two GPUs, as seen and as simulated."""
    changes = {"concurrency": 100.0, **changes}
    other = None if rehearsed is None else row(output_tokens_per_s=rehearsed, basis=Basis.CALIBRATED, **changes)
    predicted = row(output_tokens_per_s=simulated, basis=Basis.CALIBRATED, **changes)
    return Case(standing, row(output_tokens_per_s=seen, **changes), predicted, other)


CASES = (
    case(Standing.HELD_OUT, 1000.0, 1100.0, rehearsed=950.0),
    case(Standing.HELD_OUT, 200.0, 150.0, concurrency=50.0),
    case(Standing.IN_SAMPLE, 100.0, 101.0),
    case(Standing.OTHER_ACCELERATOR, 100.0, 900.0, gpu="H200"),
)
STATEMENTS = (
    ClaimSimulation("up to 950", "blog", "20 TPSU", (600.0, 950.0), 1045.0, Basis.CALIBRATED),
    ClaimSimulation("from 600 on", "blog", "60 TPSU", (600.0, 950.0), 540.0, Basis.CALIBRATED),
    ClaimSimulation("in between", "blog", "40 TPSU", (600.0, 950.0), 700.0, Basis.CALIBRATED),
)
REPORT = Report("gpt-oss-120b", "MI300X", "the kit's own", CASES, (Omission(row(), "odd"),), STATEMENTS)


def errors(title, metric):
    group = next(group for group in REPORT.groups if group.title == title)
    return next(item for item in group.metrics if (item.subject, item.metric.name) == ("decode", metric))


def seen(subject, off, **changes):
    """A measured E2E of a second, and one simulated that is `off` by a share."""
    measured = row(subject, e2e_ms=tpot(1000.0), **changes)
    return Case(Standing.HELD_OUT, measured, row(subject, e2e_ms=tpot(1000.0 * (1 + off)), **changes))


@pytest.mark.parametrize("metric", ["output_tokens_per_s", "tpsg", "tpsu"])
def test_a_fidelity_reports_group_has_the_mean_error_of_its_own_points(metric):
    """+10 % and -25 %."""
    assert errors("held out", metric).mean_absolute == pytest.approx(0.175)


def test_fidelity_points_compare_throughput_per_gpu_and_throughput_per_user():
    first = errors("held out", "tpsg").entries[0].compared
    assert (first.seen, first.predicted) == (500.0, 550.0)
    assert errors("held out", "tpsu").entries[0].compared.predicted == 11.0


def test_a_fidelity_report_has_the_largest_error_and_that_of_a_rehearsal():
    held_out = errors("held out", "output_tokens_per_s")
    assert (held_out.worst.compared.error, held_out.worst.name) == (-0.25, "decode tp2 2/256 C 50")
    assert held_out.rehearsed_mean_absolute == pytest.approx(0.05)


def test_a_fidelity_report_lists_held_out_points_first_and_limits_them_alone():
    assert [group.standing.title for group in REPORT.groups] == ["held out", "in sample", "another accelerator"]
    assert {group.standing for group, _ in REPORT.beyond(0.05)} == {Standing.HELD_OUT}
    assert REPORT.beyond(0.18) == []


def test_a_fidelity_report_has_separate_means_for_roles_and_whole_deployments():
    cases = (seen("prefill", 0.01), seen("decode", 0.02), seen("end-to-end", 0.3, topology="agg-tp1-1r"))
    report = Report("m", "MI300X", "x", cases)
    means = [(item.subject, round(item.mean_absolute, 3)) for item in report.groups[0].metrics]
    assert means == [("end-to-end", 0.3), ("prefill", 0.01), ("decode", 0.02)]
    assert [item.subject for _, item in report.beyond(0.2)] == ["end-to-end"]


def test_a_fidelity_report_has_a_group_for_each_other_vllm_image():
    cases = tuple(case(Standing.OTHER_IMAGE, 100.0, 110.0, image=image) for image in ("vllm:2", "vllm:3", "vllm:2"))
    groups = Report("m", "MI300X", "x", cases).groups
    counts = {group.title: len(group.cases) for group in groups}
    assert counts == {"another image: vllm:2": 2, "another image: vllm:3": 1}


def test_a_fidelity_report_shows_every_compared_metric():
    figures = {name: tpot(5.0).model_copy(update={"p95": 6.0}) for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")}
    rates = {"input_tokens_per_s": 7.0, "output_tokens_per_s": 8.0}
    rows = [row(subject, **figures, **rates) for subject in METRICS_BY_SUBJECT]
    (group,) = Report("m", "MI300X", "x", tuple(Case(Standing.HELD_OUT, item, item) for item in rows)).groups
    shown = [(item.subject, item.metric.name) for item in group.metrics]
    assert shown == [(subject, name) for subject, names in METRICS_BY_SUBJECT.items() for name in names]


def test_a_fidelity_reports_verdict_names_the_metrics_beyond_the_limit():
    assert str(verdict_of(REPORT, 0.16)).splitlines()[1] == "  held out: decode output, 17.5%"
    assert (verdict_of(REPORT, 0.16).passed, verdict_of(REPORT, 0.18).passed) == (False, True)


def test_points_of_another_accelerator_do_not_count_and_alone_nothing_passes():
    report = Report("m", "MI300X", "x", CASES[3:])
    assert (report.counted, verdict_of(report, 0.5).passed) == (False, False)


def test_a_fidelity_reports_decode_error_is_that_of_tpot():
    late = Case(Standing.HELD_OUT, row(tpot_ms=tpot(10.0)), row(tpot_ms=tpot(12.0)))
    (only,) = Report("m", "MI300X", "x", (late,)).groups[0].metrics
    assert (only.metric.name, only.mean_absolute) == ("tpot_ms.mean", pytest.approx(0.2))


def test_the_error_of_a_simulated_figure_is_its_distance_to_the_published_range():
    assert [item.error for item in STATEMENTS] == pytest.approx([0.1, -0.1, 0.0])
    assert ClaimSimulation("x", "blog", "1 TPSU", (None, 1.0), None, Basis.CALIBRATED).error is None


def test_fidelity_json_has_means_of_groups_and_every_point_with_its_basis():
    result = fidelity_report.as_json(REPORT)
    assert result["groups"][0]["metrics"][1]["metric"] == "tpsg"
    assert result["groups"][0]["metrics"][1]["mean_absolute_error"] == pytest.approx(0.175)
    assert result["groups"][2]["metrics"][1]["mean_absolute_error"] is None
    assert len(result["points"]) == 4 * 3
    assert result["omitted"] == ["runs.jsonl:7: odd"]
    first = json.loads(fidelity_report.json_lines(REPORT).splitlines()[0])
    assert (first["reference_basis"], first["simulated_basis"]) == ("measured", "calibrated")
    assert (first["error"], first["rehearsed_error"]) == (pytest.approx(0.1), pytest.approx(-0.05))


def test_a_fidelity_report_in_markdown_has_a_table_for_each_group_and_metric():
    text = fidelity_report.markdown(REPORT)
    assert "| decode tp2 2/256 C 100 | 1,000 | 1,100 | +10.0% | 950.0 | -5.0% |" in text
    assert "| decode | output (tokens/s) | 2 | 17.5% | 5.0% | -25.0% | decode tp2 2/256 C 50 |" in text
    assert "| decode | output (tokens/s) | 1 | - | - | +800.0% | decode tp2 2/256 C 100 |" in text
    assert "Not counted." in text


def test_the_fidelity_page_lists_and_does_not_draw_other_accelerators():
    text = fidelity_report.html(REPORT)
    assert "decode, held out (calibrated)" in text
    assert "another accelerator (calibrated)" not in text
    assert "<h2>Another accelerator</h2>" in text
