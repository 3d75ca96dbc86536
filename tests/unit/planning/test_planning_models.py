from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue
from llmd_oke.catalogue.models import LatentAttention, key_value_copies
from llmd_oke.catalogue.serving import handshake, repositories
from llmd_oke.config.engine import engine_settings, flags_by_word
from llmd_oke.planning.model_plan import Memory
from llmd_oke.planning.planned_model import memory
from stack_files import StackObject, existing_pool, known_model, known_shape, model, paths, plan, problems

LLAMA = "llama-3.3-70b-instruct-fp8-dynamic"
SHAPE = known_shape()
ATTENTION = LatentAttention(key_value_rank=512, rope_dim=64)


def servers(replicas: int, size: int) -> dict[str, int]:
    return {"replicas": replicas, "tensorParallelSize": size}


def only(*models: dict[str, Any], **changes: Any) -> Any:
    (problem,) = problems(*models, **changes)
    return problem


@pytest.mark.parametrize("topology", ["8p-tp1-4d-tp2", "8p-tp1-2d-tp4", "1p-tp1-1d-tp2", "agg-tp1-16r", "agg-tp8-9r"])
def test_published_topologies_are_accepted(topology: str):
    assert problems(model(topology)) == []


@pytest.mark.parametrize("size", [3, 5, 6, 7, 9, 16, 64])
def test_a_tensor_parallel_size_must_divide_attention_heads_and_fit_a_node(size: int):
    problem = only(model({"aggregated": servers(1, size)}))
    assert problem.path == "models[0].topology.aggregated.tensorParallelSize"
    assert (problem.value, problem.accepted) == (size, "one of 1, 2, 4, 8")


def test_kv_heads_must_divide_or_be_divided_by_the_tensor_parallel_size(model_with: Callable[..., Any]):
    model_with("gpt-oss-120b", architecture={"attention_heads": 96, "key_value_heads": 4})
    assert problems(model({"aggregated": servers(1, 8)})) == []
    assert only(model({"aggregated": servers(1, 6)})).accepted == "one of 1, 2, 4, 8"


def test_a_wrong_tensor_parallel_size_in_a_topology_string_is_reported_at_topology():
    problem = only(model("8p-tp3-4d-tp4"))
    assert (problem.path, problem.value) == ("models[0].topology", "8p-tp3-4d-tp4")
    assert problem.accepted == "for prefill: one of 1, 2, 4, 8"


def test_decode_needs_the_tensor_parallel_size_of_prefill_but_for_latent_attention(model_with: Callable[..., Any]):
    pair = model({"prefill": servers(1, 4), "decode": servers(1, 2)})
    problem = only(pair)
    assert problem.path == "models[0].topology.decode.tensorParallelSize"
    assert (problem.value, problem.accepted) == (2, "at least 4")
    model_with("gpt-oss-120b", architecture={"latent_attention": ATTENTION})
    assert problems(pair) == []


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        (["prefill"], "there are none"),
        (["decode"], "aggregated topology"),
        ([], "no servers"),
        (["aggregated", "decode"], "do not work together"),
        (["aggregated", "prefill", "decode"], "do not work together"),
    ],
)
def test_a_topology_of_only_prefill_only_decode_or_mixed_with_aggregated_is_refused(roles: list[str], reason: str):
    problem = only(model({role: servers(1, 1) for role in roles}))
    assert (problem.path, reason in problem.why) == ("models[0].topology", True)


def test_weights_that_leave_no_room_for_a_sequence_are_refused_with_figures():
    tight = {"gpuMemoryUtilization": 0.4}
    problem = only(model("agg-tp1-1r", model=LLAMA, engine=tight))
    assert (problem.path, problem.accepted.count("engine.maxModelLen of at most 9764")) == ("models[0].topology", 1)
    assert plan(model("agg-tp1-1r", model=LLAMA, engine={**tight, "maxModelLen": 9764}))


@pytest.mark.parametrize(("outputs", "suggested"), [(256, True), (257, False)])
def test_a_maxmodellen_below_the_workloads_requests_is_never_suggested(outputs: int, suggested: bool):
    workload = {"inputTokens": 9764 - 256, "outputTokens": outputs}
    problem = only(model("agg-tp1-1r", model=LLAMA, engine={"gpuMemoryUtilization": 0.4}, workload=workload))
    assert ("engine.maxModelLen of at most 9764" in problem.accepted) is suggested
    assert ("maxModelLen" in problem.accepted) is suggested


@pytest.mark.parametrize("role", ["", "aggregated"])
def test_the_least_sufficient_gpumemoryutilization_is_suggested_at_its_key(role: str):
    def given(share: float) -> StackObject:
        engine: dict[str, Any] = {"gpuMemoryUtilization": share}
        return model("agg-tp1-1r", model=LLAMA, engine={role: engine} if role else engine)

    problem = only(given(0.01))
    key = f"engine.{role}.gpuMemoryUtilization" if role else "engine.gpuMemoryUtilization"
    assert problem.accepted == f"for aggregated: {key} of at least 0.6"
    assert only(given(0.59)).accepted.startswith(f"for aggregated: {key} of at least 0.6, or ")
    assert plan(given(0.6))


@pytest.mark.parametrize(("ranks", "longest"), [(1, 600), (2, 100), (4, 0)])
def test_the_longest_sequence_fits_one_data_parallel_rank_beside_its_state(ranks: int, longest: int):
    fit = Memory(192, 68, 6, 100, key_value_tokens=1000, state_tokens=400, ranks=ranks)
    assert fit.longest_sequence == longest


@pytest.mark.parametrize(("beyond", "suggested"), [(0, True), (1, False)])
def test_no_gpumemoryutilization_above_the_kits_default_is_suggested(beyond: int, suggested: bool):
    longest = memory(known_model("glm-4.7"), SHAPE, Parallelism(4), 0.95).longest_sequence + beyond
    engine = {"gpuMemoryUtilization": 0.9, "maxModelLen": longest}
    problem = only(model("agg-tp4-1r", model="glm-4.7", engine=engine))
    assert ("engine.gpuMemoryUtilization of at least 0.95" in problem.accepted) is suggested
    assert ("engine.gpuMemoryUtilization" in problem.accepted) is suggested


def test_a_maxmodellen_that_fits_one_data_parallel_rank_is_suggested():
    def given(**engine: object) -> StackObject:
        return model("agg-tp1dp8ep-1r", model="qwen3-235b-a22b-fp8", engine={"gpuMemoryUtilization": 0.24, **engine})

    problem = only(given())
    assert problem.accepted.endswith("engine.maxModelLen of at most 33035")
    assert problems(given(maxModelLen=33035)) == []
    assert only(given(maxModelLen=33036)).accepted.endswith("engine.maxModelLen of at most 33035")


def test_a_model_that_fits_no_node_is_refused_with_quantized_alternatives():
    problem = only(model("agg-tp8-1r", model="qwen3-coder-480b-a35b-instruct", engine={"gpuMemoryUtilization": 0.4}))
    assert problem.accepted.startswith("for aggregated: engine.gpuMemoryUtilization of at least 0.")
    assert problem.accepted.endswith(", or narrower weights (model: qwen3-coder-480b-a35b-instruct-fp8)")


@pytest.mark.parametrize(("extra", "refused"), [(0, False), (1, True)])
def test_a_workload_of_exactly_maxmodellen_tokens_is_accepted_and_no_longer_one(extra: int, refused: bool):
    workload = {"inputTokens": 8000, "outputTokens": 192 + extra}
    result = problems(model(workload=workload, engine={"maxModelLen": 8192}))
    assert [problem.path for problem in result] == (["models[0].workload"] if refused else [])


@pytest.mark.parametrize(
    ("engine", "limit"),
    [
        ({}, "the context of the model"),
        ({"maxModelLen": 131072}, "engine.maxModelLen"),
        ({"maxModelLen": 131073}, "the context of the model"),
    ],
)
def test_a_workload_beyond_the_models_context_is_refused_with_the_limit_that_applies(
    engine: dict[str, int], limit: str
):
    result = problems(model(engine=engine, workload={"inputTokens": 131072, "outputTokens": 1}))
    (why,) = [problem.why for problem in result if problem.path == "models[0].workload"]
    assert f"above {limit} (131072)" in why


def test_a_maxmodellen_above_the_models_context_is_refused_with_one_problem():
    problem = only(model(engine={"maxModelLen": 131073}))
    assert (problem.path, problem.accepted) == ("models[0].engine.maxModelLen", "at most 131072")


def test_prefill_and_decode_servers_require_a_router():
    assert only(model(router={"mode": "none"})).path == "models[0].router.mode"
    assert problems(model("agg-tp1-16r", router={"mode": "none"})) == []


@pytest.mark.parametrize(
    "argument",
    [
        *("--tensor-parallel-size=4", "--tensor_parallel_size", "-tp", "--max-model-len", "--block-size=64"),
        "--config=/etc/vllm.yaml",
    ],
)
def test_vllm_arguments_that_planning_decides_or_cannot_read_in_a_file_are_refused(argument: str):
    problem = only(model(engine={"extraArgs": ["--seed=1", argument]}))
    assert (problem.path, problem.value) == ("models[0].engine.extraArgs[1]", argument)


def planned_by() -> set[str]:
    """The flags among a user's arguments that planning reads or refuses."""
    connectors = [item.vllm.kv_connector for name in catalogue.release_names() if (item := catalogue.release(name))]
    brought = {flag for item in connectors for flag in (*item.flags, *item.further_flags, *item.hybrid_flags)}
    others = {"--api-key", "--attention-backend", "--attention-config", "--enable-expert-parallel"}
    return {*engine_settings().taken(), *repositories().flags, *handshake().arguments, *brought, *others}


def test_each_vllm_argument_that_planning_reserves_is_a_flag_of_vllm():
    assert planned_by() - flags_by_word().keys() == set()


@pytest.mark.parametrize("written", ["{}=1", "{}.key=1", "{}"])
def test_an_abbreviated_vllm_argument_is_refused_with_its_whole_name(written: str):
    flags = sorted(flag for flag in planned_by() if flag.startswith("--") and flag[:-1] not in flags_by_word())
    arguments = [written.format(flag[:-1].replace("-", "_").replace("__", "--", 1)) for flag in flags]
    found = {problem.path: problem for problem in problems(model("agg-tp1-1r", engine={"extraArgs": arguments}))}
    for i, flag in enumerate(flags):
        problem = found.pop(f"models[0].engine.extraArgs[{i}]")
        assert flag in problem.why.partition("short for ")[2].partition(";")[0].split(" or ")
        assert flag in problem.accepted.split(", or ") or flag in {"--api-key", *engine_settings().taken()}
    assert found == {}


@pytest.mark.parametrize(
    ("argument", "accepted"),
    [
        ("--block-siz=64", "engine.blockSize"),
        ("-t=2", "topology"),
        ("--enable-lor", "engine.adapters"),
        ("--api-ke=secret", "nothing"),
        ("--hos=::", "nothing: the kit sets it"),
        ("--confi=a", "engine, and its extraArgs, or --config-format"),
        ("--data-parallel-siz=2", "topology"),
    ],
)
def test_an_abbreviated_vllm_argument_is_refused_with_the_key_of_its_whole_name(argument: str, accepted: str):
    problem = only(model("agg-tp1-1r", engine={"extraArgs": [argument]}))
    assert problem.accepted == accepted
    assert "secret" not in str(problem)


@pytest.mark.parametrize("argument", ["--", "-", "--kv"])
def test_an_ambiguous_abbreviated_vllm_argument_is_refused(argument: str):
    problem = only(model("agg-tp1-1r", engine={"extraArgs": [argument]}))
    assert "vLLM would read this as short for another argument" in problem.why


@pytest.mark.parametrize("argument", ["--tokenizer=/a", "--no-enable-prefix-caching", "-q=fp8", "--of-a-later-vllm"])
def test_vllm_arguments_that_planning_does_not_reserve_are_accepted(argument: str):
    assert problems(model("agg-tp1-1r", engine={"extraArgs": [argument]})) == []


@pytest.mark.parametrize(
    ("argument", "accepted"),
    [
        ("--enable-trace-replay", "nothing, or llm-d-0.10.0 or later"),
        ("--swap-space=4", "nothing, or at most llm-d-0.7.0"),
    ],
)
def test_an_argument_that_the_releases_vllm_lacks_is_refused_with_fitting_releases(argument: str, accepted: str):
    problem = only(model("agg-tp1-1r", engine={"extraArgs": [argument]}), release="llm-d-0.9.0")
    assert (problem.path, problem.accepted) == ("models[0].engine.extraArgs[0]", accepted)


@pytest.mark.parametrize(("release", "path"), [("llm-d-0.7.0", "models[0].engine.maxNumSeqs"), ("llm-d-0.9.0", None)])
def test_a_vllm_setting_that_only_a_later_llm_d_release_has_is_refused(
    release: str, path: str | None, monkeypatch: pytest.MonkeyPatch
):
    rows = engine_settings().settings
    later = [row.model_copy(update={"since": "llm-d-0.9.0"}) if row.flag == "max-num-seqs" else row for row in rows]
    table = engine_settings().model_copy(update={"settings": tuple(later)})
    monkeypatch.setattr("llmd_oke.planning.models.engine_settings", lambda: table)
    assert problems(model("agg-tp1-16r"), release=release) == []
    changed = problems(model("agg-tp1-16r", engine={"maxNumSeqs": 64}), release=release)
    assert [problem.path for problem in changed] == ([path] if path else [])


@pytest.mark.parametrize(
    ("engine", "path"),
    [
        ({"extraArgs": ["--api-key=secret"]}, "extraArgs[0]"),
        ({"extraArgs": ["--seed=1", "--api_key", "secret"]}, "extraArgs[1]"),
        ({"env": {"VLLM_API_KEY": "secret"}}, "env.VLLM_API_KEY"),
    ],
)
def test_an_api_key_in_vllm_arguments_or_variables_is_refused_without_showing_it(engine: dict[str, Any], path: str):
    problem = only(model(engine=engine))
    assert (problem.path, "=secret" in str(problem)) == (f"models[0].engine.{path}", False)


KEEPS_IN_HOST_MEMORY = ("llm-d-0.9.0", "llm-d-0.10.0")
CONNECTOR = '--kv-transfer-config={"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}'


@pytest.mark.parametrize("release", catalogue.release_names())
@pytest.mark.parametrize(
    "arguments",
    [
        [CONNECTOR],
        ["--kv-transfer-config", "{}"],
        ["--kv_transfer_config.kv_connector=OffloadingConnector"],
        ["--kv-offloading-size=10"],
        ["--kv_offloading_size", "10"],
        ["--kv-offloading-backend=lmcache"],
    ],
)
def test_a_kv_connector_argument_is_refused_for_servers_that_transfer_kv_cache(arguments: list[str], release: str):
    servers = model("1p-tp1-1d-tp1", engine={"extraArgs": ["--seed=1", *arguments]})
    problem = only(servers, release=release)
    assert (problem.path, problem.value) == ("models[0].engine.extraArgs[1]", arguments[0])
    sized = "offloading" in arguments[0] and "size" in arguments[0] and release in KEEPS_IN_HOST_MEMORY
    assert problem.accepted == ("engine.kvCache.hostMemoryGib" if sized else "nothing, or aggregated servers")


@pytest.mark.parametrize("arguments", [[CONNECTOR], ["--kv-offloading-size=10"], ["--kv_offloading_size", "10"]])
def test_a_kv_connector_argument_changes_block_size_and_permitted_attention_backends(arguments: list[str]):
    engine = {"extraArgs": arguments}
    assert plan(model("agg-tp1-1r", engine=engine)).models[0].block_size == 128
    backend = {"extraArgs": [*arguments, "--attention-backend=ROCM_AITER_UNIFIED_ATTN"]}
    assert "does not start" in only(model("agg-tp1-1r", engine=backend)).why


@pytest.mark.parametrize(
    ("arguments", "mode", "refused"),
    [
        (["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'], "none", True),
        (["--kv_transfer_config.kv_connector=DecodeBenchConnector"], "none", True),
        (['--kv-transfer-config={"kv_connector": "NixlConnector", "kv_role": "kv_both"}'], "standalone", False),
        ([CONNECTOR], "none", False),
    ],
)
def test_a_kv_connector_through_which_clients_could_name_servers_requires_a_router(arguments, mode, refused):
    servers = model("agg-tp1-1r", engine={"extraArgs": arguments}, router={"mode": mode})
    paths = [problem.path for problem in problems(servers) if "could name the server" in problem.why]
    assert paths == (["models[0].engine.extraArgs[0]"] if refused else [])


@pytest.mark.parametrize("size", ["none", "0", "-1", "nan", "inf", ""])
def test_kv_cache_in_host_memory_requires_a_size_and_no_kv_connector_beside_it(size: str):
    problem = only(model("agg-tp1-1r", engine={"extraArgs": [f"--kv-offloading-size={size}"]}))
    assert (problem.path, problem.accepted) == ("models[0].engine.extraArgs[0]", "a size in GiB above 0")
    beside = [CONNECTOR, "--kv-offloading-size=10"]
    assert paths(model("agg-tp1-1r", engine={"extraArgs": beside})) == ["models[0].engine.extraArgs[1]"]


OFFLOAD = '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 2e12}}'
MULTI = f'{{"kv_connector": "MultiConnector", "kv_connector_extra_config": {{"connectors": [{OFFLOAD}]}}}}'


@pytest.mark.parametrize("release", catalogue.release_names())
@pytest.mark.parametrize(
    "arguments",
    [
        [f"--kv-transfer-config={OFFLOAD}"],
        ["--kv-transfer-config", OFFLOAD],
        ["--kv_transfer_config", MULTI],
        ["--kv-transfer-config.kv_connector=SimpleCPUOffloadConnector"],
        ["--kv-transfer-config.kv_connector", "OffloadingConnector"],
        ["--kv_transfer_config.kv_connector_extra_config.cpu_bytes_to_use", "2e12"],
        ['--kv-transfer-config={"kv_connector_extra_config": {"lmcache.max_local_cpu_size": 200}}'],
    ],
)
def test_vllm_arguments_for_kv_cache_in_host_memory_are_refused_with_the_key(arguments: list[str], release: str):
    servers = model("agg-tp1-1r", engine={"extraArgs": ["--seed=1", *arguments]})
    problem = only(servers, release=release)
    assert (problem.path, problem.value) == ("models[0].engine.extraArgs[1]", arguments[0])
    known = "engine.kvCache.hostMemoryGib" if release in KEEPS_IN_HOST_MEMORY else "--kv-offloading-size, in GiB"
    assert problem.accepted == known


@pytest.mark.parametrize(("topology", "most"), [("agg-tp1-1r", 57), ("agg-tp2-1r", 115), ("agg-tp8-1r", 460)])
def test_vllms_kv_offloading_size_is_limited_to_what_fits_if_servers_fill_a_node(topology: str, most: int):
    def asked(size: int) -> list[Any]:
        return problems(model(topology, engine={"extraArgs": [f"--kv-offloading-size={size}"]}))

    assert asked(most) == []
    (problem,) = asked(most + 1)
    assert problem.path == "models[0].engine.extraArgs[0]"
    assert problem.accepted.startswith(f"at most {most} ")


@pytest.mark.parametrize(
    ("topology", "release", "words"),
    [
        (
            "agg-tp1dp8ep-1r",
            "llm-d-0.9.0",
            "1 x 1920 GiB are 1920 GiB, 120 GiB in each of 8 ranks, as vLLM may pin 2 times the size",
        ),
        ("agg-tp1dp8ep-1r", "llm-d-0.10.0", "1 x 960 GiB are 960 GiB, 120 GiB in each of 8 ranks"),
        ("agg-tp1dp2ep-1r", "llm-d-0.10.0", "4 x 240 GiB are 960 GiB, 120 GiB in each of 2 ranks"),
    ],
)
def test_vllms_kv_offloading_size_is_limited_to_what_fits_for_all_ranks_of_a_server(
    topology: str, release: str, words: str
):
    servers = model(topology, engine={"extraArgs": ["--kv-offloading-size=120"]})
    assert only(servers, release=release).why.endswith(f"; {words}")


@pytest.mark.parametrize("arguments", [["--attention-backend=ROCM_ATTN"], ["--attention-backend", "rocm_attn"]])
def test_an_attention_backend_without_support_for_kv_connectors_is_refused(arguments: list[str]):
    problem = only(model(engine={"extraArgs": arguments}), release="llm-d-0.9.0")
    assert (problem.path, problem.accepted) == ("models[0].engine.extraArgs[0]", "TRITON_ATTN, or none")
    assert problems(model("agg-tp1-1r", model=LLAMA, engine={"extraArgs": arguments}), release="llm-d-0.9.0") == []


@pytest.mark.parametrize("release", ["llm-d-0.6.0", "llm-d-0.7.0"])
def test_prefill_and_decode_of_different_sizes_need_a_kv_cache_split_by_heads(release: str):
    problem = only(model("4p-tp1-2d-tp4"), release=release)
    assert problem.path == "models[0].topology"
    assert problem.accepted == "for decode: 1, as prefill has, or another release"
    assert problems(model("4p-tp2-4d-tp2"), release=release) == []
    assert problems(model("4p-tp1-2d-tp4"), release="llm-d-0.9.0") == []


def test_an_attention_backend_that_splits_kv_cache_by_heads_is_suggested():
    engine = {"maxModelLen": 8192}
    llama = model("4p-tp1-2d-tp4", model=LLAMA, engine=engine)
    assert only(llama, release="llm-d-0.6.0").accepted == "for decode: 1, as prefill has, or ROCM_ATTN"
    chosen = {**engine, "extraArgs": ["--attention-backend=ROCM_ATTN"]}
    assert problems({**llama, "engine": chosen}, release="llm-d-0.6.0") == []


MIXED = "8p-tp1-2d-tp4"
UNIFIED = "ROCM_AITER_UNIFIED_ATTN"


@pytest.mark.parametrize(
    ("changes", "override", "path"),
    [
        ({}, {"vllmImage": "ghcr.io/llm-d/llm-d-rocm:v0.6.0"}, "models[0].topology"),
        ({}, {"vllmImage": "registry.mine/mirror/llm-d-rocm:v0.6.0"}, "models[0].topology"),
        ({"release": "llm-d-0.7.0"}, {"attentionBackend": UNIFIED}, "override.attentionBackend"),
        (
            {},
            {"vllmImage": "ghcr.io/llm-d/llm-d-rocm:v0.7.0", "attentionBackend": UNIFIED},
            "override.attentionBackend",
        ),
    ],
    ids=["image of another release", "mirror of one", "backend", "image and backend"],
)
def test_no_override_permits_unequal_prefill_and_decode_sizes_with_unsplit_kv_cache(
    changes: dict[str, Any], override: dict[str, str], path: str
):
    assert paths(model(MIXED), override=override, **changes) == [path]
    assert problems(model("4p-tp2-4d-tp2"), override=override, **changes) == []


def test_check_warns_that_an_unknown_attention_backend_may_not_split_kv_cache():
    result = plan(model(MIXED), release="llm-d-0.7.0", override={"attentionBackend": "FLEX_ATTENTION"})
    (text,) = [advice for advice in result.advice if "split" in advice.text]
    assert text.path == "override.attentionBackend"
    latent = model("1p-tp4-1d-tp8", model="deepseek-r1")
    unsplit = plan(latent, release="llm-d-0.7.0", override={"attentionBackend": "TRITON_MLA"})
    assert not any("split" in advice.text for advice in unsplit.advice)


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (['--attention-config={"backend": "TRITON_ATTN"}'], True),
        (["--attention_config", '{"backend": "TRITON_ATTN"}'], True),
        (['-ac={"backend": "TRITON_ATTN"}'], True),
        (["-ac.backend", "TRITON_ATTN"], True),
        (["--attention-config.backend=TRITON_ATTN"], True),
        (["--attention-config.flash_attn_max_num_splits_for_cuda_graph=8", '-ac={"use_cudnn_prefill": false}'], False),
        (['--compilation-config={"backend": "inductor"}', "-ac", '{"use_cudnn_prefill": false}'], False),
    ],
)
def test_an_attention_config_is_refused_if_it_has_a_backend(arguments: list[str], refused: bool):
    found = [(problem.path, problem.accepted) for problem in problems(model(engine={"extraArgs": arguments}))]
    assert found == ([("models[0].engine.extraArgs[0]", "--attention-backend")] if refused else [])


def test_the_nhd_kv_cache_layout_is_refused_if_prefill_and_decode_sizes_differ():
    problem = only(model(MIXED, engine={"env": {"VLLM_KV_CACHE_LAYOUT": "NHD"}}))
    assert (problem.path, problem.accepted) == ("models[0].engine.env.VLLM_KV_CACHE_LAYOUT", "HND, or nothing")
    assert problems(model("4p-tp2-4d-tp2", engine={"env": {"VLLM_KV_CACHE_LAYOUT": "NHD"}})) == []
    assert problems(model(MIXED, engine={"env": {"VLLM_KV_CACHE_LAYOUT": "HND"}})) == []


NO_SECRET = (
    "nothing: the only secret that servers get is Hugging Face's token, by `pulumi config set --secret llmd-oke:"
)


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("HF_TOKEN", "`pulumi config set --secret llmd-oke:huggingFaceToken`"),
        ("HUGGING_FACE_HUB_TOKEN", "`pulumi config set --secret llmd-oke:huggingFaceToken`"),
        ("AWS_SECRET_ACCESS_KEY", NO_SECRET),
        ("proxy_password", NO_SECRET),
    ],
)
def test_a_secret_in_environment_variables_is_refused_without_showing_it(name: str, accepted: str):
    problem = only(model(engine={"env": {name: "planted", "VLLM_MAX_TOKENS": "1"}}))
    assert (problem.path, problem.accepted.startswith(accepted)) == (f"models[0].engine.env.{name}", True)
    assert "planted" not in repr(problem)


@pytest.mark.parametrize(
    ("name", "value", "override"),
    [
        ("VLLM_ATTENTION_BACKEND", "ROCM_ATTN", {}),
        ("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "INT4", {"quickReduce": "INT4"}),
    ],
)
def test_variables_of_overrides_are_refused_and_the_overrides_accepted(name: str, value: str, override: dict[str, str]):
    assert paths(model(engine={"env": {name: value}}), release="llm-d-0.9.0") == [f"models[0].engine.env.{name}"]
    assert problems(model(), override=override) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"engine": {"extraArgs": ["--attention-backend=ROCM_ATTN"]}}, "models[0].engine.extraArgs[0]"),
        ({}, "override.attentionBackend"),
    ],
)
def test_a_model_with_attention_sinks_refuses_backends_without_them(changes: dict[str, Any], path: str):
    override = {} if changes else {"override": {"attentionBackend": "ROCM_ATTN"}}
    assert paths(model("agg-tp1-1r", **changes), release="llm-d-0.6.0", **override) == [path]


def test_unknown_releases_shapes_and_models_are_answered_with_similar_names():
    result = problems(
        model(model="openai/gpt-oss-120b"),
        model(model="gpt-oss-120", name="b"),
        model(model="mistralai/Mixtral-8x7B-v0.1", name="c"),
        release="llm-d-9",
        gpuPools=[existing_pool(shape="BM.GPU.MI300X.4")],
    )
    assert {problem.path: problem.accepted.split("?", 1)[0] for problem in result} == {
        "release": "llm-d-0.9.0",
        "gpuPools[0].shape": "BM.GPU.MI300X.8",
        "models[0].model": "gpt-oss-120b",
        "models[1].model": "gpt-oss-120b",
        "models[2].model": "mixtral-8x7b",
    }


def test_model_names_that_give_kubernetes_objects_equal_names_are_refused():
    result = problems(
        model("agg-tp1-1r"),
        model("agg-tp1-1r"),
        model("agg-tp1-1r", name="gpt-oss-120b"),
        model("agg-tp1-1r", name="x", copies=2),
        model("agg-tp1-1r", name="x-1"),
        gpuPools=[existing_pool(), existing_pool()],
    )
    assert [problem.path for problem in result] == [
        "gpuPools[1].name",
        "models[1].model",
        "models[2].name",
        "models[4].name",
    ]


def test_too_few_nodes_are_refused_with_the_number_needed():
    problem = only(model(copies=4), nodes=7)
    assert (problem.path, problem.value) == ("gpuPools[0].size", 7)
    assert problem.accepted.startswith("at least 8,")
    assert "64 GPUs" in problem.why
    assert problems(model(copies=4), nodes=8) == []


def test_only_disaggregated_servers_need_a_free_virtual_function_for_each_gpu(shape_with: Callable[[int], None]):
    shape_with(4)
    assert problems(model("agg-tp1-16r"), nodes=2) == []
    assert problems(model("agg-tp8-2r"), nodes=2) == []
    problem = only(model("8p-tp1-4d-tp2"), nodes=2)
    assert problem.accepted.startswith("at least 4,")
    assert problems(model("8p-tp1-4d-tp2"), nodes=4) == []
    assert problems(model("1p-tp1-1d-tp8"), nodes=1, rdma="none")[:1] != []
    assert only(model("1p-tp1-1d-tp8")).accepted == "for decode: one of 1, 2, 4"


@pytest.mark.parametrize("shape", ["BM.GPU.MI300X.8", "BM.GPU.MI355X.8"])
def test_without_rdma_prefill_and_decode_servers_of_a_model_copy_must_fit_one_node(shape: str):
    without = {"gpuPools": [existing_pool(shape=shape)], "rdma": "none"}
    assert problems(model("1p-tp1-1d-tp2"), **without) == []
    assert paths(model("8p-tp1-4d-tp2"), **without) == ["rdma"]
    assert problems(model("agg-tp1-16r"), **without) == []


def test_problems_of_models_pools_and_releases_are_reported_at_once():
    result = problems(
        model({"prefill": servers(1, 3)}),
        model("1p-tp4-1d-tp2", name="b", router={"mode": "none"}),
        model("agg-tp1-8r", name="c", copies=2),
        nodes=1,
        release="llm-d-9",
    )
    assert [problem.path for problem in result] == [
        "release",
        "models[0].topology",
        "models[0].topology.prefill.tensorParallelSize",
        "models[1].topology",
        "models[1].router.mode",
        "gpuPools[0].size",
    ]


MODELS = [known_model(name) for name in catalogue.model_names()]
ANY_MODEL = st.sampled_from(MODELS)
SIZES = st.sampled_from([1, 2, 4, 8])
SHARES = st.floats(0.05, 1.0)


@pytest.mark.parametrize(
    ("name", "size", "sequences"),
    [
        ("llama-3.3-70b-instruct-fp8-dynamic", 1, 81),
        ("llama-3.3-70b-instruct-fp8-dynamic", 2, 214),
        ("llama-3.3-70b-instruct-fp8-dynamic", 4, 479),
        ("llama-3.3-70b-instruct-fp8-dynamic", 8, 1009),
        ("gpt-oss-120b", 1, 386),
        ("gpt-oss-120b", 2, 975),
    ],
)
def test_the_computed_capacity_at_4096_in_and_256_out_equals_a_manual_calculation(name: str, size: int, sequences: int):
    held = memory(known_model(name), SHAPE, Parallelism(size), 0.95)
    assert held.sequences(4352) == pytest.approx(sequences, abs=1)


@given(ANY_MODEL, SIZES, SHARES)
def test_planned_weights_activations_and_kv_cache_add_up_to_usable_gpu_memory(
    model: catalogue.CatalogueModel, size: int, share: float
):
    fit = memory(model, SHAPE, Parallelism(size), share)
    assert fit.weights_gib + fit.activation_gib + fit.key_value_gib == pytest.approx(share * fit.gpu_gib)
    assert fit.key_value_tokens >= 0


def tokens(model: catalogue.CatalogueModel, size: int, share: float) -> int:
    return memory(model, SHAPE, Parallelism(size), share).key_value_tokens


@given(ANY_MODEL, SIZES, SIZES, SHARES, SHARES, st.floats(0, 200))
def test_less_memory_or_heavier_weights_never_leave_room_for_more_tokens_of_kv_cache(
    model: catalogue.CatalogueModel, size: int, more_gpus: int, share: float, other_share: float, further_gib: float
):
    weights = model.weights.model_copy(update={"gib": model.weights.gib + further_gib})
    held = tokens(model, size, share)
    assert tokens(model, min(size, more_gpus), share) <= held
    assert tokens(model, size, min(share, other_share)) <= held
    assert tokens(model.model_copy(update={"weights": weights}), size, share) <= held


@pytest.mark.parametrize(
    ("sizes", "copies"), [({"key_value_heads": 2}, [1, 1, 2, 4]), ({"latent_attention": ATTENTION}, [1, 2, 4, 8])]
)
def test_kv_heads_are_replicated_only_if_a_server_has_more_gpus_than_kv_heads(
    model_with: Callable[..., Any], sizes: dict[str, Any], copies: list[int]
):
    few = model_with("gpt-oss-120b", architecture=sizes)
    assert [key_value_copies(few, size) for size in (1, 2, 4, 8)] == copies


PREFILL = {"minReplicas": 4, "maxReplicas": 10, "promptTokensPerS": 20000}
DECODE = {"minReplicas": 2, "maxReplicas": 6, "requests": 40}
BOTH = {"prefill": PREFILL, "decode": DECODE}


def scaled(scaling=None, topology="8p-tp1-4d-tp2", **changes):
    return model(topology, scaling=BOTH if scaling is None else scaling, **changes)


def advised(scaling, **changes):
    return [item.text for item in plan(scaled(scaling, **changes)).advice if "scaling" in item.path]


def test_the_topology_must_lie_within_the_scaling_limits():
    roles = plan(scaled()).models[0].units[0].roles
    assert [(role.replicas, role.most_replicas) for role in roles] == [(8, 10), (4, 6)]
    wrong = {"prefill": {**PREFILL, "minReplicas": 9}, "decode": {**DECODE, "maxReplicas": 3}}
    result = [(p.path, p.value, p.accepted) for p in problems(scaled(wrong))]
    assert result == [
        ("models[0].scaling.prefill.minReplicas", 9, "at most 8"),
        ("models[0].scaling.decode.maxReplicas", 3, "at least 4"),
    ]


@pytest.mark.parametrize(
    ("scaling", "topology", "path"),
    [
        ({"decode": DECODE}, "agg-tp1-16r", "scaling.decode"),
        ({"aggregated": DECODE}, "8p-tp1-4d-tp2", "scaling.aggregated"),
        ({"decode": {"minReplicas": 1, "maxReplicas": 4}}, "8p-tp1-4d-tp2", "scaling.decode"),
        ({}, "8p-tp1-4d-tp2", "scaling"),
    ],
    ids=["no decode servers", "no aggregated servers", "no threshold", "no role"],
)
def test_scaling_without_a_threshold_of_a_role_that_the_topology_has_is_refused(scaling, topology, path):
    assert paths(scaled(scaling, topology)) == [f"models[0].{path}"]


@pytest.mark.parametrize(("nodes", "most"), [(3, 12), (4, 20)])
def test_pools_must_have_room_for_the_maximum_number_of_servers(nodes: int, most: int):
    just = {"prefill": {**PREFILL, "maxReplicas": most}, "decode": {**DECODE, "maxReplicas": 6}}
    assert problems(scaled(just), nodes=nodes) == []
    more = {**just, "prefill": {**PREFILL, "maxReplicas": most + 1}}
    result = {p.path: p for p in problems(scaled(more), nodes=nodes)}
    problem = result["models[0].scaling.prefill.maxReplicas"]
    assert (problem.value, problem.accepted) == (most + 1, f"at most {most}, or more nodes in gpuPools")
    assert f"{nodes * 8 + 1} GPUs" in problem.why


def test_without_room_only_the_scaled_roles_that_may_grow_are_refused():
    scaling = {"prefill": {**PREFILL, "maxReplicas": 8}, "decode": {**DECODE, "maxReplicas": 40}}
    assert paths(scaled(scaling)) == ["models[0].scaling.decode.maxReplicas"]
    assert paths(scaled(), nodes=1) == ["gpuPools[0].size"]


def test_the_maximum_number_of_servers_must_fit_beside_other_models_and_copies():
    fits = scaled(copies=2)
    assert problems(fits, nodes=6) == []
    assert paths(fits, model("agg-tp8-2r", name="other"), nodes=7) == [
        f"models[0].scaling.{role}.maxReplicas" for role in ("prefill", "decode")
    ]


def test_rollouts_get_only_gpus_that_the_maximum_number_of_servers_leaves():
    wide = scaled({"prefill": {**PREFILL, "maxReplicas": 20}, "decode": DECODE})
    assert [role.rollout.max_surge for role in plan(wide, nodes=4).models[0].units[0].roles] == [0, 0]


def test_scaling_one_role_of_two_or_in_another_proportion_is_advised_against():
    assert advised(BOTH) == []
    (text,) = advised({"prefill": {**PREFILL, "minReplicas": 8}})
    assert text == "only prefill servers are scaled: where decode servers are too few, more don't help"
    decode = {**DECODE, "maxReplicas": 4}
    (text,) = advised({"prefill": {**PREFILL, "maxReplicas": 20}, "decode": decode})
    assert text.startswith("maxReplicas has 20 prefill for 4 decode servers where 8p-tp1-4d-tp2 has 8 for 4")
    assert advised({"prefill": {**PREFILL, "maxReplicas": 16}, "decode": decode}) == []


RARE = {"prefill": {**PREFILL, "promptTokensPerS": 1_000_000}}
BY_CACHE = {"minReplicas": 2, "maxReplicas": 6, "kvCacheUsage": 0.8}


@pytest.mark.parametrize(
    ("scaling", "topology", "words"),
    [
        ({"decode": {**DECODE, "requests": 300}}, "8p-tp1-4d-tp2", "one server runs 256 at a time"),
        (RARE, "8p-tp1-4d-tp2", "once prompts wait: one server computes at most 143,626 tokens"),
        (RARE, "8p-tp2-4d-tp2", "once prompts wait: one server computes at most 287,253 tokens"),
        ({"decode": BY_CACHE}, "8p-tp1-4d-tp2", "no server is ever added at this workload: 256 requests at a time"),
    ],
    ids=["running requests", "one GPU's peak rate", "the peak rate of two", "KV cache that is never full"],
)
def test_check_warns_of_scaling_thresholds_that_are_reached_late_or_never(
    scaling: dict[str, Any], topology: str, words: str
):
    (text,) = advised({**BOTH, **scaling}, topology=topology)
    assert words in text
    assert advised({**BOTH, "decode": {**DECODE, "kvCacheUsage": 0.8}}) == []


def test_linear_attention_states_count_as_kv_cache_that_requests_fill():
    scaling = {"decode": {"minReplicas": 2, "maxReplicas": 6, "kvCacheUsage": 0.8}}
    planned = plan(scaled(scaling, model="qwen3.5-27b"))
    (text,) = [item.text for item in planned.advice if item.path.endswith("kvCacheUsage")]
    decode = planned.models[0].units[0].role("decode")
    share = 256 * (4096 + 256 + decode.memory.state_tokens) / decode.memory.key_value_tokens
    assert text.endswith(f"fill at most {share:.1%} of a server's KV cache")


def test_an_argument_that_the_kit_does_not_know_is_told_with_a_similar_one():
    arguments = ["--enable-exprt-parallel", "--seed", "-1", "-O3", "--mamba-cache-mode=all"]
    advice = plan(model("agg-tp1-1r", engine={"extraArgs": arguments})).advice
    (told,) = [item for item in advice if "knows of no" in item.text]
    assert told.path == "models[0].engine.extraArgs[0]"
    assert told.text.endswith("; --enable-expert-parallel is one")
