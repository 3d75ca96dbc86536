"""Pods of model servers, as data: no Pulumi, no chart."""

import dataclasses

import pytest
from llmd_oke import catalogue
from llmd_oke.errors import KitError
from llmd_oke.serving import labels, model_pod, model_server, priorities, vllm
from llmd_oke.serving.args import UnitArgs

ARGS: UnitArgs = {
    "release": "llm-d-0.9.0",
    "model": "gpt-oss-120b",
    "shape": "BM.GPU.MI300X.8",
    "namespace": "llm-d",
    "service_account": "model-server",
}


def spec(role="decode", size=2, **changes):
    return dataclasses.replace(model_server.server_spec(ARGS, role, size), **changes)


def values(environment):
    return {entry["name"]: entry.get("value") for entry in environment}


def test_only_decode_servers_stand_behind_a_sidecar():
    ports = {role: spec(role).vllm_port for role in ("prefill", "decode", "aggregated")}
    assert ports == {"prefill": 8000, "decode": 8200, "aggregated": 8000}


def test_arguments_come_in_the_order_kit_release_model_user():
    arguments = vllm.arguments(spec(engine={"extra_args": ["--max-num-seqs=9"]}))
    assert arguments[0] == "openai/gpt-oss-120b"
    assert arguments[-1] == "--max-num-seqs=9"
    assert arguments.index("--max-num-seqs=256") < arguments.index("--disable-uvicorn-access-log")


DECODE_BENCH = '--kv-transfer-config={"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}'


@pytest.mark.parametrize(
    ("role", "extra_args", "backend"),
    [
        ("prefill", [], "TRITON_ATTN"),
        ("decode", [], "TRITON_ATTN"),
        ("aggregated", [], "ROCM_AITER_UNIFIED_ATTN"),
        ("aggregated", [DECODE_BENCH], "TRITON_ATTN"),
    ],
)
def test_servers_with_a_kv_connector_have_the_attention_backend_that_vllm_starts_with_one(role, extra_args, backend):
    arguments = vllm.arguments(spec(role, engine={"extra_args": extra_args}))
    assert f"--attention-backend={backend}" in arguments


def test_engine_settings_reach_vllm():
    engine = {"max_model_len": 8192, "max_num_seqs": 64, "gpu_memory_utilization": 0.9, "block_size": 128}
    arguments = vllm.arguments(spec(engine=engine))
    assert {
        "--max-model-len=8192",
        "--max-num-seqs=64",
        "--gpu-memory-utilization=0.9",
        "--block-size=128",
    } <= set(arguments)


def test_the_models_environment_wins_over_the_releases():
    model = spec().model.model_copy(update={"environment": {"VLLM_ROCM_USE_AITER": "0"}})
    assert values(vllm.environment(spec(model=model)))["VLLM_ROCM_USE_AITER"] == "0"


@pytest.mark.parametrize(("size", "quick"), [(1, False), (2, True), (8, True)])
def test_quick_reduce_only_where_gpus_reduce(size, quick):
    assert ("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION" in values(vllm.environment(spec(size=size)))) is quick


def test_a_token_given_as_environment_replaces_the_secret():
    environment = vllm.environment(spec(engine={"env": {"HF_TOKEN": "mine"}}))
    assert [entry for entry in environment if entry["name"] == "HF_TOKEN"] == [{"name": "HF_TOKEN", "value": "mine"}]


def test_start_up_budget_is_never_cut_short():
    model = spec().model.model_copy(update={"startup_budget_s": 1802})
    probe = vllm.container(spec(model=model))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1802


def test_resources_grow_with_the_size():
    one, four = (vllm.resources(spec(size=size)) for size in (1, 4))
    assert one["requests"]["amd.com/gpu"] == "1"
    assert four["limits"] == {"amd.com/gpu": "4", "nvidia.com/sriov-rdma-vf": "4", "memory": "512Gi"}


def test_version_is_the_same_for_both_roles_and_all_sizes():
    assert model_pod.version(spec("prefill", 1)) == model_pod.version(spec("decode", 4))


@pytest.mark.parametrize("engine", [{"block_size": 64}, {"extra_args": ["--kv-cache-dtype=fp8"]}, {"env": {"A": "1"}}])
def test_version_changes_with_what_prefill_and_decode_must_agree_on(engine):
    assert model_pod.version(spec()) != model_pod.version(spec(engine=engine))


def test_version_differs_between_releases():
    other = catalogue.release("llm-d-0.6.0")
    assert model_pod.version(spec()) != model_pod.version(spec(release=other))


def test_a_pod_without_a_prefix_has_no_priority_class():
    assert "priorityClassName" not in model_pod.pod_spec(spec(), ARGS)
    named = model_pod.pod_spec(spec(), {**ARGS, "priority_class_prefix": "llm-d"})
    assert named["priorityClassName"] == priorities.class_name("llm-d", 2)


def test_priority_grows_with_the_size():
    assert priorities.priority(1) < priorities.priority(2) < priorities.priority(8)


def test_selectors_have_no_label_that_an_update_changes():
    for role in ("prefill", "decode", "aggregated"):
        chosen = labels.role_selector("u", role)
        assert not {labels.VERSION, labels.TENSOR_PARALLEL_SIZE, labels.MODEL} & set(chosen)


def test_units_are_labelled_with_their_own_name_unless_told_otherwise():
    template = model_pod.pod_template("u", ARGS, spec())
    assert template["metadata"]["labels"][labels.MODEL] == "u"
    told = model_pod.pod_template("u", {**ARGS, "model_label": "m"}, spec())
    assert told["metadata"]["labels"][labels.MODEL] == "m"


@pytest.mark.parametrize("key", ["release", "model", "shape"])
def test_names_that_the_catalogue_does_not_have_are_refused_with_those_that_it_has(key):
    with pytest.raises(KitError, match=f"no {key} 'nothing'") as error:
        model_server.server_spec({**ARGS, key: "nothing"}, "decode", 1)
    assert error.value.remedy


def test_updates_may_take_a_start_up_for_each_wave_unless_told_otherwise():
    one = model_server.deployment("n", "u", ARGS, {"replicas": 1, "tensor_parallel_size": 2}, spec())
    assert one["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
