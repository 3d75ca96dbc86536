"""Pods of model servers, as data: no Pulumi, no chart."""

import dataclasses
import json
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue
from llmd_oke.catalogue.models import QuickReduce
from llmd_oke.planning import placement
from llmd_oke.serving import labels, namespace, units, vllm
from llmd_oke.serving.args import ModelCacheMountArgs, ServersArgs, UnitArgs
from llmd_oke.testing import declared

ARGS: UnitArgs = {
    "release": "llm-d-0.9.0",
    "model": "gpt-oss-120b",
    "shape": "BM.GPU.MI300X.8",
    "namespace": "llm-d",
    "service_account": "model-server",
}

SERVERS: ServersArgs = {"replicas": 1, "tensor_parallel_size": 2}


def spec(role="decode", size=2, **changes):
    return dataclasses.replace(units.server_spec(ARGS, role, Parallelism(size)), **changes)


def values(environment):
    return {entry["name"]: entry.get("value") for entry in environment}


def test_only_decode_servers_are_behind_a_routing_sidecar():
    ports = {role: spec(role).settings.vllm_port for role in ("prefill", "decode", "aggregated")}
    assert ports == {"prefill": 8000, "decode": 8200, "aggregated": 8000}


def test_vllm_arguments_of_the_kit_precede_the_releases_the_models_and_the_users():
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
def test_servers_with_a_kv_connector_use_an_attention_backend_that_accepts_it(role, extra_args, backend):
    arguments = vllm.arguments(spec(role, engine={"extra_args": extra_args}))
    assert f"--attention-backend={backend}" in arguments


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_connector_argument_is_refused_for_prefill_and_decode_servers(role):
    with pytest.raises(KitError, match="which --kv-transfer-config would replace"):
        vllm.arguments(spec(role, engine={"extra_args": [DECODE_BENCH]}))


def test_vllm_settings_of_the_stack_file_are_passed_as_flags_or_refused_if_unknown():
    engine = {"max_model_len": 8192, "max_num_seqs": 64, "gpu_memory_utilization": 0.9, "block_size": 128}
    flags = {"--max-model-len=8192", "--max-num-seqs=64", "--gpu-memory-utilization=0.9", "--block-size=128"}
    assert flags <= set(vllm.arguments(spec(engine=engine)))
    assert "--block-size=64" in vllm.arguments(spec(engine={"settings": {"block_size": "64"}}))
    with pytest.raises(KitError, match="'speed' is not known"):
        vllm.arguments(spec(engine={"settings": {"speed": "64"}}))


def test_the_models_environment_variables_override_the_releases():
    model = spec().model.model_copy(update={"environment": {"VLLM_ROCM_USE_AITER": "0"}})
    assert values(vllm.environment(spec(model=model)))["VLLM_ROCM_USE_AITER"] == "0"


QUICK_REDUCE = QuickReduce.model_validate(
    {"quantization": "INT4", "evaluation": {"name": "gpqa", "release": "llm-d-0.7.0", "score": 0.66}}
)


@pytest.mark.parametrize(("size", "quick"), [(1, None), (2, "INT4"), (8, "INT4")])
def test_quick_reduce_is_set_only_for_models_that_have_it_on_several_gpus(size, quick):
    model = spec().model.model_copy(update={"quick_reduce": QUICK_REDUCE})
    assert values(vllm.environment(spec(size=size, model=model))).get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION") == quick
    assert not [name for name in values(vllm.environment(spec(size=size))) if "QUICK_REDUCE" in name]


@pytest.mark.parametrize("role", ["prefill", "decode", "aggregated"])
def test_servers_compile_on_their_requested_cpus_and_ignore_a_service_named_vllm(role):
    assert units.pod_spec(spec(role), ARGS)["enableServiceLinks"] is False
    environment = values(vllm.environment(spec(role, 2)))
    assert "AITER_JIT_DIR" not in environment
    assert environment["MAX_JOBS"] == vllm.resources(spec(role, 2))["requests"]["cpu"] == "32"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_servers_keep_idle_connections_longer_than_the_sidecar(role):
    sidecar_idle_s = 90  # net/http's DefaultTransport, which the sidecar uses
    assert int(values(vllm.environment(spec(role)))["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] or 0) > sidecar_idle_s


def blocks(role, extra_args=()):
    arguments = vllm.arguments(spec(role, engine={"extra_args": list(extra_args)}))
    return [argument for argument in arguments if argument.startswith("--block-size")]


def test_block_sizes_of_servers_with_a_kv_connector_are_larger():
    assert blocks("prefill") == blocks("decode") == blocks("aggregated", [DECODE_BENCH]) == ["--block-size=128"]
    assert blocks("aggregated") == ["--block-size=64"]


def test_host_memory_for_kv_cache_is_part_of_the_pods_memory_request():
    def asked(*extra_args):
        return vllm.resources(spec("aggregated", 1, engine={"extra_args": list(extra_args)}))

    plain, offload = asked(), asked("--kv-offloading-size", "20.5")
    assert plain["limits"]["memory"] == plain["requests"]["memory"] == "128Gi"
    assert offload["limits"]["memory"] == offload["requests"]["memory"] == "169Gi"  # twice the size, at the most


def with_kv_cache(role: str, release: str = "llm-d-0.10.0", **kv_cache: object) -> vllm.ServerSpec:
    args = {**ARGS, "release": release, "model": "qwen3-32b", "engine": {"kv_cache": kv_cache}}
    return units.server_spec(args, role, Parallelism(2))


def transfer(of: vllm.ServerSpec) -> dict[str, object]:
    (config,) = (word for word in vllm.arguments(of) if word.startswith("--kv-transfer-config="))
    return json.loads(config.partition("=")[2])


NIXL_PART = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
HOST_PART = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 20 * 2**30},
}


def test_prefill_servers_combine_a_transfer_and_a_host_memory_connector():
    assert transfer(with_kv_cache("prefill", host_memory_gib=20)) == {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_producer",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"connectors": [NIXL_PART, HOST_PART]},
    }
    assert transfer(with_kv_cache("decode", host_memory_gib=20)) == transfer(with_kv_cache("decode"))
    assert transfer(with_kv_cache("aggregated", host_memory_gib=20)) == HOST_PART


def test_host_memory_for_kv_cache_is_part_of_the_shared_memory_volume():
    def rooms(of: vllm.ServerSpec) -> tuple[str, int]:
        return vllm.resources(of)["limits"]["memory"], vllm.shared_memory_gib(of)

    assert rooms(with_kv_cache("prefill", host_memory_gib=20)) == ("276Gi", 40)
    assert rooms(with_kv_cache("decode", host_memory_gib=20)) == ("256Gi", 20)
    assert rooms(with_kv_cache("prefill", "llm-d-0.9.0", host_memory_gib=20)) == ("296Gi", 20)


def test_mori_io_ports_mode_address_and_ranks_are_set_at_server_and_routing_sidecar():
    decode = with_kv_cache("decode", connector="mori-io")
    assert transfer(decode)["kv_connector_extra_config"] == {
        "http_port": "8200",
        "handshake_port": "6301",
        "notify_port": "61005",
        "read_mode": "false",
    }
    ports = {port["name"]: port["containerPort"] for port in vllm.container(decode)["ports"]}
    assert ports == {"vllm": 8200, "mori-handshake": 6301, "mori-notify": 61005}
    assert not [name for name in values(vllm.environment(decode)) if "NIXL" in name]
    sidecar = units.routing_sidecar(decode, {**ARGS, "inference_pool": "p"})
    assert {"--kv-connector=nixlv2", "--moriio-write-mode", "--moriio-tp-size=2"} <= set(sidecar["args"])
    # It ends without the address that MORI-IO writes to (llm-d-router, pkg/sidecar/proxy/options.go).
    assert "--moriio-local-pod-ip=$(POD_IP)" in sidecar["args"]
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in sidecar["env"]
    assert "env" not in units.routing_sidecar(with_kv_cache("decode"), {**ARGS, "inference_pool": "p"})
    ranks = dataclasses.replace(decode, parallelism=Parallelism(1, 8))
    words = units.routing_sidecar(ranks, ARGS)["args"]
    assert "--moriio-dp-size=8" in words
    assert not [word for word in words if "-hosts=" in word]  # names of peers: only if servers span nodes


def test_pods_request_disk_space_for_what_servers_write():
    own, cached = (vllm.resources(spec(cache=cache))["requests"] for cache in ({}, {"path": "/models"}))
    assert (own["ephemeral-storage"], cached["ephemeral-storage"]) == ("74Gi", "10Gi")  # 60.8 GiB of weights, 5 % spare


def test_only_servers_that_download_weights_get_the_hugging_face_token_or_the_users():
    cache = {"path": "/models", "prewarm": {"source": "hugging-face"}}
    assert "HF_TOKEN" not in values(vllm.environment(spec(cache=cache)))
    assert "HF_TOKEN" in values(vllm.environment(spec(cache={"path": "/models"})))
    own = vllm.environment(spec(engine={"env": {"HF_TOKEN": "mine"}}))
    assert [entry for entry in own if entry["name"] == "HF_TOKEN"] == [{"name": "HF_TOKEN", "value": "mine"}]


def test_a_sidecar_that_does_not_listen_keeps_the_pod_unready():
    sidecar = units.routing_sidecar(spec(), ARGS)
    for probe in ("startupProbe", "readinessProbe"):
        assert sidecar[probe]["tcpSocket"] == {"port": "proxy"}


def test_the_start_up_probe_waits_for_at_least_the_models_start_up_budget():
    model = spec().model.model_copy(update={"startup_budget_s": 1802})
    probe = vllm.container(spec(model=model))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1802


def test_gpus_virtual_functions_and_memory_of_a_server_pod_grow_with_its_size():
    one, four = (vllm.resources(spec(size=size)) for size in (1, 4))
    assert one["requests"]["amd.com/gpu"] == "1"
    assert four["limits"] == {"amd.com/gpu": "4", "nvidia.com/sriov-rdma-vf": "4", "memory": "512Gi"}


def test_servers_that_can_exchange_kv_cache_and_no_others_have_one_version_label():
    assert units.version(spec("prefill", 1)) == units.version(spec("decode", 4)) == units.version(ranks())
    assert units.version(with_kv_cache("prefill", host_memory_gib=20)) == units.version(with_kv_cache("decode"))
    assert units.version(with_kv_cache("decode", connector="mori-io")) != units.version(with_kv_cache("decode"))


def test_a_pod_without_a_priority_prefix_has_no_priority_class():
    assert "priorityClassName" not in units.pod_spec(spec(), ARGS)
    named = units.pod_spec(spec(), {**ARGS, "priority_class_prefix": "llm-d"})
    assert named["priorityClassName"] == namespace.class_name("llm-d", 2)


def test_scheduling_priority_grows_with_the_number_of_gpus_and_preempts_no_other_pod():
    made = namespace.priority_class("llm-d", 8, {})
    assert (made["value"], made["preemptionPolicy"]) == (8000, "Never")
    assert namespace.priority(1) < namespace.priority(2) < namespace.priority(8)


def protecting():
    release = spec().release
    sidecar = release.routing_sidecar.model_copy(update={"ssrf_protection": True})
    return release.model_copy(update={"routing_sidecar": sidecar})


POOLED: UnitArgs = {**ARGS, "inference_pool": "u"}


def test_routing_sidecars_accept_only_prefill_servers_of_their_pool_if_they_can():
    pod = units.pod_spec(spec(release=protecting()), POOLED)
    (sidecar,) = pod["initContainers"]
    assert {"--enable-ssrf-protection", "--inference-pool=llm-d/u"} <= set(sidecar["args"])
    assert pod["automountServiceAccountToken"] is False
    mounted = [c["name"] for c in (sidecar, *pod["containers"]) for m in c["volumeMounts"] if m["name"] == "api-access"]
    assert mounted == ["routing-proxy"]
    assert "ssrf" not in str(units.pod_spec(spec(release=catalogue.release("llm-d-0.6.0")), POOLED))


@pytest.mark.parametrize(("role", "args"), [("decode", ARGS), ("prefill", POOLED)])
def test_pods_whose_sidecar_does_not_read_the_api_server_get_no_token_for_it(role, args):
    pod = units.pod_spec(spec(role, release=protecting()), args)
    assert "api-access" not in str(pod)


def test_the_routing_sidecar_may_only_read_its_inference_pool_and_pods():
    role, binding = units.pool_reader("u", "u", POOLED)
    assert [(rule["resources"], rule.get("resourceNames")) for rule in role["rules"]] == [
        (["inferencepools"], ["u"]),
        (["pods"], None),
    ]
    assert all(set(rule["verbs"]) == {"get", "list", "watch"} for rule in role["rules"])
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "model-server", "namespace": "llm-d"}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_selectors_of_servers_contain_no_label_that_an_update_changes():
    for role in ("prefill", "decode", "aggregated"):
        chosen = labels.role_selector("u", role)
        assert not {labels.VERSION, labels.TENSOR_PARALLEL_SIZE, labels.MODEL} & set(chosen)


def test_the_model_label_of_pods_is_the_given_one_or_else_the_model_copys_name():
    template = units.pod_template("u", ARGS, spec())
    assert template["metadata"]["labels"][labels.MODEL] == "u"
    told = units.pod_template("u", {**ARGS, "model_label": "m"}, spec())
    assert told["metadata"]["labels"][labels.MODEL] == "m"


@pytest.mark.parametrize("key", ["release", "model", "shape"])
def test_an_unknown_release_model_or_shape_of_a_server_is_refused_with_a_remedy(key):
    with pytest.raises(KitError, match=f"no {key} 'nothing'") as error:
        units.server_spec({**ARGS, key: "nothing"}, "decode", Parallelism(1))
    assert error.value.remedy


def test_a_deployment_without_rollout_settings_replaces_one_pod_at_a_time():
    one = units.workload("n", "u", ARGS, {"replicas": 1, "tensor_parallel_size": 2}, spec())
    assert one["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def ranks(role="decode", size=1):
    return dataclasses.replace(spec(role), parallelism=Parallelism(size, 8 // size, expert_parallel=True))


def test_a_server_with_data_parallel_ranks_has_the_gpus_of_all_ranks():
    arguments = vllm.arguments(ranks(size=2))
    assert {"--tensor-parallel-size=2", "--data-parallel-size=4", "--enable-expert-parallel"} <= {*arguments}
    assert vllm.resources(ranks())["limits"]["amd.com/gpu"] == "8"
    assert not {"--enable-expert-parallel", "--data-parallel-size=1"} & {*vllm.arguments(spec())}


def test_each_data_parallel_rank_that_transfers_kv_cache_has_a_port():
    ports = [entry["containerPort"] for entry in vllm.container(ranks())["ports"]]
    assert ports == [8200, *range(5600, 5608)]


def test_api_servers_wait_for_data_parallel_ranks_as_long_as_the_start_up_budget():
    """vLLM's own limit of 600 s counts weights too where API servers are several (0.26 and 0.30, core_client.py)."""
    budget = str(ranks().model.startup_budget_s)
    assert values(vllm.environment(ranks()))["VLLM_ENGINE_READY_TIMEOUT_S"] == budget
    assert "VLLM_ENGINE_READY_TIMEOUT_S" not in values(vllm.environment(spec()))
    assert "NCCL_SOCKET_IFNAME" not in values(vllm.environment(ranks()))


def test_servers_with_data_parallel_ranks_have_a_label_with_their_number():
    found = units.workload("n", "u", ARGS, {"replicas": 1, "tensor_parallel_size": 1}, ranks())["metadata"]["labels"]
    assert found[labels.DATA_PARALLEL_SIZE] == "8"
    assert labels.DATA_PARALLEL_SIZE not in units.workload("n", "u", ARGS, SERVERS, spec())["metadata"]["labels"]


def test_the_data_parallel_size_but_not_expert_parallelism_changes_server_revisions():
    def named(spread):
        return vllm.revision("u", "r", {"decode": "v"}, {"decode": spread})

    assert len({named(Parallelism(1)), named(Parallelism(1, 2)), named(Parallelism(1, 2, expert_parallel=True))}) == 2


UNPINNED = catalogue.model("qwen3-30b-a3b")
FILES_PART = {
    **HOST_PART,
    "kv_connector_extra_config": {
        "cpu_bytes_to_use": 20 * 2**30,
        "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": "fs", "n_read_threads": 16, "n_write_threads": 16, "root_dir": "/kv-cache"}],
    },
}
FILES: ModelCacheMountArgs = {"path": "/mnt/nvme/models", "kv_cache_path": "/mnt/nvme/models-kv/llm-d"}
NODE_DISK: UnitArgs = {**ARGS, "model_cache": FILES}


def with_files(role: Any, **changes: Any) -> vllm.ServerSpec:
    engine: dict[str, Any] = {"kv_cache": {"host_memory_gib": 20, "disk_gib": 500}}
    args: UnitArgs = {**NODE_DISK, "release": "llm-d-0.10.0", "engine": {**engine, **changes.pop("engine", {})}}
    return dataclasses.replace(units.server_spec(args, role, Parallelism(2)), **changes)


def test_servers_that_keep_kv_cache_in_files_have_a_tier_of_files_behind_host_memory():
    assert transfer(with_files("aggregated")) == FILES_PART
    assert transfer(with_files("prefill"))["kv_connector_extra_config"] == {"connectors": [NIXL_PART, FILES_PART]}
    assert "secondary_tiers" not in str(transfer(with_files("decode")))


def test_servers_see_their_own_kv_files_and_a_sidecar_limits_those_of_all_servers():
    spec = with_files("prefill", engine={"user": {"id": 1000}})
    pod = units.pod_spec(spec, NODE_DISK)
    key = vllm.kv_cache_key(spec)
    own = {"name": "kv-cache", "mountPath": "/kv-cache", "subPath": f"{spec.model.name}/{key}"}
    assert own in pod["containers"][0]["volumeMounts"]
    volume = next(volume for volume in pod["volumes"] if volume["name"] == "kv-cache")
    path = "/mnt/nvme/models-kv/llm-d"
    assert volume == {"name": "kv-cache", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    folder, limit = (each for each in pod["initContainers"] if each["name"].startswith("kv-cache"))
    assert {f"--key={key}", "--user=1000", f"--model={spec.model.name}"} < set(folder["args"])
    assert {"--most-gib=500", "--root=/kv-cache", f"--model={spec.model.name}"} < set(limit["args"])
    assert pod["containers"][0]["command"][-4:] == ["/opt/llmd-oke/kv_cache_disk/serve.py", "--", "vllm", "serve"]
    assert limit["restartPolicy"] == "Always"
    assert limit["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}
    assert not [each for each in units.pod_spec(with_files("decode"), NODE_DISK)["volumes"] if "kv" in each["name"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"extra_args": ["--max-num-seqs=9"]}},
        {"engine": {"user": {"id": 1000}}},
        {"parallelism": Parallelism(4)},
        {"cache": {**FILES, "prewarm": {"source": "hugging-face", "revision": "b" * 40}}},
    ],
)
def test_other_arguments_users_or_weights_have_other_kv_cache_files(changes: dict[str, Any]):
    assert vllm.kv_cache_key(with_files("prefill", **changes)) != vllm.kv_cache_key(with_files("prefill"))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cache": {"path": "/mnt/nvme/models"}}, "need a model cache with kv_cache_path"),
        ({"engine": {"kv_cache": {"disk_gib": 500}}}, "need host_memory_gib"),
        ({"model": UNPINNED}, "needs a commit of .* weights"),
    ],
)
def test_components_refuse_kv_cache_in_files_that_vllm_can_not_keep_apart(changes: dict[str, Any], why: str):
    with pytest.raises(KitError, match=why):
        units.pod_spec(with_files("prefill", **changes), NODE_DISK)


@pytest.mark.parametrize("given", [{}, {"create_timeout_s": 1234, "update_timeout_s": 5678}])
def test_first_starts_and_updates_of_servers_have_the_limits_of_their_arguments(given: dict[str, int]):
    servers: Any = {**SERVERS, "replicas": 3, **given}
    deployment = units.workload("u-decode", "u", ARGS, servers, spec())
    usual = placement.create_timeout_s(spec().model.startup_budget_s)
    assert deployment["spec"]["progressDeadlineSeconds"] == given.get("create_timeout_s", usual)
    made = declared(lambda: units.AggregatedUnit("u", {**ARGS, "servers": servers}))
    usual_s = placement.update_timeout_s(spec().model.startup_budget_s, 3, placement.Rollout(0, 1))
    limit_s = given.get("update_timeout_s", usual_s)
    assert made.kubernetes_resource("Deployment", "u-aggregated").timeouts["update"] == f"{limit_s}s"


def test_a_role_without_a_share_neither_follows_another_roles_load_nor_is_followed():
    servers: dict[str, units.ScaledServersArgs] = {
        "prefill": {"min_replicas": 1, "max_replicas": 4, "share": 2, "requests": 40},
        "decode": {"min_replicas": 1, "max_replicas": 4, "requests": 20},
    }
    args: units.ModelScalingArgs = {"namespace": "llm-d", "unit": "u", "servers": servers}
    made = declared(lambda: units.ModelScaling("u", args))
    followed = {
        role: [item["name"] for item in made.kubernetes("ScaledObject", f"u-{role}")["spec"]["triggers"]]
        for role in servers
    }
    assert followed == {"prefill": ["requests"], "decode": ["requests"]}


DRAFTED = catalogue.model("gpt-oss-120b")
COMMIT = "c" * 40


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (None, {"model": "nvidia/gpt-oss-120b-Eagle3-v3", "revision": COMMIT}),
        ("hugging-face", {"model": f"/model-cache/hub/models--nvidia--gpt-oss-120b-Eagle3-v3/snapshots/{COMMIT}"}),
        ("object-storage", {"model": "nvidia/gpt-oss-120b-Eagle3-v3"}),
    ],
)
def test_the_catalogues_commit_of_a_draft_applies_to_all_files_but_those_of_a_bucket(source: Any, place: Any):
    assert DRAFTED.draft is not None
    model = DRAFTED.model_copy(update={"draft": DRAFTED.draft.model_copy(update={"revision": COMMIT})})
    cache: ModelCacheMountArgs = {"path": "/models", "prewarm": {"source": source}} if source else {}
    words = vllm.arguments(spec("aggregated", model=model, cache=cache, engine={"speculation": {}}))
    (config,) = (word.partition("=")[2] for word in words if word.startswith("--speculative-config="))
    told = json.loads(config)
    assert {key: told[key] for key in ("model", "revision") if key in told} == place
