"""Servers that a machine's memory holds, of those that a stack asks for."""

from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.config import StackConfig
from llmd_oke.config.load import validate
from llmd_oke.planning import plan
from llmd_rehearsal.real_vllm.choice import choose_stack
from llmd_rehearsal.real_vllm.topologies import available_gib, cut
from stack_files import model, stack

RELEASE = "llm-d-0.9.0"
GIB = 2**30
SCALING = {role: {"minReplicas": 1, "maxReplicas": 2, "requests": 4} for role in ("decode", "aggregated")}
ADAPTERS = {"engine": {"adapters": {}}, "adapters": [{"name": "own", "repository": "acme/own", "revision": "0" * 40}]}


def stack_of(*models: dict[str, Any], **more: Any) -> StackConfig:
    return validate({**stack(*models, release=RELEASE), **more})


@pytest.mark.parametrize(
    ("memory_gib", "processors", "left"),
    [
        (9, 2, "1p-tp1-1d-tp2"),
        (12, 2, "2p-tp1-1d-tp2"),
        (64, 2, "2p-tp1-1d-tp2"),
        (64, 6, "6p-tp1-3d-tp2"),
        (256, 64, "8p-tp1-4d-tp2"),
    ],
)
def test_servers_are_reduced_to_what_memory_and_processors_allow(memory_gib: int, processors: int, left: str) -> None:
    fitting = cut(stack_of(model("8p-tp1-4d-tp2")), memory_gib, processors)
    assert str(fitting.config.models[0].topology) == left


def test_with_vllm_itself_a_models_copies_are_cut_to_one_and_the_cut_is_reported() -> None:
    fitting = cut(stack_of(model("1p-tp1-1d-tp1", copies=3)), 16, 2)
    assert fitting.config.models[0].copies == 1
    assert "gpt-oss-120b: 1p-tp1-1d-tp1 of 1p-tp1-1d-tp1, 3 times" in str(fitting)


def test_the_smoke_benchmark_with_vllm_on_cpus_is_short_without_latency_limits() -> None:
    smoke = {"requests": 64, "concurrency": 8, "thresholds": {"maxTtftP95Ms": 1.0, "minRemotePrefillShare": 0.9}}
    fitting = cut(stack_of(model("1p-tp1-1d-tp1"), smoke=smoke), 16, 2).config.smoke
    assert (fitting.requests, fitting.concurrency) == (4, 2)
    assert fitting.thresholds.max_ttft_p95_ms is None
    assert fitting.thresholds.min_remote_prefill_share == 0.9


def test_a_stack_file_reduced_for_real_vllm_has_the_reduced_plans_config_hash() -> None:
    document = stack(model("8p-tp1-4d-tp2", copies=2), release=RELEASE)
    fitting = cut(validate(document), 16, 2)
    written = validate(fitting.written_into(document))
    assert written == fitting.config
    assert plan(written).config_hash == plan(fitting.config).config_hash


def test_the_error_for_a_machine_too_small_for_real_vllm_names_the_memory_needed() -> None:
    with pytest.raises(KitError, match=r"needs 11\.4 GiB for the least of this stack \(gpt-oss-120b 1p-tp1-1d-tp8\)"):
        cut(stack_of(model("1p-tp1-1d-tp8")), 12, 2)


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 16),
        ({"memory.max": "max", "memory.current": "0"}, 16),
        ({"memory.max": f"{8 * GIB}", "memory.current": f"{5 * GIB}", "memory.stat": f"inactive_file {2 * GIB}"}, 5),
        ({"memory.max": f"{64 * GIB}", "memory.current": "0", "memory.stat": "inactive_file 0"}, 16),
    ],
)
def test_available_memory_respects_the_containers_limit(tmp_path: Path, files: dict[str, str], available: int) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {16 * 2**20} kB\n")
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert available_gib(tmp_path / "meminfo", tmp_path) == available


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (model("agg-tp8-1r", model="deepseek-v3"), "no multi-head latent attention on processors"),
        (model("agg-tp1dp2-1r", model="qwen3-30b-a3b"), "NotImplementedError of all_gatherv"),
        (model("agg-tp1-1r", engine={"kvCache": {"hostMemoryGib": 20}}), "no KV cache in host memory for a processor"),
        (model("agg-tp1-1r", model="gpt-oss-20b", engine={"speculation": {}}), "nothing that drafts for them"),
        (model("agg-tp1-1r", model="llama-3.1-8b-instruct", **ADAPTERS), "no adapters of tiny models' sizes"),
        (model("1p-tp1-1d-tp1", scaling=SCALING), "memory bounds the number of servers"),
        (model("1p-tp1-1d-tp1", release="llm-d-0.7.0"), "this kit has vLLM 0.26.0, 0.30.0 itself"),
    ],
)
def test_settings_that_vllm_on_cpus_lacks_are_refused_before_its_installation(entry: dict[str, Any], why: str) -> None:
    release = entry.pop("release", RELEASE)
    with pytest.raises(KitError, match=why):
        choose_stack(validate(stack(entry, release=release)), 2, 64)


KEPT = {"hostMemoryGib": 20, "diskGib": 500}


def test_everything_that_vllm_on_cpus_lacks_is_refused_at_once_by_its_path() -> None:
    deepseek = model("agg-tp8-1r", model="deepseek-v3", engine={"kvCache": KEPT}, scaling=SCALING)
    with pytest.raises(InvalidStack) as refused:
        choose_stack(stack_of(model("1p-tp1-1d-tp1"), deepseek), 2, 64)
    keys = ["model", "engine.kvCache.hostMemoryGib", "engine.kvCache.diskGib", "scaling"]
    assert [problem.path for problem in refused.value.problems] == [f"models[1].{key}" for key in keys]
