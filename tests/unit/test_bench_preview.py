import json
from pathlib import Path

import plain_program
import preview_speed
import pytest
from llmd_oke import config, planning
from llmd_oke.testing import declared
from preview_speed import Result, Timing
from stack_files import read

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("units", [1, 8, 64, 119])
def test_stacks_enlarged_for_the_benchmark_of_previews_can_be_deployed(units: int):
    plan = planning.plan(config.validate(preview_speed.with_units(read("reference"), units)))
    assert sum(len(model.units) for model in plan.models) == units


def test_the_benchmark_of_previews_replaces_the_stacks_program_by_a_plain_one(tmp_path: Path):
    project = preview_speed.plain_project(PROJECT, "reference", tmp_path)
    assert "llmd_oke.program" not in (project.folder / "__main__.py").read_text()
    assert planning.plan_stack_file(project.folder, project.stack).gpus == 72


def test_the_plain_program_of_the_preview_benchmark_declares_all_resources(tmp_path: Path):
    rows = [
        {"custom": False, "parent": -1, "dependencies": []},
        {"custom": True, "parent": 0, "dependencies": []},
        {"custom": True, "parent": 0, "dependencies": [1]},
    ]
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(rows))
    rendered = declared(lambda: plain_program.declare(plain_program.load(file)))
    assert sorted(resource.name for resource in rendered.resources) == ["resource-0", "resource-1", "resource-2"]


def result(ours_s: float, sizes_s: tuple[float, float]) -> Result:
    sizes = tuple(
        Timing("units", resources, (seconds,)) for resources, seconds in zip((250, 2000), sizes_s, strict=True)
    )
    return Result(
        Timing("reference", 100, (9.0, ours_s, 8.0)),
        Timing("engine only", 100, (2.0, 2.5)),
        Timing("loaded", 100, (2.5,)),
        sizes,
    )


@pytest.mark.parametrize(
    ("ours_s", "sizes_s", "good"), [(2.7, (1.0, 8.0), True), (2.8, (1.0, 8.0), False), (2.7, (1.0, 12.0), False)]
)
def test_the_benchmark_of_previews_requires_both_time_limits(ours_s: float, sizes_s: tuple[float, float], good: bool):
    assert result(ours_s, sizes_s).within_limits is good


def test_the_benchmark_of_previews_has_ratios_of_fastest_and_of_median_runs():
    measured = result(3.0, (1.0, 8.0))
    assert (measured.ratio, measured.ratio_of_medians) == (1.5, 8.0 / 2.25)
    assert measured.growth == pytest.approx(1.0)
    assert measured.as_json()["basis"] == "measured"
