"""A benchmark during which prefill servers are killed, and decode servers crash over it."""

import json
import subprocess
import sys

import pytest
from test_rollouts import restart
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "restarts"
FAULT = {"LLMD_OKE_REHEARSED_CRASH_AFTER_PREFILL_RESTART": "1"}


@pytest.mark.nightly
def test_a_benchmark_during_which_decode_servers_crash_does_not_pass(project: Project) -> None:
    """Two servers of each role, and room for them twice."""
    servers = {"topology": "2p-tp1-2d-tp1", "workload": {"inputTokens": 1024, "outputTokens": 128}}
    smoke = {"where": "none", "requests": 200, "concurrency": 4}
    project.write(STACK, models=[model(**servers, engine={"env": FAULT})], smoke=smoke)
    deployed = project.command("rehearse", "--startup-seconds", "10", "--time-scale", "0.5", "--stack", STACK)
    assert deployed.status == 0, deployed.errors
    argv = [sys.executable, "-m", "llmd_oke", "smoke", "--stack", STACK, "--rehearse", "--json"]
    with subprocess.Popen(argv, env=project.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as bench:
        assert bench.stderr
        next(line for line in bench.stderr if b"measuring" in line)
        counted = restart(project, STACK, "container")
        output, _ = bench.communicate(timeout=300)
    (summary,) = json.loads(output)["models"]
    (check,) = [check for check in summary["checks"] if check["name"] == "server restarts"]
    assert bench.returncode == 1
    assert counted["decode"] >= 1
    assert not check["passed"]
    assert check["value"] >= 2
    assert "model servers restarted during the run, which is no clean measurement: " in check["evidence"]
    passport = json.loads((project.folder / "reports" / STACK / "latest" / "passport.json").read_text())
    assert passport["restarts"].keys() == {"decode/vllm", "prefill/vllm"}
