"""Rules as the real promtool reads them, and each alert with series that make it fire and series that clear it."""

import subprocess
from collections.abc import Iterable
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
LATE = "30m"
"""When an alert has fired whose series ended after ten minutes."""

Groups = list[dict[str, Any]]


@pytest.fixture(scope="module")
def promtool() -> str:
    program = locate("promtool")
    if program is None:
        pytest.skip("no promtool: `llmd-oke rehearse programs --tests` builds it")
    return str(program.path)


@pytest.fixture(scope="module")
def groups() -> Groups:
    """All rules of a stack that has everything."""
    return rule_groups(watch(endpoint_picker(PICKER).metrics), NAMESPACE, NEEDS, ["gpt"], {"gpt": 2.0}, 6.0)


def run(promtool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_promtool_accepts_all_alert_rules(promtool: str, groups: Groups, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": groups}))
    checked = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(rules))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_has_test_series_that_make_it_fire_and_clear() -> None:
    assert set(SERIES) == {row.alert for row in rules().alerts}


def _case(name: str, series: dict[str, str], expression: str, times: Iterable[str], value: int) -> dict[str, Any]:
    expected = {"expr": f"{expression} or vector(0)", "exp_samples": [{"labels": "{}", "value": value}]}
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [{**expected, "eval_time": at} for at in times],
    }


def _fires(alert: str, series: dict[str, str], *, fires: bool) -> dict[str, Any]:
    """Return how many alerts of that name fire late in the hour."""
    expression = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return _case(f"{alert} {'fires' if fires else 'clears'}", series, expression, [LATE], int(fires))


def _with_alert(groups: Groups, alert: str) -> Groups:
    """The rules without other alerts: evaluating these too takes most of promtool's time."""
    return [
        {**group, "rules": [rule for rule in group["rules"] if rule.get("alert", alert) == alert]} for group in groups
    ]


def judge(promtool: str, folder: Path, *judged: tuple[Groups, list[dict[str, Any]]]) -> None:
    """One run for all rules and their cases: promtool takes longer to start than to judge."""
    files: list[str] = []
    for number, (groups, cases) in enumerate(judged):
        rules, tests = folder / f"rules-{number}.yml", folder / f"tests-{number}.yml"
        rules.write_text(yaml.safe_dump({"groups": groups}))
        tests.write_text(yaml.safe_dump({"rule_files": [rules.name], "tests": cases}))
        files.append(str(tests))
    ended = run(promtool, "test", "rules", *files)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_each_alert_fires_on_its_fault_series_and_is_silent_without_it(
    promtool: str, groups: Groups, tmp_path: Path
) -> None:
    judged = [
        (_with_alert(groups, alert), [_fires(alert, faulty, fires=True), _fires(alert, sound, fires=False)])
        for alert, (faulty, sound) in SERIES.items()
    ]
    judge(promtool, tmp_path, *judged)


def test_the_endpoint_pickers_alert_fires_when_its_envoys_stop_reporting_metrics(
    promtool: str, groups: Groups, tmp_path: Path
) -> None:
    _, sound = SERIES["PickerWithoutLeader"]
    ended = dict.fromkeys(sound, "1x10")
    judge(promtool, tmp_path, (groups, [_fires("PickerWithoutLeader", ended, fires=True)]))


def test_no_alert_becomes_pending_during_an_hour_of_a_sound_stacks_metrics(
    promtool: str, groups: Groups, tmp_path: Path
) -> None:
    sound = {name: values for _, series in SERIES.values() for name, values in series.items()}
    longest_min = max(int(row.hold.removesuffix("m")) for row in rules().alerts)
    times = [f"{at}m" for at in range(0, 60, longest_min // 2)]
    judge(promtool, tmp_path, (groups, [_case("sound", sound, "count(ALERTS)", times, 0)]))
