"""How a verified forecast is told."""

from pathlib import Path

import pytest
from llmd_oke.cli.tune import verify_view
from llmd_oke.cli.tune.verify_view import Verified
from llmd_oke.experiments.tuner.forecast_errors import compare
from llmd_oke.results.row import Basis, Quantiles, Row
from test_tuner_verification import forecast, subject


def verified(folder: Path, expected: Row, seen: Row) -> Verified:
    compared = tuple(compare(expected, seen))
    return Verified(subject(folder, basis=expected.basis), seen, compared, 0.25, folder)


def test_a_rehearsal_says_what_its_errors_are_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    seen = forecast(ttft_ms=Quantiles(mean=60.0))
    verify_view.show(verified(tmp_path, forecast(), seen))
    shown = capsys.readouterr().out
    assert "+100.0%" in shown
    assert "3 of 4 figures within 25%" in shown
    assert "nothing of real servers" in shown


def test_a_measurement_needs_no_such_word(tmp_path: Path):
    found = verify_view.as_json(verified(tmp_path, forecast(), forecast(basis=Basis.MEASURED)))
    assert found["seen"]["about"] is None
    assert found["seen"]["basis"] == "measured"
    assert found["beyond_tolerance"] == []


def test_a_bound_is_never_called_a_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bound = forecast(basis=Basis.BOUND)
    verify_view.show(verified(tmp_path, bound, forecast(ttft_ms=Quantiles(mean=60.0), basis=Basis.MEASURED)))
    shown = capsys.readouterr().out
    assert "no forecast" in shown
    assert "not held against the tolerance" in shown


def test_what_was_measured_under_other_conditions_than_forecast_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made_for = {"block_size": 128, "router_profile": "token-load"}
    expected, seen = forecast(**made_for), forecast(block_size=16, router_profile="token-load")
    found = Verified(subject(tmp_path, **made_for), seen, tuple(compare(expected, seen)), 0.25, tmp_path)
    (told,) = verify_view.as_json(found)["conditions"]
    assert told.startswith("block size 16, the forecast of ")
    assert told.endswith("was made for 128")
    verify_view.show(found)
    assert "not as forecast: block size 16" in capsys.readouterr().out
