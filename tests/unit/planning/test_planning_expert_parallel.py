"""Backends by which ranks exchange tokens with each other's experts: what is refused, planned and told."""

from typing import Any

import pytest
from llmd_base.errors import Problem
from llmd_oke.planning.model_plan import RolePlan
from stack_files import StackObject, existing_pool, model, plan, problems

NEWEST = "llm-d-0.10.0"
WIDE = "1p-tp1dp16ep-1d-tp1dp16ep"
MORI = {
    "gpuMemoryUtilization": 0.8,
    "prefill": {"all2AllBackend": "mori_high_throughput"},
    "decode": {"all2AllBackend": "mori_low_latency"},
}
DEEP_EP = {"all2AllBackend": "deepep_low_latency", "gpuMemoryUtilization": 0.8}
OWN_IMAGES = {"vllmImage": "registry.example/vllm:wide-ep", "routingSidecarImage": "registry.example/sidecar:wide-ep"}


def servers(topology: str, engine: dict[str, Any]) -> StackObject:
    return model(topology, model="deepseek-v3", engine=engine)


def found(topology: str, engine: dict[str, Any], **changes: Any) -> list[Problem]:
    given = {"release": NEWEST, "gpuPools": [existing_pool(size=6)], **changes}
    return problems(servers(topology, engine), **given)


def roles(topology: str, engine: dict[str, Any], **changes: Any) -> tuple[RolePlan, ...]:
    given = {"release": NEWEST, "gpuPools": [existing_pool(size=4)], **changes}
    return plan(servers(topology, engine), **given).models[0].units[0].roles


def test_mori_expert_exchange_requires_the_users_own_vllm_image_only_between_nodes():
    refused = found(WIDE, MORI)
    assert [problem.path for problem in refused] == [
        "models[0].engine.prefill.all2AllBackend",
        "models[0].engine.decode.all2AllBackend",
    ]
    assert found(WIDE, MORI, override={"vllmImage": OWN_IMAGES["vllmImage"]}) == []
    another = "registry.example/vllm/vllm-openai-rocm:v0.30.0"  # of another release
    assert found(WIDE, MORI, override={"vllmImage": another})
    assert found("agg-tp1dp8ep-1r", {"all2AllBackend": "mori_low_latency", "gpuMemoryUtilization": 0.8}) == []


@pytest.mark.parametrize("backend", ["mori_low_latency", "deepep_high_throughput"])
def test_experts_that_ranks_have_unequal_numbers_of_need_vllms_own_exchange(backend: str):
    engine = {"all2AllBackend": backend, "gpuMemoryUtilization": 0.8}
    (problem,) = found("agg-tp1dp24ep-1r", engine, override=OWN_IMAGES)
    assert (problem.path, problem.value) == ("models[0].engine.all2AllBackend", backend)
    assert problem.accepted == "allgather_reducescatter, or servers whose GPUs divide 256 experts"
    assert len(found("agg-tp1dp24ep-1r", {**engine, "all2AllBackend": "mori_low_latency"})) == 2  # the image too
    assert found("agg-tp1dp24ep-1r", {**engine, "all2AllBackend": "allgather_reducescatter"}) == []


def test_experts_that_cannot_be_balanced_evenly_over_gpus_are_refused():
    """vLLM ends at its start (fused_moe/layer.py); redundant experts may make the number even."""
    (problem,) = found("agg-tp1dp24ep-1r", {"extraArgs": ["--seed=1", "--enable-eplb"]})
    assert (problem.path, problem.value) == ("models[0].engine.extraArgs[1]", "--enable-eplb")
    assert problem.accepted == "nothing, or --eplb-config.num_redundant_experts=8"
    for given in (["--eplb-config.num_redundant_experts=8"], ["--eplb-config", '{"num_redundant_experts": 8}']):
        assert found("agg-tp1dp24ep-1r", {"extraArgs": ["--enable-eplb", *given]}) == []
    assert found("agg-tp1dp16ep-1r", {"extraArgs": ["--enable-eplb"]}) == []


@pytest.mark.parametrize(("size", "refused"), [(1, True), (2, False)])
def test_experts_can_be_balanced_from_two_gpus_on(size: int, refused: bool):
    topology = {"aggregated": {"replicas": 1, "tensorParallelSize": size, "expertParallel": True}}
    assert bool(problems(model(topology, engine={"extraArgs": ["--enable-eplb"]}), release=NEWEST)) is refused


@pytest.mark.parametrize("name", ["gpt-oss-120b", "llama-3.3-70b-instruct"])
def test_balancing_of_experts_that_are_not_spread_over_gpus_is_refused(name: str):
    (problem,) = problems(model("agg-tp2-1r", model=name, engine={"extraArgs": ["--enable-eplb"]}), release=NEWEST)
    assert problem.path == "models[0].engine.extraArgs[0]"


def test_moris_heap_lowers_the_maximum_of_gpumemoryutilization():
    (problem,) = found("agg-tp1dp8ep-1r", {"all2AllBackend": "mori_low_latency"})
    assert (problem.path, problem.accepted) == ("models[0].engine.gpuMemoryUtilization", "at most 0.86")
    assert found("agg-tp1dp8ep-1r", {"all2AllBackend": "mori_low_latency", "gpuMemoryUtilization": 0.86}) == []


@pytest.mark.parametrize("topology", ["agg-tp8ep-1r", "agg-tp8-1r"])
def test_an_expert_exchange_backend_is_refused_for_servers_without_data_parallelism(topology: str):
    (problem,) = found(topology, {"all2AllBackend": "allgather_reducescatter"})
    assert problem.path == "models[0].engine.all2AllBackend"


def test_the_error_for_an_unsupported_expert_exchange_backend_lists_releases_with_it():
    (problem,) = found("agg-tp1dp8ep-1r", {"all2AllBackend": "mori_low_latency"}, release="llm-d-0.9.0")
    assert problem.accepted.endswith(f"or release: {NEWEST}")


def test_prefill_and_decode_servers_can_have_different_expert_exchange_backends():
    prefill, decode = roles(WIDE, MORI, override=OWN_IMAGES)
    assert "--all2all-backend=mori_high_throughput" in prefill.settings.table_arguments
    assert "--all2all-backend=mori_low_latency" in decode.settings.table_arguments


@pytest.mark.parametrize(
    ("topology", "engine", "override", "words", "keys"),
    [
        (WIDE, MORI, OWN_IMAGES, "MoRI over nodes", ["prefill.all2AllBackend", "decode.all2AllBackend"]),
        ("agg-tp1dp8ep-1r", DEEP_EP, {}, "published DeepEP", ["all2AllBackend"]),
    ],
)
def test_check_reports_known_drawbacks_of_an_expert_exchange_backend_at_its_key(
    topology: str, engine: dict[str, Any], override: dict[str, str], words: str, keys: list[str]
):
    given = plan(servers(topology, engine), release=NEWEST, override=override, gpuPools=[existing_pool(size=4)])
    assert [item.path for item in given.advice if words in item.text] == [f"models[0].engine.{key}" for key in keys]


def mori_io(**changes: Any) -> dict[str, Any]:
    return {**MORI, "kvCache": {"connector": "mori-io"}, **changes}


def test_mori_io_with_several_ranks_requires_the_users_own_images():
    assert found(WIDE, mori_io(), override=OWN_IMAGES) == []
    (problem,) = found(WIDE, mori_io(), override={"vllmImage": OWN_IMAGES["vllmImage"]})
    assert problem.path == "models[0].engine.kvCache.connector"


@pytest.mark.parametrize("topology", ["2p-tp1dp16ep-1d-tp1dp16ep", "1p-tp1dp16ep-1d-tp1dp32ep"])
def test_mori_io_over_nodes_needs_one_prefill_and_one_decode_server_of_equal_size(topology: str):
    (problem,) = found(topology, mori_io(), override=OWN_IMAGES)
    assert "one prefill and one decode server" in problem.accepted
