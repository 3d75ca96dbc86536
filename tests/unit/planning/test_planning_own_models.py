"""Models of a project's own, as far as stacks are planned by them."""

from pathlib import Path

from project_entries import model_entry, write_entry
from stack_files import model, problems

MINE = "mine-8b"


ARGUMENTS = [
    *("--seed=1", "--kv-transfer-config={}", "--kv_offloading_size", "10", "--kv-transfer-conf={}"),
    *("--attention-backend=ROCM_ATTN", "--max-model-len=4096", "--api-key=x"),
]


def test_each_invalid_value_of_a_projects_model_entry_is_refused_with_its_path(tmp_path: Path):
    environment = {"VLLM_KV_CACHE_LAYOUT": "NHD", "MY_API_KEY": "x"}
    write_entry(tmp_path, f"models/{MINE}", model_entry(MINE, arguments=ARGUMENTS, environment=environment))
    found = problems(model("agg-tp1-1r", model=MINE))
    assert {problem.file for problem in found} == {f"values/models/{MINE}.yaml"}
    assert {problem.path for problem in found} == {
        *(f"arguments[{i}]" for i, word in enumerate(ARGUMENTS) if word not in {"--seed=1", "10"}),
        *(f"environment.{name}" for name in environment),
    }
    assert all("nothing here" in problem.accepted for problem in found)


def test_a_repository_in_a_projects_model_entry_is_refused_for_pre_warmed_servers(tmp_path: Path):
    write_entry(tmp_path, f"models/{MINE}", model_entry(MINE, arguments=["--seed=1", "--tokenizer=acme/other"]))
    served = model("agg-tp1-1r", model=MINE)
    (problem,) = problems(served, storage={"modelCache": {"kind": "node-disk"}})
    assert (problem.file, problem.path) == (f"values/models/{MINE}.yaml", "arguments[1]")
    assert problems(served) == []
