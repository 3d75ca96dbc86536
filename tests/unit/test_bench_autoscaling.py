import autoscaling
import pytest
from autoscaling import Size, SizingStep
from autoscaling_load import AnswerTimes, Look
from llmd_bench.load.workload import RateProfile
from llmd_oke import config, planning

SLOPE = RateProfile("slope", ((0, 2), (100, 2), (200, 10), (300, 10)))
MET = AnswerTimes(0.0, 2000.0, 10.0, None)


@pytest.fixture(scope="module")
def scene():
    return autoscaling.usual_scene()


def step(at_s: float, prefill: int, decode: int) -> SizingStep:
    return SizingStep(at_s, Size(prefill, decode), prefill + decode, 8)


def look(at_s: float, gpus: int, ending_gpus: int = 0) -> Look:
    return Look(at_s, gpus, ending_gpus, 8, {"prefill": 2, "decode": 1}, {"prefill": 2, "decode": 1})


def test_requests_of_a_rate_profile_follow_its_rates_reproducibly_down_to_none():
    moments = [entry.at_s for entry in SLOPE.trace(1).entries]
    assert moments == [entry.at_s for entry in SLOPE.trace(1).entries] == sorted(moments)
    for first_s, last_s, expected in ((0, 100, 200), (100, 200, 600), (200, 300, 1000)):
        assert abs(sum(first_s <= at_s < last_s for at_s in moments) - expected) < 4 * expected**0.5
    assert RateProfile("idle", ((0, 0), (60, 0))).trace().entries == ()


def test_rates_of_a_profile_are_interpolated_at_any_speed_and_constant_before_it():
    assert [SLOPE.rate_per_s(at_s) for at_s in (0, 50, 150, 300, 999)] == [2, 2, 6, 10, 10]
    assert (SLOPE.duration_s, SLOPE.peak_per_s) == (300, 10)
    fast = SLOPE.faster(10)
    assert (fast.duration_s, fast.rate_per_s(15), fast.peak_per_s) == (30, 6, 10)
    led = autoscaling.with_lead(SLOPE, 60)
    assert (led.duration_s, led.rate_per_s(30), led.rate_per_s(210)) == (360, 2, 6)


def test_the_ideal_autoscaler_has_servers_ready_exactly_while_they_are_needed():
    def fewest(rate: float) -> Size:
        return Size(1, 1) if rate <= 2 else Size(4, 2)

    bump = RateProfile("bump", ((0, 2), (100, 2), (101, 8), (200, 8), (201, 2), (300, 2)))
    steps = autoscaling.oracle_steps(bump, fewest, startup_s=50, gpus_per_node=4, interval_s=10)
    large = [item.at_s for item in steps if item.servers == Size(4, 2)]
    assert (large[0], large[-1]) == (60, 200)
    assert {(item.gpus, item.node_gpus) for item in steps} == {(2, 4), (6, 8)}


def test_the_ideal_autoscaler_uses_the_fewest_gpus_that_carry_a_rate(scene):
    capacities = autoscaling.Capacities(scene.question, scene.fixed)
    sizes = [capacities.fewest(scene.peak_per_s * share) for share in (0.05, 0.25, 0.5, 1.0)]
    assert [size.gpus for size in sizes] == sorted(size.gpus for size in sizes)
    assert sizes[0] == Size(1, 1)
    assert sizes[-1].gpus <= scene.fixed.gpus
    assert capacities.fewest(1e6) == scene.fixed


def test_gpu_hours_are_gpus_times_duration_also_of_terminating_servers():
    steps = [step(0, 2, 1), step(1800, 4, 2)]
    assert autoscaling.hours(steps, 3600, lambda item: item.gpus) == 3 * 0.5 + 6 * 0.5
    steps = autoscaling.steps_of([look(0, 9), look(10, 3), look(12, 3, ending_gpus=1)], lead_s=100, speed=10)
    assert [(item.at_s, item.gpus) for item in steps] == [(0, 3), (20, 2.1)]


def test_each_switch_between_scaling_up_and_down_counts_once():
    assert autoscaling.turns([1, 2, 2, 3, 3]) == 0
    assert autoscaling.turns([1, 2, 1, 1, 2]) == 2
    steps = [step(0, 2, 1), step(600, 4, 2), step(1200, 2, 1)]
    assert autoscaling.turns_per_hour(steps, 3600) == 2


def test_failed_requests_and_those_beyond_a_target_do_not_attain_the_slo():
    missed = [AnswerTimes(0, 9000, 10, None), AnswerTimes(0, 2000, 90, None), AnswerTimes(0, None, None, "timed-out: ")]
    assert autoscaling.attained([MET, *missed]) == 0.25


def test_the_stack_of_the_autoscaling_benchmark_gets_no_scaling_advice(scene):
    for scaled in (True, False):
        plan = planning.plan(config.validate(autoscaling.stack_of(scene, scaled=scaled)))
        assert not [item for item in plan.advice if "scaling" in item.path]
        (unit,) = plan.models[0].units
        limits = {role.role: role.scaling for role in unit.roles}
        least = scene.least if scaled else scene.fixed
        assert {role: item.min_replicas for role, item in limits.items() if item} == {
            "prefill": least.prefill,
            "decode": least.decode,
        }


def test_each_scaling_run_is_in_the_benchmarks_table_and_plot(scene):
    profile = autoscaling.profile_of("burst", scene.peak_per_s)
    runs = [
        autoscaling.measured_run(profile, "scaled", [MET], [step(0, 2, 1), step(60, 4, 2)]),
        autoscaling.oracle_run(profile, scene),
    ]
    rows = autoscaling.table([run.outcome for run in runs]).splitlines()
    assert rows[2].startswith("| burst | scaled | ")
    assert "100.0% | 0 of 1" in rows[2]
    assert rows[3].endswith(f"by forecast | - | {runs[1].outcome.turns_per_hour:.1f} | {scene.basis} |")
    svg = autoscaling.plot(profile, runs)
    assert all(text in svg for text in ("scaled (measured)", "oracle (calibrated)", "Prefill servers", "Requests/s"))
