"""Verdicts of evaluations."""

import pytest
from llmd_oke.bench.evals.result import EvalResult, judge, read_result, write_result
from llmd_oke.errors import KitError


def result(answers="1" * 80, **changes):
    values = {
        "evaluation": "builtin",
        "question_set": "abc",
        "model": "gpt-oss-120b",
        "image": "vllm:1",
        "topology": "8p-tp1-4d-tp2",
        "config_hash": "0123",
        "basis": "measured",
        "started": "2026-03-01T00:00:00+00:00",
        "wall_s": 1.0,
        "answers": answers,
    }
    return EvalResult(**{**values, **changes})


def test_a_score_at_its_floor_passes():
    assert judge(result("1" * 95 + "0" * 5), 0.95, None).passed


def test_a_score_below_its_floor_fails_and_says_both():
    (failure,) = judge(result("1" * 94 + "0" * 6), 0.95, None).failures
    assert "94.0%" in failure
    assert "95.0%" in failure


def test_an_unknown_floor_fails():
    (failure,) = judge(result(), None, None).failures
    assert "--floor" in failure


def test_no_answers_at_all_fail():
    assert not judge(result(""), 0.0, None).passed


def test_a_loss_against_the_baseline_fails_even_above_the_floor():
    worse = result("1" * 70 + "0" * 10)
    judged = judge(worse, 0.5, result("1" * 80, topology="agg-tp1-16r"))
    assert not judged.passed
    assert judged.baseline_score == 1.0


@pytest.mark.parametrize("what", ["question_set", "image", "model", "evaluation"])
def test_a_baseline_of_something_else_is_refused(what):
    with pytest.raises(KitError, match="other"):
        judge(result(), 0.5, result(**{what: "other"}))


def test_a_result_is_read_back_as_it_was_written(tmp_path):
    written = result("1101", examples=("recall-1: 'seven'",), unanswered=1)
    assert read_result(write_result(written, tmp_path)) == written


def test_a_file_that_is_no_result_is_named(tmp_path):
    (tmp_path / "eval-builtin.json").write_text("{}")
    with pytest.raises(KitError, match=r"eval-builtin\.json"):
        read_result(tmp_path / "eval-builtin.json")
