"""Rules as the real promtool reads them, and each alert with series that make it fire and series that clear it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_series import NAMESPACE, SERIES
from llmd_oke.catalogue.monitoring import rules
from llmd_oke.serving.monitoring import rule_groups
from llmd_rehearsal.programs import locate

pytestmark = pytest.mark.rehearsal

LIMIT_S = 120
NEEDS = frozenset({"disaggregated", "rdma", "slo", "leader"})
LATE, VERY_LATE = "50m", "110m"


@pytest.fixture(scope="module")
def promtool() -> str:
    program = locate("promtool")
    if program is None:
        pytest.skip("no promtool: `llmd-oke rehearse programs --tests` builds it")
    return str(program.path)


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All rules of a stack that has everything."""
    path = tmp_path_factory.mktemp("rules") / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": rule_groups(NAMESPACE, NEEDS, {"gpt": 2.0})}))
    return path


def run(promtool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_promtool_accepts_all_rules(promtool: str, rule_file: Path) -> None:
    checked = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(rule_file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_has_series_that_make_it_fire_and_clear() -> None:
    assert set(SERIES) == {row.alert for row in rules().alerts}


def _queries(alert: str, series: dict[str, str], fires: bool) -> dict[str, Any]:
    """How many alerts of that name fire late in the hour."""
    late = VERY_LATE if alert == "CertificateExpires" else LATE
    expression = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    samples = [{"labels": "{}", "value": int(fires)}]
    return {
        "name": f"{alert} {'fires' if fires else 'clears'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": late, "exp_samples": samples}],
    }


def test_each_alert_fires_by_its_fault_and_is_silent_without_it(promtool: str, rule_file: Path) -> None:
    """One run for all: promtool takes longer to start than to judge."""
    cases = [
        _queries(alert, series, fires)
        for alert, (faulty, sound) in SERIES.items()
        for series, fires in ((faulty, True), (sound, False))
    ]
    tests = rule_file.with_name("tests.yml")
    tests.write_text(yaml.safe_dump({"rule_files": [rule_file.name], "tests": cases}))
    judged = run(promtool, "test", "rules", str(tests))
    assert judged.returncode == 0, judged.stdout + judged.stderr
