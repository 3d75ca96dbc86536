"""Models of a project's own, as far as stacks are planned by them."""

from pathlib import Path

import pytest
from project_entries import model_entry, write_entry
from stack_files import model, problems

MINE = "mine-8b"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"arguments": ["--seed=1", "--kv-transfer-config={}"]}, "arguments[1]"),
        ({"arguments": ["--kv_offloading_size", "10"]}, "arguments[0]"),
        ({"arguments": ["--kv-transfer-conf={}"]}, "arguments[0]"),
        ({"arguments": ["--attention-backend=ROCM_ATTN"]}, "arguments[0]"),
        ({"arguments": ["--max-model-len=4096"]}, "arguments[0]"),
        ({"arguments": ["--api-key=x"]}, "arguments[0]"),
        ({"environment": {"VLLM_KV_CACHE_LAYOUT": "NHD"}}, "environment.VLLM_KV_CACHE_LAYOUT"),
        ({"environment": {"MY_API_KEY": "x"}}, "environment.MY_API_KEY"),
    ],
)
def test_an_invalid_value_of_a_projects_model_entry_is_refused_with_its_path(tmp_path: Path, changes, path: str):
    write_entry(tmp_path, f"models/{MINE}", model_entry(MINE, **changes))
    (problem,) = problems(model("agg-tp1-1r", model=MINE))
    assert (problem.file, problem.path) == (f"values/models/{MINE}.yaml", path)
    assert "nothing here" in problem.accepted


def test_a_repository_in_a_projects_model_entry_is_refused_for_pre_warmed_servers(tmp_path: Path):
    write_entry(tmp_path, f"models/{MINE}", model_entry(MINE, arguments=["--seed=1", "--tokenizer=acme/other"]))
    served = model("agg-tp1-1r", model=MINE)
    (problem,) = problems(served, storage={"modelCache": {"kind": "node-disk"}})
    assert (problem.file, problem.path) == (f"values/models/{MINE}.yaml", "arguments[1]")
    assert "offline" in problem.why
    assert problems(served) == []
