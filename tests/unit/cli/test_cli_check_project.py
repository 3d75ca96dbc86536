"""`llmd-oke check` and other commands in a project with entries of its own."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.cli.main import app
from llmd_oke.planning import plan_stack_file
from project_entries import kit_entry, model_entry, write_entry
from stack_files import existing_pool, model, stack, write
from typer.testing import CliRunner

MINE = "support-70b"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "Pulumi.yaml").write_text("name: mine\n")
    write_entry(tmp_path, f"models/{MINE}", model_entry(MINE))
    write(tmp_path, "s", stack(model("1p-tp8-1d-tp8", model=MINE)))
    return tmp_path


def run(project: Path, *words: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, [*words, "--project", str(project)])
    if isinstance(ended.exception, KitError):
        return 1, str(ended.exception)
    return ended.exit_code, ended.output


def check(project: Path) -> dict[str, Any]:
    return json.loads(run(project, "check", "--stack", "s", "--json")[1])


@pytest.mark.parametrize(("image", "used"), [("docker.io/vllm/vllm-openai-rocm:v0.26.0", True), ("r.io/a:v1", False)])
def test_check_reports_the_projects_image_lock_if_the_stack_uses_an_image_of_it(project: Path, image: str, used: bool):
    write_entry(project, "container-images/lock", {"images": {image: {"digest": None, "reason": "new"}}})
    assert ("container-images" in {entry["kind"] for entry in check(project)["project_entries"]}) is used


def test_check_reports_project_entries_that_replace_the_kits_and_uses_their_prices(project: Path):
    write_entry(project, "prices/oci", kit_entry("prices/oci", as_of="2026-02-02"))
    assert "prices oci: values/prices/oci.yaml, instead of the kit's" in run(project, "check", "--stack", "s")[1]
    shape = "shapes/BM.GPU.MI300X.8"
    write_entry(project, shape, kit_entry(shape, price_usd_per_hour=1.0))
    assert check(project)["price_usd_per_hour"] == 9.0


def test_invalid_catalogue_entries_and_an_invalid_stack_file_are_reported_together(project: Path):
    write_entry(project, f"models/{MINE}", model_entry(MINE, max_model_len=0))
    write_entry(project, f"latency/MI300X/{MINE}", {"model": MINE})
    write(project, "s", stack(model("8p", model=MINE)))
    problems = check(project)["problems"]
    assert {(one["file"], one["path"]) for one in problems} >= {
        (f"values/models/{MINE}.yaml", "max_model_len"),
        (f"values/latency/MI300X/{MINE}.yaml", "gpu"),
        (None, "models[0].topology"),
    }
    assert all(one["line"] for one in problems if one["path"] in {"max_model_len", "models[0].topology"})


def test_latency_figures_in_the_folder_of_another_gpu_are_refused(project: Path):
    write_entry(project, f"latency/MI300X/{MINE}", kit_entry("latency/H100/gpt-oss-120b", model=MINE))
    (problem,) = check(project)["problems"]
    assert (problem["path"], problem["value"], problem["accepted"]) == ("gpu", "H100", "MI300X")


def test_a_misspelt_model_name_is_answered_with_a_similar_project_entry(project: Path):
    write(project, "s", stack(model("1p-tp8-1d-tp8", model="suport-70b")))
    (problem,) = check(project)["problems"]
    assert problem["accepted"].startswith(f"{MINE}? or another of ")


def test_a_model_name_that_is_invalid_in_kubernetes_requires_an_explicit_name(project: Path):
    name = "a-model-whose-name-has-many-more-than-thirty-six-characters"
    write_entry(project, f"models/{name}", model_entry(name))
    write(project, "s", stack(model("1p-tp8-1d-tp8", model=name)))
    (problem,) = check(project)["problems"]
    assert problem["path"] == "models[0].name"
    write(project, "s", stack(model("1p-tp8-1d-tp8", model=name, name="short")))
    assert check(project)["ok"]


def test_models_whose_names_differ_only_by_case_are_refused_together(project: Path):
    names = ("Support-8B", "support-8b")
    for name in names:
        write_entry(project, f"models/{name}", model_entry(name, repository=f"acme/{name}-{name[0]}"))
    models = [model("1p-tp8-1d-tp8", model=name) for name in names]
    write(project, "s", stack(*models))
    (problem,) = check(project)["problems"]
    assert (problem["path"], problem["accepted"]) == ("models[1].model", "models[1].name with another name")
    assert problem["why"] == "models[0] has objects of the name support-8b already"
    write(project, "s", stack(models[0], {**models[1], "name": "smaller"}))
    assert check(project)["ok"]


def test_only_project_entries_that_change_servers_change_the_configuration_hash(project: Path):
    before = plan_stack_file(project, "s").config_hash
    write_entry(project, "prices/oci", kit_entry("prices/oci", as_of="2026-02-02"))
    assert plan_stack_file(project, "s").config_hash == before
    write_entry(project, f"models/{MINE}", model_entry(MINE, startup_budget_s=60))
    assert plan_stack_file(project, "s").config_hash != before


def test_tune_rank_knows_a_valid_model_of_the_project_and_refuses_an_invalid_one(project: Path):
    status, output = run(project, "tune", "rank", "--model", MINE, "--gpus", "8", "--allow-extrapolation")
    assert status == 0, output
    write_entry(project, f"models/{MINE}", model_entry(MINE, max_model_len=0))
    assert f"values/models/{MINE}.yaml: max_model_len = 0" in run(project, "tune", "rank", "--model", MINE)[1]


def test_a_stack_with_64_project_models_is_planned_within_a_second(project: Path):
    models = [f"mine-{number}" for number in range(64)]
    for name in models:
        write_entry(project, f"models/{name}", model_entry(name))
    pool = existing_pool(size=64)
    write(project, "s", stack(*(model("1p-tp2-1d-tp2", model=name) for name in models), gpuPools=[pool]))
    started_s = time.process_time()
    plan_stack_file(project, "s")
    assert time.process_time() - started_s < 1.0


def test_problems_of_a_stack_file_that_uses_project_entries_are_reported(project: Path):
    write(project, "s", stack(model("1p-tp8-1d-tp8", model=MINE), release="llm-d-9"))
    with pytest.raises(InvalidStack, match="llm-d-9"):
        plan_stack_file(project, "s")
