"""A project's own `values/`: entries beside and over the kit's, and what is refused of them."""

import os
from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import InvalidStack, KitError, Problem
from llmd_oke import catalogue
from llmd_oke.catalogue.container_images import kit_lock, lock, locked_image
from llmd_oke.catalogue.entries import MAX_BYTES, origin
from llmd_oke.catalogue.operations import prices
from llmd_oke.catalogue.project import project_problems
from llmd_oke.values import open_project, values_folder
from project_entries import kit_entry, model_entry, write_entry
from stack_files import known_model, known_shape

MINE = "support-70b"
ROOT = Path(__file__).parents[3]


def problem(project: Path, path: str, content: object) -> Problem:
    """The one problem of a project with one file."""
    write_entry(project, path, content)
    (only,) = project_problems()
    return only


def test_a_catalogue_entry_of_the_project_is_added_to_those_of_the_kit(tmp_path: Path):
    write_entry(tmp_path, f"models/{MINE}", model_entry(MINE))
    mine = known_model(MINE)
    assert mine.repository == f"acme/{MINE}"
    assert set(catalogue.model_names()) >= {MINE, "gpt-oss-120b"}
    assert catalogue.model_of_repository(f"acme/{MINE}") == mine
    assert not project_problems()


def test_a_project_entry_replaces_the_kits_whole_entry_of_that_name(tmp_path: Path):
    write_entry(tmp_path, "gpus/MI300X", kit_entry("gpus/MI300X", memory_gib=100.0, node=None))
    assert known_shape().gpu.memory_gib == 100.0
    own = origin("gpus", "MI300X")
    assert (own.file, own.replaces_kit) == ("values/gpus/MI300X.yaml", True)
    assert origin("shapes", "BM.GPU.MI300X.8") is None


def test_opening_another_project_removes_the_first_projects_catalogue_entries(tmp_path: Path):
    write_entry(tmp_path / "first", f"models/{MINE}", model_entry(MINE))
    write_entry(tmp_path / "second", "prices/oci", kit_entry("prices/oci", enhanced_cluster_usd_per_hour=0.05))
    assert catalogue.model(MINE) is None
    assert prices().enhanced_cluster_usd_per_hour == 0.05
    open_project(tmp_path / "first")
    assert catalogue.model(MINE) is not None
    assert prices().enhanced_cluster_usd_per_hour == 0.10
    open_project(None)
    assert catalogue.model(MINE) is None


def test_a_changed_catalogue_entry_is_read_again_when_its_project_is_reopened(tmp_path: Path):
    file = write_entry(tmp_path, f"models/{MINE}", model_entry(MINE))
    first = catalogue.model(MINE)
    open_project(tmp_path)
    assert catalogue.model(MINE) is first
    write_entry(tmp_path, f"models/{MINE}", model_entry(MINE, max_model_len=4096))
    os.utime(file, ns=(1, 1))
    open_project(tmp_path)
    assert known_model(MINE).max_model_len == 4096


def test_values_in_the_kits_own_checkout_do_not_count_as_project_entries():
    open_project(ROOT)
    assert not project_problems()
    assert origin("models", "gpt-oss-120b") is None


def test_copies_of_all_the_kits_catalogue_entries_are_valid_project_entries(tmp_path: Path):
    for kind in ("models", "shapes", "gpus", "releases", "endpoint-pickers", "images", "prices"):
        for file in (values_folder() / kind).glob("*.yaml"):
            write_entry(tmp_path, f"{kind}/{file.stem}", file.read_text())
    write_entry(tmp_path, "container-images/lock", (values_folder() / "container-images/lock.yaml").read_text())
    assert not project_problems()
    assert catalogue.release_names()[-1] == "llm-d-0.10.0"


def test_digests_in_the_projects_image_lock_are_added_to_those_of_the_kit(tmp_path: Path):
    digest = f"sha256:{'a' * 64}"
    write_entry(tmp_path, "container-images/lock", {"images": {"r.io/a/b:1": {"digest": digest, "source": "asked"}}})
    assert locked_image("r.io/a/b:1").digest == digest
    assert lock().images.keys() > kit_lock().images.keys()


def test_looking_up_an_invalid_project_entry_reports_its_file_and_line(tmp_path: Path):
    write_entry(tmp_path, f"models/{MINE}", model_entry(MINE, max_model_len=0))
    with pytest.raises(InvalidStack, match=r"line 30: values/models/support-70b.yaml: max_model_len = 0"):
        catalogue.model(MINE)


def test_an_unknown_key_of_a_catalogue_entry_is_reported_with_file_and_line(tmp_path: Path):
    entry = model_entry(MINE)
    entry["maxModelLen"] = entry.pop("max_model_len")
    file = write_entry(tmp_path, f"models/{MINE}", entry)
    missing, extra = sorted(project_problems(), key=lambda one: one.path, reverse=True)
    assert (missing.path, missing.why) == ("max_model_len", "the key is missing")
    assert (extra.path, extra.file) == ("maxModelLen", f"values/models/{MINE}.yaml")
    assert extra.accepted.startswith("max_model_len?")
    assert extra.line == 1 + file.read_text().splitlines().index("maxModelLen: 131072")


@pytest.mark.parametrize(
    ("change", "path", "accepted"),
    [
        ({"max_model_len": "4096"}, "max_model_len", "a whole number without quotes"),
        ({"max_model_len": 0}, "max_model_len", "more than 0"),
        ({"startup_budget_s": True}, "startup_budget_s", "a whole number without quotes"),
        ({"activation_gib_per_gpu": float("inf")}, "activation_gib_per_gpu", "an ordinary number, such as 0.9"),
        ({"repository": "../../etc"}, "repository", "a repository of Hugging Face such as owner/model"),
        ({"apis": ["chats"]}, "apis[0]", "'completions', 'chat', 'responses' or 'messages'"),
        ({"apis": []}, "apis", "at least 1 item"),
        ({"weights": [1]}, "weights", "an object with the keys block_size, format, gib, stored_gib"),
        ({"name": "other"}, "name", MINE),
    ],
)
def test_an_invalid_value_in_a_catalogue_entry_is_reported_with_the_accepted_ones(
    tmp_path: Path, change: dict[str, Any], path: str, accepted: str
):
    told = problem(tmp_path, f"models/{MINE}", model_entry(MINE, **change))
    assert (told.path, told.accepted, told.file) == (path, accepted, f"values/models/{MINE}.yaml")
    assert told.line


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("name: [", "is not YAML"),
        ("", "it is empty (null)"),
        ("- name", "it is a list"),
        ("name: a\nname: b\n", "the key is in line 1 already"),
        ("a: &a [*a]\n", "the alias contains itself"),
        ("? [1]\n: 2\n", "is not YAML"),
        ("x: " + "a" * MAX_BYTES, f"it has {MAX_BYTES + 3:,} bytes"),
    ],
)
def test_a_project_file_that_is_no_catalogue_entry_is_reported_with_the_reason(tmp_path: Path, content: str, why: str):
    assert why in problem(tmp_path, f"models/{MINE}", content).why


def test_a_shape_with_an_unknown_gpu_is_refused_with_the_known_ones(tmp_path: Path):
    told = problem(tmp_path, "shapes/BM.MINE", kit_entry("shapes/BM.GPU.MI300X.8", name="BM.MINE", gpu="MI300"))
    assert told.path == "gpu"
    assert "MI300X" in told.why
    assert told.accepted == "text: a GPU of values/gpus"


def test_a_shape_whose_gid_index_is_no_number_is_refused(tmp_path: Path):
    entry = kit_entry("shapes/BM.GPU.MI300X.8", name="BM.MINE")
    entry["rdma"]["environment"]["UCX_IB_GID_INDEX"] = ""
    told = problem(tmp_path, "shapes/BM.MINE", entry)
    assert (told.path, "UCX_IB_GID_INDEX is no number" in told.why) == ("rdma.environment", True)


def test_an_invalid_gpu_entry_is_not_reported_again_for_the_shape_that_uses_it(tmp_path: Path):
    write_entry(tmp_path, "shapes/BM.MINE", kit_entry("shapes/BM.GPU.MI300X.8", name="BM.MINE", gpu="MI999"))
    told = problem(tmp_path, "gpus/MI999", kit_entry("gpus/MI300X", product="MI999", memory_gib=0))
    assert (told.file, told.path) == ("values/gpus/MI999.yaml", "memory_gib")


def test_a_release_requires_a_known_endpoint_picker(tmp_path: Path):
    release = kit_entry("releases/llm-d-0.9.0", name="mine", order=10)
    release["endpoint_picker"]["image"] = "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.12.0"
    told = problem(tmp_path, "releases/mine", release)
    assert (told.path, told.value) == ("endpoint_picker.program.version", "v0.12.0")
    assert "values/endpoint-pickers" in told.accepted


def test_two_model_entries_of_one_repository_are_refused(tmp_path: Path):
    write_entry(tmp_path, "models/first", model_entry("first", repository="acme/one"))
    told = problem(tmp_path, "models/second", model_entry("second", repository="acme/one"))
    assert (told.path, told.file) == ("repository", "values/models/second.yaml")
    assert told.why == "the model first has it already"
    told = problem(tmp_path / "other", f"models/{MINE}", model_entry(MINE, repository="openai/gpt-oss-120b"))
    assert told.accepted == "another repository, or the name gpt-oss-120b for the file"


@pytest.mark.parametrize(
    ("path", "accepted"),
    [
        ("model/mine.yaml", "a folder: models?"),
        ("tuning/mine.yaml", "a folder: one of container-images"),
        ("models/mine.yml", "mine.yaml"),
        ("models/mine", "mine.yaml"),
        ("models/-mine.yaml", "letters, digits"),
        ("models/more/mine.yaml", "a file for each entry, and no folder"),
        ("prices/ocj.yaml", "oci.yaml"),
        ("container-images/locks.yaml", "lock.yaml"),
        ("latency/MI300/gpt-oss-120b.yaml", "a folder for a GPU: MI300X?"),
        ("latency/MI300X/gpt-oss-120.yaml", "gpt-oss-120b.yaml?"),
        ("models.yaml", "a folder: models?"),
    ],
)
def test_a_misplaced_file_in_the_values_folder_is_refused_with_the_likely_place(
    tmp_path: Path, path: str, accepted: str
):
    file = tmp_path / "values" / path
    file.parent.mkdir(parents=True)
    file.touch()
    open_project(tmp_path)
    assert [one for one in project_problems() if one.accepted.startswith(accepted)], project_problems()


def test_hidden_files_and_readmes_may_lie_beside_catalogue_entries(tmp_path: Path):
    for path in (".gitkeep", "README.md", "models/README.md", "models/.mine.yaml.swp", ".git/x"):
        file = tmp_path / "values" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    open_project(tmp_path)
    assert not project_problems()


def test_a_symbolic_link_out_of_the_values_folder_or_for_it_is_refused(tmp_path: Path):
    outside = tmp_path / "elsewhere" / "models" / f"{MINE}.yaml"
    outside.parent.mkdir(parents=True)
    outside.write_text("secret: 1")
    models = tmp_path / "project" / "values" / "models"
    models.mkdir(parents=True)
    (models / f"{MINE}.yaml").symlink_to(outside)
    open_project(tmp_path / "project")
    assert {one.why for one in project_problems()} == {"it leads out of the folder, or is no file"}
    assert catalogue.model(MINE) is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "values").symlink_to(tmp_path / "elsewhere")
    open_project(tmp_path / "other")
    assert [one.file for one in project_problems()] == ["values"]


def test_a_named_pipe_and_too_many_files_in_the_values_folder_are_refused(tmp_path: Path):
    models = tmp_path / "values" / "models"
    models.mkdir(parents=True)
    os.mkfifo(models / f"{MINE}.yaml")
    open_project(tmp_path)
    assert project_problems()
    for number in range(2001):
        (models / f"{number}.yaml").touch()
    with pytest.raises(KitError, match="more than 2,000 files"):
        open_project(tmp_path)


def test_an_image_name_without_a_tag_in_the_projects_image_lock_is_refused(tmp_path: Path):
    told = problem(tmp_path, "container-images/lock", {"images": {"vllm": {"digest": None, "reason": "none"}}})
    assert told.path.startswith("images")
    assert "registry/repository:tag" in told.why
