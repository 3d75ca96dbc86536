"""What an offline server reads as it starts."""

import json
from pathlib import Path

import pytest
from llmd_oke import catalogue
from llmd_oke.rehearsal.outside import tiny_models
from llmd_oke.rehearsal.outside.facts import outside
from llmd_oke.rehearsal.vllm.model_files import ContainerFiles, read_model
from llmd_oke.rehearsal.vllm.refusal import Refusal

MODEL = next(model for model in map(catalogue.model, catalogue.model_names()) if model and model.vocabulary)
SNAPSHOT = "hub/models--openai--gpt-oss-120b/snapshots/abc"
ENVIRONMENT = {"HF_HOME": "/model-cache", "TIKTOKEN_ENCODINGS_BASE": "/model-cache/encodings"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache as the pre-warm program leaves it."""
    files = {
        f"{SNAPSHOT}/{path}": tiny_models.content(MODEL.repository, path, size)
        for path, size in outside().files.items()
    }
    assert MODEL.vocabulary
    files["encodings/o200k_base.tiktoken"] = tiny_models.vocabulary("o200k_base.tiktoken", MODEL.vocabulary.bytes)
    files["hub/models--openai--gpt-oss-120b/refs/main"] = b"abc"
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def read(cache: Path, **environment: str) -> str:
    files = ContainerFiles({"/model-cache": str(cache), "/": "/nonexistent"})
    return read_model(MODEL, {**ENVIRONMENT, **environment}, files)


def test_a_whole_model_is_read_from_where_the_cache_is_mounted(cache: Path):
    assert read(cache) == f"/model-cache/{SNAPSHOT}"
    assert read(cache, HF_HUB_CACHE="/model-cache/hub", HF_HOME="/elsewhere") == f"/model-cache/{SNAPSHOT}"


def test_a_commit_is_read_where_the_cache_has_it_and_no_other(cache: Path):
    files = ContainerFiles({"/model-cache": str(cache)})
    (cache / "hub/models--openai--gpt-oss-120b/refs/main").unlink()
    assert read_model(MODEL, ENVIRONMENT, files, "abc") == f"/model-cache/{SNAPSHOT}"
    with pytest.raises(Refusal, match="LocalEntryNotFoundError"):
        read_model(MODEL, ENVIRONMENT, files, "def")


def test_a_cache_that_is_not_mounted_has_no_model(cache: Path):
    with pytest.raises(Refusal, match="LocalEntryNotFoundError"):
        read(cache, HF_HOME="/elsewhere")


def test_the_vocabulary_is_not_looked_for_in_the_cache_by_itself(cache: Path):
    (cache / "encodings").rename(cache / "other")
    assert read(cache, TIKTOKEN_ENCODINGS_BASE="/model-cache/other")
    without = {"HF_HOME": "/model-cache"}
    with pytest.raises(Refusal, match="HarmonyError"):
        read_model(MODEL, without, ContainerFiles({"/model-cache": str(cache)}))


def test_another_models_files_are_refused(cache: Path):
    (cache / SNAPSHOT / "config.json").write_text(json.dumps({"num_hidden_layers": 80, "hidden_size": 8192}))
    with pytest.raises(Refusal, match=r"config\.json has num_hidden_layers 80, gpt-oss-120b has 36"):
        read(cache)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model-00001-of-00002.safetensors", b"\xff" * 9, "Error while deserializing header"),
        ("model.safetensors.index.json", b"{", "JSONDecodeError"),
        ("model.safetensors.index.json", b'{"weight_map": {}}', "Cannot find any model weights"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"w": "model-00001-of-00002.safetensors"}}',
            "File does not contain tensor w",
        ),
    ],
)
def test_weights_that_are_not_whole_are_refused(cache: Path, name: str, content: bytes, words: str):
    (cache / SNAPSHOT / name).write_bytes(content)
    with pytest.raises(Refusal, match=words):
        read(cache)


def test_a_file_of_weights_that_ends_early_is_refused(cache: Path):
    file = cache / SNAPSHOT / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Refusal, match="file not fully covered"):
        read(cache)
