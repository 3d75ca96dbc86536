"""Prefill and decode servers that KEDA scales: they keep the topology's proportion, and drain before they go."""

import json
import sys
from pathlib import Path

import pytest
from llmd_rehearsal.inventory import FOLLOWING, WATCHING
from llmd_rehearsal.programs import locate
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "scaled-pair"
ADDRESS = "http://gpt-oss-120b.llm-d.svc.cluster.local"
LOAD = Path(__file__).with_name("paired_load.py")
SCALING = {
    "prefill": {"minReplicas": 2, "maxReplicas": 4, "promptTokensPerS": 100_000},
    "decode": {"minReplicas": 1, "maxReplicas": 2, "requests": 4},
    "scaleDownWindowS": 60,
}
"""Prefill servers have nothing to do of their own."""


def test_prefill_servers_scale_in_proportion_to_decode_servers_and_no_request_fails(project: Project) -> None:
    if missing := [name for name in (*WATCHING, *FOLLOWING) if locate(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: `llmd-oke rehearse programs --tests` builds them")
    models = [model(topology="2p-tp1-1d-tp1", scaling=SCALING)]
    project.write(STACK, models=models, smoke={"where": "none"})
    how = ("--stack", STACK, "--time-scale", "0.5", "--no-benchmark", "--scaling-speed", "30")
    done = project.command("rehearse", *how)
    assert done.status == 0, done.errors
    sent = project.inside(STACK, sys.executable, str(LOAD), ADDRESS)
    seen = json.loads(sent.output.splitlines()[-1])
    assert seen["grown"] == {"prefill": 4, "decode": 2}
    assert seen["shrunk"] == {"prefill": 2, "decode": 1}
    assert seen["failures"] == 0
