from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmd_oke import catalogue
from llmd_oke.config.engine import flags_by_word
from llmd_oke.planning.known_faults import known_faults
from project_entries import model_entry, write_entry
from stack_files import StackObject, model, plan, problems

DBO = {"extraArgs": ["--enable-dbo"], "all2AllBackend": "deepep_high_throughput"}
RANKS = "agg-tp1dp8ep-1r"
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}


def paths(topology: str, engine: dict[str, Any], release: str = "llm-d-0.10.0") -> list[str]:
    return [problem.path for problem in problems(model(topology, engine=engine), release=release)]


def told(words: str, servers: StackObject) -> list[str]:
    """Paths of the advice with some words on servers of the newest release."""
    return [item.path for item in plan(servers, release="llm-d-0.10.0").advice if words in item.text]


def test_an_argument_that_meets_all_conditions_of_a_known_vllm_fault_is_refused():
    assert paths(RANKS, DBO) == ["models[0].engine.extraArgs[0]"]
    assert paths(RANKS, {"extraArgs": DBO["extraArgs"]}) == []
    assert paths(RANKS, {**DBO, "all2AllBackend": "allgather_reducescatter"}) == []
    assert paths(RANKS, DBO, release="llm-d-0.9.0") == []


def test_a_known_vllm_fault_that_a_setting_of_one_role_meets_is_reported():
    engine = {
        "extraArgs": ["--enable-eplb"],
        "gpuMemoryUtilization": 0.8,
        "prefill": {"all2AllBackend": "mori_low_latency"},
    }
    servers = model("1p-tp1dp8ep-1d-tp1dp8ep", model="qwen3-235b-a22b-fp8", engine=engine)
    assert told("EPLB", servers) == ["models[0].engine.extraArgs[0]"]


def test_a_known_vllm_fault_of_kv_connectors_is_not_reported_without_a_kv_connector():
    assert paths("1p-tp1-1d-tp1", {"env": SEGMENTS}) == ["models[0].engine.env.PYTORCH_CUDA_ALLOC_CONF"]
    assert paths("agg-tp1-1r", {"env": SEGMENTS}) == []


def test_a_known_vllm_fault_of_a_variable_is_reported_there_with_speculation_too():
    engine = {"env": SEGMENTS, "speculation": {}}
    told = problems(model("1p-tp8-1d-tp8", model="deepseek-r1", engine=engine), release="llm-d-0.10.0")
    assert [problem.path for problem in told] == ["models[0].engine.env.PYTORCH_CUDA_ALLOC_CONF"]


def test_a_variable_of_the_release_that_ends_servers_when_changed_is_refused():
    env = {"ROCPROFILER_QUEUE_INTERPOSITION": "0", "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "1"}
    assert paths("agg-tp1-1r", {"env": env}) == [f"models[0].engine.env.{name}" for name in env]
    assert paths("agg-tp1-1r", {"env": env}, release="llm-d-0.9.0") == []


@pytest.mark.parametrize(
    "drafts",
    [
        ["--speculative-config", '{"method": "eagle3", "model": "/models/draft"}'],
        ["--speculative-config.method=eagle3"],
        ["--spec-method=eagle3"],
        ["--spec-method", "eagle3"],
        ["-sc", '{"method": "eagle3"}'],
    ],
)
def test_known_faults_of_drafts_are_found_with_every_flag_of_speculation(drafts: list[str]):
    for arguments in ([*drafts, "--kv-offloading-size=10"], ["--kv-offloading-size=10", *drafts]):
        assert paths("agg-tp1ep-1r", {"extraArgs": arguments}) == ["models[0].engine.extraArgs[0]"]
    assert paths("agg-tp1ep-1r", {"extraArgs": ["--spec-method=ngram", "--kv-offloading-size=10"]}) == []


@pytest.mark.parametrize("name", ["MORI_IB_GID_INDEX", "VLLM_MORIIO_NUM_WORKERS", "VLLM_MORIIO_CONNECTOR_READ_MODE"])
def test_a_variable_that_is_harmful_or_ignored_with_any_value_is_reported(name: str):
    told = plan(model("1p-tp1-1d-tp1", engine={"env": {name: "1"}}), release="llm-d-0.10.0").advice
    assert f"models[0].engine.env.{name}" in {item.path for item in told}
    assert name not in str(plan(model("1p-tp1-1d-tp1"), release="llm-d-0.10.0").advice)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [(["--seed=1", "--kv-cache-dtype=fp8"], [1]), (["--kv-cache-dtype=bfloat16", "--quantization=fp8"], [])],
    ids=["its value", "the value of another argument"],
)
def test_a_known_vllm_fault_of_an_arguments_value_is_reported_at_that_argument(arguments: list[str], found: list[int]):
    servers = model("agg-tp1-1r", engine={"extraArgs": arguments})
    assert told("scales for keys and values", servers) == [f"models[0].engine.extraArgs[{i}]" for i in found]


def test_a_fault_of_a_catalogue_entrys_argument_is_reported_at_the_roles_setting(model_with: Callable[..., Any]):
    known = model_with("qwen3-235b-a22b-fp8", arguments=("--enable-eplb",))
    engine = {"gpuMemoryUtilization": 0.8, "decode": {"all2AllBackend": "mori_low_latency"}}
    servers = model("1p-tp1dp8ep-1d-tp1dp8ep", model=known.name, engine=engine)
    assert told("EPLB", servers) == ["models[0].engine.decode.all2AllBackend"]


def entry(tmp_path: Path, **changes: Any) -> None:
    weights = {"format": "nvfp4", "gib": 40.0}
    write_entry(tmp_path, "models/mine", model_entry("mine", **{"weights": weights, **changes}))


@pytest.mark.parametrize("release", ["llm-d-0.9.0", "llm-d-0.10.0"])
def test_a_weight_format_that_the_gpu_cannot_load_is_refused_with_a_source(tmp_path: Path, release: str):
    entry(tmp_path)
    (problem,) = problems(model("agg-tp1-1r", model="mine"), release=release)
    assert (problem.path, problem.accepted.count("in BF16, FP8 or INT4")) == ("models[0].model", 1)


def test_an_emulated_weight_format_is_reported_if_the_model_exists_unquantized(tmp_path: Path):
    weights = {"format": "mxfp4", "gib": 40.0}
    entry(tmp_path, weights=weights)
    servers = model("agg-tp1-1r", model="mine")
    assert told("no MXFP4 arithmetic", servers) == []
    entry(tmp_path, weights=weights, quantized_from="llama-3.3-70b-instruct")
    assert told("no MXFP4 arithmetic", servers) == ["models[0].model"]


def test_the_list_of_known_vllm_faults_names_only_existing_releases_flags_and_gpus():
    gpus = {gpu.architecture for name in catalogue.gpu_names() if (gpu := catalogue.gpu(name))}
    for fault in known_faults():
        assert set(fault.releases) <= set(catalogue.release_names()), fault
        assert {f"--{flag}" for flag in fault.arguments} <= flags_by_word().keys(), fault
        assert fault.arguments or fault.environment or fault.families or fault.number_formats, fault
        assert set(fault.gpus) <= gpus, fault
