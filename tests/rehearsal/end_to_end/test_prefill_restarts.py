"""Prefill servers that are killed under a steady load, with servers that take their time to start: what clients see,
what becomes of decode servers, and what a benchmark says of it.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_rehearsal.cluster_plan import SIMULATOR_URL
from test_rollouts import REQUESTS_PER_S, loaded
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "restarts"
STARTUP_S = 10
MOST_ON_THEIR_WAY = 8
TIME_SCALE = "0.5"
RESTART = Path(__file__).with_name("server_restart.py")
FAULT = {"LLMD_OKE_REHEARSED_CRASH_AFTER_PREFILL_RESTART": "1"}


def rehearse(project: Project, **engine: Any) -> None:
    """Two servers of each role, and room for them twice."""
    project.write(
        STACK,
        models=[model(topology="2p-tp1-2d-tp1", engine=engine, workload={"inputTokens": 1024, "outputTokens": 128})],
        smoke={"where": "none", "requests": 200, "concurrency": 4},
    )
    own = ("--startup-seconds", str(STARTUP_S), "--time-scale", TIME_SCALE, "--json")
    done = project.command("rehearse", *own, "--stack", STACK)
    assert done.status == 0, done.errors


def restart(project: Project, how: str) -> dict[str, int]:
    own = ("rehearse", "run", "--stack", STACK, "--", sys.executable, str(RESTART), how, SIMULATOR_URL)
    done = project.command(*own)
    assert done.status == 0, done.errors
    return done.document


@pytest.fixture(scope="module")
def deployed(project: Project) -> None:
    """A model without the fault."""
    rehearse(project)


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize(
    ("how", "restarts"), [("container", {"prefill": 2}), pytest.param("pod", {}, marks=pytest.mark.nightly)]
)
def test_killed_prefill_servers_take_only_requests_with_them_that_were_on_their_way(
    project: Project, tmp_path: Path, how: str, restarts: dict[str, int]
) -> None:
    """Each in turn; decode servers run on."""
    with loaded(project, STACK, tmp_path) as load:
        counted = restart(project, how)
    failed, gap_s = len(load.failures), load.longest_gap_s
    print(f"{how}: {len(load.rows)} requests, {failed} failed, {gap_s:.1f} s without an answer, {counted}")
    assert len(load.rows) > STARTUP_S * REQUESTS_PER_S
    assert failed <= MOST_ON_THEIR_WAY, load.failures
    assert gap_s < STARTUP_S
    assert counted == restarts


@pytest.mark.nightly
def test_a_benchmark_with_decode_servers_crashing_over_a_prefill_server_is_not_clean(project: Project) -> None:
    rehearse(project, env=FAULT)
    argv = [sys.executable, "-m", "llmd_oke", "smoke", "--stack", STACK, "--rehearse", "--json"]
    with subprocess.Popen(argv, env=project.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as smoke:
        assert smoke.stderr
        next(line for line in smoke.stderr if b"measuring" in line)
        counted = restart(project, "container")
        output, _ = smoke.communicate(timeout=300)
    (summary,) = json.loads(output)["models"]
    (check,) = [check for check in summary["checks"] if check["name"] == "server restarts"]
    assert smoke.returncode == 1
    assert counted["decode"] >= 1
    assert not check["passed"]
    assert check["value"] >= 2
    assert "model servers restarted during the run, which is no clean measurement: " in check["evidence"]
    passport = json.loads((project.folder / "reports" / STACK / "latest" / "passport.json").read_text())
    assert passport["restarts"].keys() == {"decode/vllm", "prefill/vllm"}
