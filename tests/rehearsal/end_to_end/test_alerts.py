"""Alerts of a watched stack fire by faults of a rehearsal and clear when these are gone; a sound stack has none."""

import json
import sys
from pathlib import Path
from typing import Any

import alert_faults
import pytest
from llmd_rehearsal.inventory import WATCHING
from llmd_rehearsal.programs import locate
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "alerting"
CRASHES = {"LLMD_OKE_REHEARSED_CRASH_AFTER_PREFILL_RESTART": "1"}
ENGINE = {"maxModelLen": 8192, "maxNumSeqs": 16, "extraArgs": ["--num-gpu-blocks-override=100"], "env": CRASHES}


@pytest.fixture(scope="module")
def outcome(project: Project) -> dict[str, Any]:
    """Return which alerts fired before any fault, and when each fired and cleared by its own."""
    if any(locate(name) is None for name in WATCHING):
        pytest.skip("no prometheus: `llmd-oke rehearse programs --tests` builds it")
    project.write(
        STACK,
        monitoring="install",
        canaries={"everySeconds": 1},
        gpuPools=[{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": alert_faults.NODES}],
        models=[model(topology="2p-tp1-2d-tp1", engine=ENGINE, slo={"ttftMs": 2000, "itlMs": 50})],
        smoke={"where": "none"},
    )
    rehearsed = project.rehearse(STACK)
    assert rehearsed.status == 0, rehearsed.errors
    driver, folder = Path(alert_faults.__file__), project.folder / ".rehearsal" / STACK
    ended = project.inside(STACK, sys.executable, str(driver), STACK, str(folder))
    print(ended.errors)
    return json.loads(ended.output.splitlines()[-1])


def test_a_sound_stack_fires_no_alert_for_as_long_as_any_alert_needs_to_fire(outcome: dict[str, Any]) -> None:
    assert outcome["early"] == []


@pytest.mark.parametrize("alert", alert_faults.REHEARSED)
def test_each_alert_fires_on_its_injected_fault_and_clears_after_it(outcome: dict[str, Any], alert: str) -> None:
    fired_s, cleared_s = outcome["alerts"][alert]
    assert fired_s is not None
    assert cleared_s is not None
