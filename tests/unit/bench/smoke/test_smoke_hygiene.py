"""Remarks on how far the numbers of a run can be trusted."""

from llmd_oke.bench.deployment.metrics import MetricsEndpoint, Reading, Series, Snapshot
from llmd_oke.bench.smoke.hygiene import about_simulation


def snapshot(steps: float, late: float) -> Snapshot:
    series = {
        "llmd_oke_simulator_steps_total": (Series({}, steps),),
        "llmd_oke_simulator_late_steps_total": (Series({}, late),),
    }
    return Snapshot((Reading(MetricsEndpoint("decode", "decode-0", "http://decode-0/metrics"), series),))


def test_a_machine_too_slow_for_the_simulation_is_named() -> None:
    (remark,) = about_simulation(snapshot(100, 0), snapshot(1100, 250))
    assert "25% of its steps were late" in remark


def test_a_few_late_steps_are_not_worth_a_remark() -> None:
    assert list(about_simulation(snapshot(100, 0), snapshot(1100, 5))) == []


def test_real_servers_have_no_simulated_steps() -> None:
    empty = Snapshot((Reading(MetricsEndpoint("decode", "decode-0", "http://decode-0/metrics")),))
    assert list(about_simulation(empty, empty)) == []
