import os
from pathlib import Path

import pytest
from llmd_oke import config, planning
from llmd_oke.planning.releases import with_router
from llmd_rehearsal import rehearsal, time_scale
from llmd_rehearsal.rehearsal_settings import RehearsalSettings
from llmd_rehearsal.time_scale import ProcessorDemand, choose_time_scale, demand_of, figures, processors
from stack_files import PROJECT


def plan(stack: str, router: str = "llm-d-0.6.0"):
    """A stack with the router that rehearsals run."""
    return planning.plan(with_router(config.load(PROJECT, stack), router))


def test_a_simulated_load_counts_pickers_servers_and_benchmark_tokens_of_a_stack():
    reference, one_unit = demand_of(plan("reference")), demand_of(plan("rehearsal"))
    assert (reference.pickers, reference.servers) == (4, 48)
    assert (one_unit.pickers, one_unit.servers) == (1, 12)
    assert reference.tokens_per_s > 3 * one_unit.tokens_per_s


def test_a_standby_picker_adds_its_own_metric_reads_to_the_load():
    one, two = (demand_of(plan("rehearsal", router)) for router in ("llm-d-0.6.0", "llm-d-0.9.0"))
    assert (one.pickers, two.pickers, one.servers == two.servers) == (1, 2, True)
    assert two.cores > one.cores


def test_the_load_of_a_stack_without_a_benchmark_is_its_pickers_metric_reads():
    loaded = config.load(PROJECT, "rehearsal")
    quiet = loaded.model_copy(update={"smoke": loaded.smoke.model_copy(update={"where": "none"})})
    demand = demand_of(planning.plan(quiet))
    assert (demand.tokens_per_s, demand.servers) == (0, 12)
    assert demand_of(plan("guide-baseline")).servers == 0  # it has no router


@pytest.mark.parametrize(("stack", "on_two"), [("rehearsal", 1), ("guide", 1), ("reference", 4)])
def test_a_load_that_two_processors_simulate_in_real_time_is_not_slowed_down(stack: str, on_two: float):
    assert choose_time_scale(demand_of(plan(stack)), 2).scale == on_two


def test_pickers_metric_reads_raise_the_time_scale_of_large_stacks_up_to_a_limit():
    scales = [choose_time_scale(ProcessorDemand(units, 2 * units, 0), 2).scale for units in (1, 10, 20, 40, 80)]
    assert scales == [1, 1.5, 4, 20, 50]


def test_a_rehearsal_is_never_slower_with_more_processors_but_one_thread_limits_it():
    scales = [choose_time_scale(demand_of(plan("reference")), cores).scale for cores in (0.25, 0.5, 1, 2, 4, 8, 64)]
    assert scales == sorted(scales, reverse=True)
    assert scales[0] > scales[-1] > 1


@pytest.mark.parametrize("cores", [0.1, 1, 2, 16])
@pytest.mark.parametrize("tokens_per_s", [0, 1000, 20_000])
def test_the_chosen_time_scale_limits_the_share_of_busy_processors(cores: float, tokens_per_s: float):
    demand, known = ProcessorDemand(2, 24, tokens_per_s), figures()
    scale = choose_time_scale(demand, cores).scale
    assert scale in known.scales
    if scale < max(known.scales):
        assert demand.cores / scale <= max(known.busy_share * cores - demand.at_rest, known.least_share * cores)
        assert demand.simulator / scale <= known.busy_share


def test_the_chosen_time_scale_is_reported_with_the_load_that_requires_it():
    assert str(choose_time_scale(ProcessorDemand(4, 48, 6134), 2)) == (
        "time scale 4: at 1 the stack keeps 3.3 processors busy of 2 (calibrated: 4 endpoint pickers reading "
        "48 servers, a benchmark of 6,134 tokens/s), and 50% of them must stay free for simulated steps to end in time"
    )
    assert "(calibrated: a benchmark of 50 tokens/s)" in str(choose_time_scale(ProcessorDemand(0, 0, 50), 2))


def test_the_number_of_processors_respects_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert processors(tmp_path) == 4
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert processors(tmp_path) == 4
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert processors(tmp_path) == 1.5


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch):
    """Return the rehearsal of the stack `reference` on two processors, with a rehearsal of it that runs or none."""
    monkeypatch.setattr(time_scale, "processors", lambda: 2.0)

    def scale(option: float | None, running: float | None):
        monkeypatch.setattr(rehearsal, "phase", lambda *_: "gone" if running is None else "ready")
        monkeypatch.setattr(rehearsal, "running_settings", lambda *_: RehearsalSettings(time_scale=running))
        return rehearsal._time_scale(PROJECT, "reference", plan("reference"), RehearsalSettings(time_scale=option))

    return scale


def test_a_time_scale_in_the_arguments_overrides_that_of_a_running_rehearsal(reference):
    assert (reference(3.0, running=4.0).scale, reference(3.0, running=None).scale) == (3.0, 3.0)


def test_without_a_time_scale_in_the_arguments_stack_and_machine_determine_it(reference):
    assert reference(None, running=None).scale == 4
    assert reference(None, running=4.0) == reference(None, running=None)


def test_a_running_rehearsal_keeps_its_time_scale_and_reports_a_more_suitable_one(reference):
    rest = reference(None, running=0.5)
    assert rest.scale == 0.5
    assert rest.because.endswith("--time-scale 4 would begin anew with what suits the stack as it is now")
