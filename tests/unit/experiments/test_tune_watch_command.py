"""`llmd-oke tune watch`: its options, what it shows, and its exit code."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments_for_tests import project
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_oke.cli.main import app
from llmd_oke.operations.judgements import tolerances
from llmd_oke.operations.observations import CountedObservation
from llmd_tuner.cli.tune_watch import interval_text
from llmd_tuner.experiments import watching
from llmd_tuner.experiments.records import applied_file, keep_applied
from llmd_tuner.experiments.verification import verifying
from test_experiments_verification import forecast
from typer.testing import CliRunner, Result

AS_FORECAST = CountedObservation(
    basis=Basis.MEASURED,
    duration_s=600,
    answered=1500,
    requests_per_s=2.5,
    input_tokens=64,
    output_tokens=8,
    prefix_cache_hit_share=0,
    ttft_ms=120,
    itl_ms=5,
    running=0.1,
    most_running=3,
    waiting=0,
    kv_cache_usage=0.01,
    preemptions=0,
)


@pytest.fixture(name="watch")
def watch_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the command on a deployment that is seen so; `end` comes after the first reading."""
    keep_applied(applied_file(project(tmp_path), "s"), "gpt-oss-120b", forecast(), "qps=2.5")

    def run(*options: str, end: BaseException | None = None, **changes: Any) -> Result:
        seen = replace(AS_FORECAST, **changes)

        def readings(*_: object) -> Iterator[tuple[CountedObservation, CountedObservation]]:
            yield seen, seen
            if end:
                raise end

        monkeypatch.setattr(watching, "Reader", lambda *_: None)
        monkeypatch.setattr(watching, "watch", readings)
        return CliRunner().invoke(app, ["tune", "watch", "--stack", "s", "--project", str(tmp_path), *options])

    return run


def test_tune_watch_exits_with_0_if_assumptions_hold_and_else_suggests_tune_rank(watch: Any):
    result = watch()
    assert result.exit_code == 0
    assert "2.5/s" in result.output
    assert "llmd-oke tune rank" not in result.output
    result = watch(requests_per_s=5.0)
    assert result.exit_code == 1
    assert "llmd-oke tune rank --stack s --workload 64/8 --slo qps=5\n" in result.output
    assert watch("--tolerance", "2", requests_per_s=5.0).exit_code == 0


def test_watch_json_has_assumed_and_observed_figures_with_their_origins(watch: Any):
    document = json.loads(watch("--json", input_tokens=100).stdout)
    (length,) = (item for item in document["assumptions"] if item["name"] == "input_tokens")
    assert (length["assumed"], length["seen"], length["basis"], length["verdict"]) == (64, 100, "given", "above")
    assert document["seen"]["basis"] == "measured"
    assert document["holds"] is False


def test_tune_watch_exits_with_1_after_too_few_requests_with_one_json_document(watch: Any):
    result = watch(answered=3, requests_per_s=2.5)
    assert result.exit_code == 1
    assert "too few to tell" in result.stderr
    result = watch("--json", answered=3, requests_per_s=2.5)
    document = json.loads(result.stdout)
    assert document["holds"] is None
    assert "too few to tell" in document["error"]
    assert "too few to tell" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_tune_watch_that_ends_with_an_error_or_ctrl_c_shows_what_it_observed(watch: Any):
    result = watch(end=KitError("The pods can't be listed."))
    assert (result.exit_code, "1500 requests" in result.stdout) == (1, True)
    assert "The pods can't be listed." in result.stderr
    assert "can't be listed" in str(watch(end=KitError("The pods can't be listed."), duration_s=0.0).exception)
    result = watch(end=KeyboardInterrupt())
    assert (result.exit_code, "1500 requests" in result.output) == (130, True)


def test_output_of_tune_watch_fits_the_terminal_except_commands_to_copy(watch: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = watch(requests_per_s=5.0, ttft_ms=400.0).output.splitlines()
    assert [line for line in shown if len(line) > 80 and "llmd-oke tune rank" not in line] == []


@pytest.mark.parametrize("text", ["0", "0.5s", "25h"])
def test_an_invalid_duration_of_a_watch_is_refused(watch: Any, text: str):
    refused = watch("--every", text)
    assert (refused.exit_code, "from 1s to 24h" in refused.stderr) == (2, True)


def test_tune_watch_refuses_options_of_time_that_contradict_each_other(watch: Any):
    assert "exclude each other" in str(watch("--once", "--for", "1h").exception)
    assert "shorter" in str(watch("--every", "1m", "--for", "30s").exception)


def test_tune_watch_says_why_an_interval_is_left_out_or_that_it_had_no_requests():
    quiet = CountedObservation(basis=Basis.MEASURED, duration_s=15, answered=0)
    assert interval_text(quiet) == "no requests"
    assert interval_text(replace(quiet, duration_s=0, notes=("no answer",))) == "left out: no answer"


@pytest.mark.parametrize(
    ("command", "expected"), [("watch", tolerances().load_share), ("verify", verifying().tolerance)]
)
def test_help_of_tune_commands_shows_the_default_tolerance_of_forecasts(command: str, expected: float):
    result = CliRunner().invoke(app, ["tune", command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert f"{expected:g} if left out" in result.output
