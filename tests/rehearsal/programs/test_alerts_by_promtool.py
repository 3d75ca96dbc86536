"""Rules as the real promtool reads them, and each alert with series that make it fire and series that clear it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_series import NAMESPACE, PICKER, SERIES
from llmd_oke.catalogue.endpoint_pickers import endpoint_picker
from llmd_oke.catalogue.monitoring import rules, watch
from llmd_oke.serving.monitoring import rule_groups
from llmd_rehearsal.programs import locate

pytestmark = pytest.mark.rehearsal

LIMIT_S = 120
NEEDS = frozenset({"disaggregated", "rdma", "slo", "leader", "price", "canaries"})
LATE = "50m"


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
    groups = rule_groups(watch(endpoint_picker(PICKER).metrics), NAMESPACE, NEEDS, ["gpt"], {"gpt": 2.0}, 6.0)
    path.write_text(yaml.safe_dump({"groups": groups}))
    return path


def run(promtool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_promtool_accepts_all_alert_rules(promtool: str, rule_file: Path) -> None:
    checked = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(rule_file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_has_test_series_that_make_it_fire_and_clear() -> None:
    assert set(SERIES) == {row.alert for row in rules().alerts}


def _case(name: str, series: dict[str, str], expression: str, at: str, value: int) -> dict[str, Any]:
    samples = [{"labels": "{}", "value": value}]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [{"expr": f"{expression} or vector(0)", "eval_time": at, "exp_samples": samples}],
    }


def _fires(alert: str, series: dict[str, str], *, fires: bool) -> dict[str, Any]:
    """Return how many alerts of that name fire late in the hour."""
    expression = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return _case(f"{alert} {'fires' if fires else 'clears'}", series, expression, LATE, int(fires))


def judge(promtool: str, rule_file: Path, cases: list[dict[str, Any]]) -> None:
    """One run for all: promtool takes longer to start than to judge."""
    tests = rule_file.with_name("tests.yml")
    tests.write_text(yaml.safe_dump({"rule_files": [rule_file.name], "tests": cases}))
    judged = run(promtool, "test", "rules", str(tests))
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_each_alert_fires_on_its_fault_series_and_is_silent_without_it(promtool: str, rule_file: Path) -> None:
    cases = [
        _fires(alert, series, fires=fires)
        for alert, (faulty, sound) in SERIES.items()
        for series, fires in ((faulty, True), (sound, False))
    ]
    judge(promtool, rule_file, cases)


def test_the_endpoint_pickers_alert_fires_when_its_envoys_stop_reporting_metrics(
    promtool: str, rule_file: Path
) -> None:
    _, sound = SERIES["PickerWithoutLeader"]
    ended = dict.fromkeys(sound, "1x10")
    judge(promtool, rule_file, [_fires("PickerWithoutLeader", ended, fires=True)])


def test_no_alert_becomes_pending_during_an_hour_of_a_sound_stacks_metrics(promtool: str, rule_file: Path) -> None:
    sound = {name: values for _, series in SERIES.values() for name, values in series.items()}
    longest_min = max(int(row.hold.removesuffix("m")) for row in rules().alerts)
    times = range(0, 60, longest_min // 2)
    judge(promtool, rule_file, [_case(f"{at} min", sound, "count(ALERTS)", f"{at}m", 0) for at in times])
