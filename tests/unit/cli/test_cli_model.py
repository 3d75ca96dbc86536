"""`llmd-oke model add`, with files on this machine and a Hugging Face that is a function."""

import json
import time
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from llmd_base.errors import InvalidStack, KitError
from llmd_oke import catalogue
from llmd_oke.access.hugging_face import ModelFile
from llmd_oke.catalogue.models import CatalogueModel
from llmd_oke.catalogue.project import project_problems
from llmd_oke.cli.model import app
from llmd_oke.values import open_project
from model_configs import FOLDER, config_of
from typer.testing import CliRunner

REPOSITORY = ["--repository", "acme/Large_Model-32B"]
CONFIG = str(FOLDER / "qwen3-32b.json")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["add", *arguments])


def refusal(*arguments: str) -> str:
    error = run(*arguments).exception
    assert isinstance(error, KitError)
    return str(error)


def config_file(folder: Path, name: str, **changes: object) -> str:
    """Write the config.json of a model, with some keys changed; return its path."""
    path = folder / "config.json"
    path.write_text(json.dumps(config_of(name, **changes)))
    return str(path)


def test_model_add_prints_the_entry_with_sources_and_what_is_assumed_in_it():
    result = run(CONFIG, *REPOSITORY)
    assert result.exit_code == 0
    entry = CatalogueModel.model_validate(yaml.safe_load(result.stdout))
    assert (entry.name, entry.repository) == ("large-model-32b", "acme/Large_Model-32B")
    assert entry.architecture == catalogue.model("qwen3-32b").architecture
    assert f"architecture:                         # {CONFIG}, sha256 " in result.stdout
    told = result.stderr
    assert "computed: 32.76 billion parameters" in told
    assert "not computed: activation_gib_per_gpu 6.0 (bound:" in told
    assert "not computed: arguments [] (to be filled in" in told
    assert "bounds until some are measured" in told


def test_entries_that_model_add_prints_for_stored_configs_equal_the_catalogues():
    for path in FOLDER.glob("*.json"):
        result = run(str(path), *REPOSITORY, "--name", path.stem)
        entry = CatalogueModel.model_validate(yaml.safe_load(result.stdout))
        kept = catalogue.model(path.stem)
        assert kept is None or (entry.work, entry.weights, entry.kv_cache) == (kept.work, kept.weights, kept.kv_cache)


def test_model_add_writes_a_valid_project_entry_and_only_once(tmp_path: Path):
    arguments = [CONFIG, *REPOSITORY, "--write", "--project", str(tmp_path)]
    assert run(*arguments).exit_code == 0
    path = tmp_path / "values" / "models" / "large-model-32b.yaml"
    path.write_text("mine")
    assert "--force replaces it" in refusal(*arguments)
    assert path.read_text() == "mine"
    assert run(*arguments, "--force").exit_code == 0
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    open_project(tmp_path)
    assert project_problems() == []
    entry = catalogue.model("large-model-32b")
    assert entry is not None
    assert entry.repository == "acme/Large_Model-32B"


@pytest.mark.parametrize("write", [(), ("--write",)])
def test_model_add_reports_an_entry_that_replaces_the_kits(write: tuple[str, ...], tmp_path: Path):
    place = ["--project", str(tmp_path), "--repository", "deepseek-ai/DeepSeek-R1"]
    result = run(CONFIG, *place, *write)
    assert "note the kit has deepseek-r1 too; in a project this entry stands in its place" in result.output
    assert "the kit has" not in run(CONFIG, *place, "--name", "mine").output
    assert json.loads(run(CONFIG, *place, "--json").stdout)["replaces_kit"]


def test_model_add_reads_config_and_index_from_a_folder(tmp_path: Path):
    config_file(tmp_path, "qwen3-32b")
    index = {"metadata": {"total_size": 70 * 2**30}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    result = json.loads(run(str(tmp_path), *REPOSITORY, "--json").stdout)
    assert result["computed"]["weights"]["gib"] == 70.0
    assert [file["name"] for file in result["read"]] == ["config.json", "model.safetensors.index.json"]


def test_the_entry_of_model_add_pins_the_commit_whose_config_was_read(monkeypatch: pytest.MonkeyPatch):
    config = ModelFile("config.json", "https://huggingface.co/acme/x", Path(CONFIG).read_bytes(), "a" * 40)
    monkeypatch.setattr("llmd_oke.access.hugging_face.download_model_files", lambda *_: (config, None))
    result = json.loads(run("acme/x", "--json").stdout)
    assert (result["name"], result["revision"], result["written"]) == ("x", "a" * 40, None)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([CONFIG], "--repository OWNER/NAME"),
        (["missing.json", *REPOSITORY], "missing.json can't be read"),
        ([CONFIG, *REPOSITORY, "--name", "../up"], "can't be the name of a model"),
        ([CONFIG, "--repository", "acme/__"], "--name"),
        ([CONFIG, "--repository", "../up"], "a repository of Hugging Face such as owner/model"),
        (["acme/large", *REPOSITORY], "belong to a config.json on this machine"),
        (["no-such-thing"], "neither a file nor a repository"),
    ],
)
def test_model_add_refuses_invalid_arguments_with_the_accepted_form(arguments: list[str], told: str):
    assert told in refusal(*arguments)


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"', "[" * 100_000])
def test_model_add_refuses_a_model_config_that_is_no_json_object_by_its_path(content: str, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(content)
    assert str(path) in refusal(str(path), *REPOSITORY)


def test_model_add_marks_figures_of_an_unknown_architecture_as_bounds(tmp_path: Path):
    path = config_file(tmp_path, "qwen3-32b", model_type="new")
    assert "# Bound: no code of new was looked at" in run(path, *REPOSITORY).stdout
    assert json.loads(run(path, *REPOSITORY, "--json").stdout)["bounds"][0].startswith("no code of new")


def test_model_add_shows_the_size_of_a_sequences_state_beside_its_kv_cache(tmp_path: Path):
    told = run(config_file(tmp_path, "nemotron-3-nano-30b-a3b"), *REPOSITORY).stderr
    assert "6,144 bytes of KV cache for a token, 49,082,368 bytes of state for a sequence" in told


def test_model_add_refuses_unknown_kinds_of_layers_with_path_and_remedy(tmp_path: Path):
    path = config_file(tmp_path, "qwen3-32b", model_type="lfm2", conv_L_cache=3)
    error = run(path, *REPOSITORY).exception
    assert isinstance(error, InvalidStack)
    assert error.verdict == f"no entry can be computed of {path}"
    told = str(error)
    assert "conv_L_cache = 3" in told
    assert "gated delta rules" in told


def test_model_add_computes_a_model_of_a_million_parameters(tmp_path: Path):
    sizes = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    path = config_file(tmp_path, "llama-3.1-8b-instruct", **sizes, num_key_value_heads=4, head_dim=4)
    entry = json.loads(run(path, *REPOSITORY, "--json").stdout)["computed"]
    assert 0 < entry["parameters"]["active_billions"] < 0.01
    assert 0 < entry["weights"]["gib"] < 0.1


def test_help_of_model_add_appears_immediately():
    started_s = time.process_time()
    assert run("--help").exit_code == 0
    assert time.process_time() - started_s < 1.0
