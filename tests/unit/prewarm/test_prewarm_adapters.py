"""LoRA adapters that are put beside a model's weights, against a loopback stand-in for those who have them."""

import json
from pathlib import Path

import pytest
from hub_for_tests import COMMIT, FILES, REPOSITORY, Hub, run, snapshot

CONFIG = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "base_model_name_or_path": "owner/other-name", "bias": "none"}


@pytest.fixture
def hub(hub: Hub) -> Hub:
    """Answer with files that are a model's and an adapter's at once: the hub has one repository."""
    hub.files = {**FILES, "adapter_config.json": json.dumps(CONFIG).encode()}
    return hub


def wanted(*names: str, max_rank: int = 16) -> str:
    adapters = [{"servedName": name, "repository": REPOSITORY, "revision": COMMIT} for name in names]
    return json.dumps({"name": "llama-adapters", "maxRank": max_rank, "adapters": adapters})


def filled(cache: Path, adapters: str) -> int:
    return run(cache, f"--revision={COMMIT}", f"--adapters={adapters}")


def placed(cache: Path, name: str) -> Path:
    return cache / "adapters" / f"llama-adapters@{COMMIT}" / name


def test_a_lora_adapter_is_stored_where_vllms_resolver_looks(hub, tmp_path):
    (tmp_path / "adapters.json").write_text(wanted("sql-1"))
    assert filled(tmp_path, f"@{tmp_path / 'adapters.json'}") == 0
    config = json.loads((placed(tmp_path, "sql-1") / "adapter_config.json").read_text())
    assert config == {**CONFIG, "base_model_name_or_path": str(snapshot(tmp_path))}
    assert (placed(tmp_path, "sql-1") / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]


def test_pre_warming_downloads_an_added_adapter_and_none_that_is_stored_already(hub, tmp_path):
    filled(tmp_path, wanted("sql-1"))
    hub.requests.clear()
    assert filled(tmp_path, wanted("sql-1", "sql-2")) == 0
    assert hub.requests == []
    assert placed(tmp_path, "sql-1").is_dir()
    assert placed(tmp_path, "sql-2").is_dir()


def test_a_model_cache_without_adapters_has_the_adapter_folder_that_vllm_needs(hub, tmp_path):
    assert filled(tmp_path, wanted()) == 0
    assert placed(tmp_path, ".").is_dir()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"r": 32}, "rank is 32"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
    ],
)
def test_an_adapter_that_vllm_would_not_load_fails_pre_warming_with_the_reason(hub, tmp_path, capsys, change, word):
    hub.files["adapter_config.json"] = json.dumps({**CONFIG, **change}).encode()
    assert filled(tmp_path, wanted("sql-1")) == 1
    assert word in capsys.readouterr().err
    assert not placed(tmp_path, "sql-1").exists()


def test_an_adapter_name_that_leaves_the_folder_of_adapters_is_refused(hub, tmp_path):
    assert filled(tmp_path, wanted("../../hub")) == 1
