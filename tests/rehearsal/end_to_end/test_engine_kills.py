"""An engine and a control plane that are killed in the middle of an update leave nothing behind.

Each night more of them are, in refreshes and destroys too: `.github/workflows/faults.yml`.
"""

import json
import subprocess

import pytest
from user_project import ROOT, Project, model

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly]

LIMIT_S = 1500
USUAL_S = 6
"""Less than an update takes anywhere, so that the kill meets it; how long it takes is what the night measures."""


def test_killed_pulumis_and_control_planes_leave_no_orphaned_resource_and_no_lock(project: Project):
    project.write("killed", models=[model(topology="agg-tp1-1r")])
    chosen = ("--only", "engine", "--kills", "1", "--only", "control-plane", "--restarts", "1", "--usual", str(USUAL_S))
    measured = subprocess.run(
        [ROOT / "scripts" / "bench-faults", "--stack", "killed", *chosen, "--seed", "11", "--json"],
        env=project.environment(saves_steps=True),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert measured.returncode == 0, measured.stderr + measured.stdout
    faults = json.loads(measured.stdout)["faults"]
    assert [(fault["during"].partition(",")[0], fault["recovered"]) for fault in faults] == [("up", True)] * 2
    assert faults[1]["fault"] == "etcd killed"
