"""Tests of the tuner, by room; what they share is in `tuning_for_tests`."""

import pytest
from llmd_tuner import ranking


@pytest.fixture
def _without_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank without varying the inputs, which takes most of a command's time; test_tuning_ranking.py varies them."""
    monkeypatch.setattr(ranking, "_INPUTS", {})
