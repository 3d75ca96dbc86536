"""The tuner's loop through the command line, in a rehearsal: plan, run, rank, apply, up, verify and watch."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_base.row import Basis
from llmd_bench.files import read_rows
from llmd_oke.values import read_yaml
from user_project import LIMIT_S, Ended, Project, model

STACK = "tuned"
MEASURED = ("--rehearse", "--size", "1", "--size", "2", "--max-num-seqs", "16")
SLO = ("--slo", "qps=4", "--gpus", "3", "--max-num-seqs", "16")
TIME_SCALE = "4"
LEAST_ITL_MS = 1.5
"""Half the time of a decode step of one sequence on the simulated server. A busy machine lengthens times between
tokens by any factor, and shortens them only as far as a request's first token is late.
"""


@dataclass(frozen=True)
class Loop:
    """Answers of each command of the loop, and the stack file before and after."""

    plan: Ended
    run: Ended
    rank: Ended
    apply: Ended
    up: Ended
    verify: Ended
    watch: Ended
    before: dict[str, Any]
    after: dict[str, Any]
    kept: Path


@pytest.fixture(scope="module")
def loop(project: Project) -> Loop:
    own = model(topology="1p-tp1-1d-tp1", workload={"inputTokens": 512, "outputTokens": 8}, slo={"itlMs": 40.0})
    project.write(STACK, models=[own])

    def tune(command: str, *options: str) -> Ended:
        return project.command("tune", command, "--stack", STACK, *options)

    before = _entry(project)
    plan = tune("plan", *MEASURED, "--json")
    run = tune("run", *MEASURED, "--time-scale", TIME_SCALE)
    rank = tune("rank", *SLO, "--json")
    apply = tune("apply", *SLO)
    after = _entry(project)
    up = project.command("rehearse", "--stack", STACK, "--json", "--time-scale", TIME_SCALE)
    verify, watch = _watched(project, lambda: tune("verify", "--rehearse", "--requests", "20", "--json"))
    rest = project.folder / "reports" / STACK / "tuning"
    return Loop(plan, run, rank, apply, up, verify, watch, before, after, rest)


def _watched(project: Project, load: Callable[[], Ended]) -> tuple[Ended, Ended]:
    """Watch while something loads the model, and press Ctrl-C then; a shell's background jobs would ignore it."""
    words = ["tune", "watch", "--stack", STACK, "--rehearse", "--every", "2s", "--json"]
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "llmd_oke", *words],
        env={**os.environ, "LLMD_OKE_PROJECT": str(project.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stderr
        outputs = next((line for line in command.stderr if "requests/s" in line), None)
        loaded = load() if outputs else Ended(1, "", "nothing was watched")
        command.send_signal(signal.SIGINT)
        output, errors = command.communicate(timeout=LIMIT_S)
    return loaded, Ended(command.returncode, output, errors)


def _entry(project: Project) -> dict[str, Any]:
    """The model's entry in the stack file."""
    document = read_yaml(project.folder / "stacks" / f"Pulumi.{STACK}.yaml")
    return document["config"]["llmd-oke:stack"]["models"][0]


def test_every_command_of_the_tuning_loop_exits_with_0(loop: Loop) -> None:
    for ended in (loop.plan, loop.run, loop.rank, loop.apply, loop.up, loop.verify):
        assert ended.status == 0, ended.errors
        assert "Traceback" not in ended.errors


def test_all_measurements_that_tune_plan_shows_are_run_and_stored_as_rows(loop: Loop) -> None:
    rows = read_rows(loop.kept / "rows.jsonl")
    assert len(rows) == loop.plan.document["points"] == 10
    assert {row.basis for row in rows} == {Basis.CALIBRATED}
    assert {row.prefix_cache_hit_share for row in rows if row.subject == "prefill"} == {0.0}


def test_rows_of_tuning_measurements_record_the_settings_of_their_servers(loop: Loop) -> None:
    """Servers that only prefill are measured with the block size of those that hand their KV cache over."""
    rows = read_rows(loop.kept / "rows.jsonl")
    output = {(row.subject, row.release, row.block_size, row.quick_reduce, row.router_profile) for row in rows}
    assert output == {("prefill", "llm-d-0.9.0", 128, "NONE", "none"), ("decode", "llm-d-0.9.0", 128, "NONE", "none")}
    measured = " ".join(loop.rank.document["confidence"]["conditions"])
    assert "aggregated: block size 64, measured 128" in measured
    assert "prefill/decode" not in measured


def test_tune_rank_uses_a_fit_of_the_measured_rows_and_does_not_extrapolate_it(loop: Loop) -> None:
    assert "figures  fitted to 10 rows (calibrated)" in loop.rank.errors
    assert loop.rank.document["confidence"]["beyond"] == []


def test_tune_apply_writes_the_best_topology_and_it_is_deployed(loop: Loop) -> None:
    best = loop.rank.document["best"]
    assert loop.after["topology"] == best["topology"]
    assert loop.after["engine"] == {"maxNumSeqs": best["max_num_seqs"]}
    assert loop.after != loop.before
    (deployed,) = loop.up.document["plan"]["models"]
    assert deployed["topology"] == best["topology"]


def test_tune_verify_compares_the_forecast_with_the_deployed_servers(loop: Loop) -> None:
    verified = loop.verify.document
    assert verified["offered_requests_per_s"] == 4
    assert verified["forecast"]["basis"] == verified["seen"]["basis"] == "calibrated"
    assert verified["seen"]["failures"] == 0
    assert all(text.startswith("router profile") for text in verified["conditions"])  # of the router that stands in
    assert set(verified["figures"]) >= {"ttft_ms.mean", "itl_ms.mean", "e2e_ms.mean", "output_tokens_per_s", "tpsg"}
    for figure in verified["figures"].values():
        assert figure["error"] == pytest.approx(figure["forecast"] / figure["seen"] - 1)


def test_tune_verify_compares_with_the_forecast_of_the_best_topology_of_tune_rank(loop: Loop) -> None:
    """The accuracy of fits is tested without clocks, in test_tuning_calibration.py."""
    figures, best = loop.verify.document["figures"], loop.rank.document["best"]
    assert figures["itl_ms.mean"]["forecast"] == pytest.approx(1000 * best["itl_s"])


def test_tune_verify_measures_inter_token_latency_in_the_simulated_servers_time(loop: Loop) -> None:
    assert loop.verify.document["figures"]["itl_ms.mean"]["seen"] >= LEAST_ITL_MS


def test_the_run_of_tune_verify_is_stored_with_a_row_for_each_request(loop: Loop) -> None:
    folder = Path(loop.verify.document["folder"])
    assert len(list(folder.glob("*/*/requests.jsonl"))) == 1
    assert json.loads((folder / "run.json").read_text())["settings"]["rehearsed"]


def test_tune_watch_observes_the_load_that_tune_verify_sent(loop: Loop) -> None:
    assert loop.watch.status == 130, loop.watch.errors
    watched = loop.watch.document
    seen = {item["name"]: item["seen"] for item in watched["assumptions"] if item["kind"] != "limit"}
    assert watched["seen"]["requests"] > 0
    assert (seen["input_tokens"], seen["output_tokens"]) == (pytest.approx(512, rel=0.1), pytest.approx(8, rel=0.1))
    assert seen["itl_ms"] >= LEAST_ITL_MS
