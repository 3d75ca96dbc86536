"""Model servers: what their Deployments and pods say."""

import json

import pytest
from llmd_oke import catalogue
from llmd_oke.catalogue.models import LinearAttention
from llmd_oke.serving.units import AggregatedUnit
from llmd_oke.testing import declared
from render_support import env, pod, selects, vllm
from stack_files import existing_cluster, existing_pool

PREFILL, DECODE, AGGREGATED = "gpt-oss-120b-prefill", "gpt-oss-120b-decode", "gpt-oss-120b-aggregated"


def test_every_gpu_of_a_pod_has_a_virtual_function_and_a_network_interface(rehearsal, guide):
    for stack, name, size in ((rehearsal, PREFILL, 1), (rehearsal, DECODE, 2), (guide, DECODE, 4)):
        resources = vllm(stack, name)["resources"]
        assert resources["limits"]["nvidia.com/sriov-rdma-vf"] == str(size)
        assert resources["requests"]["nvidia.com/sriov-rdma-vf"] == str(size)
        networks = json.loads(pod(stack, name)["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
        assert [network["interface"] for network in networks] == [f"net{i + 1}" for i in range(size)]
        assert {(network["namespace"], network["name"]) for network in networks} == {("default", "sriov-rdma-vf")}


def test_servers_get_the_capability_to_lock_memory_and_no_other(rehearsal):
    context = vllm(rehearsal, DECODE)["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK", "SYS_NICE"]}
    assert context["allowPrivilegeEscalation"] is False


def test_servers_request_the_virtual_functions_of_clusters_made_by_oci_hpc_oke(varied):
    cluster = existing_cluster(identifier="theirs", virtualFunctions="oci-hpc-oke")
    theirs = varied({"cluster": cluster})
    template = pod(theirs, "gpt-oss-120b-decode")
    assert vllm(theirs, "gpt-oss-120b-decode")["resources"]["limits"]["nvidia.com/rdma-vf"] == "2"
    networks = json.loads(template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    assert {(network["namespace"], network["name"]) for network in networks} == {("default", "rdma-vf")}
    assert "sriov-rdma-vf" not in json.dumps(template)


def test_rccl_uses_the_rdma_network_if_a_server_has_several_gpus(rehearsal):
    one, several = (env(vllm(rehearsal, f"gpt-oss-120b-{role}")) for role in ("prefill", "decode"))
    assert (several["NCCL_IB_HCA"], several["NCCL_IB_GID_INDEX"]) == ("mlx5", "3")
    assert not [name for name in one if name.startswith("NCCL_")]


@pytest.mark.parametrize(("asked", "parallel"), [(None, True), (False, False)])
def test_experts_are_distributed_over_gpus_as_the_catalogue_or_the_user_says(asked, parallel):
    served = {"namespace": "llm-d", "release": "llm-d-0.9.0", "service_account": "servers", "shape": "BM.GPU.MI300X.8"}
    servers = {"replicas": 1, "tensor_parallel_size": 8, "expert_parallel": asked}
    made = declared(lambda: AggregatedUnit("deepseek", {**served, "model": "deepseek-r1", "servers": servers}))
    assert ("--enable-expert-parallel" in vllm(made, "deepseek-aggregated")["args"]) is parallel


def test_without_rdma_pods_have_neither_virtual_functions_nor_ucx_devices(varied):
    plain = varied(
        stack={"rdma": "none", "gpuPools": [existing_pool(size=1)]},
        topology="4p-tp1-1d-tp4",
    )
    container = vllm(plain, DECODE)
    assert "nvidia.com/sriov-rdma-vf" not in container["resources"]["limits"]
    assert "annotations" not in pod(plain, DECODE)["metadata"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert [name for name in env(container) if name.startswith("UCX_")] == ["UCX_RMA_PPLN_ENABLE"]


def test_resource_requests_of_eight_servers_with_one_gpu_each_fit_a_node(guide):
    requests = vllm(guide, PREFILL)["resources"]["requests"]
    assert int(requests["cpu"]) * 8 < 224
    assert int(requests["memory"].removesuffix("Gi")) * 8 < 2048


def test_the_decode_sidecar_listens_on_port_8000_and_vllm_behind_it_on_8200(rehearsal):
    (sidecar,) = pod(rehearsal, DECODE)["spec"]["initContainers"]
    assert [port["containerPort"] for port in sidecar["ports"]] == [8000]
    assert {"--port=8000", "--model-server-port=8200"} <= set(sidecar["args"])
    container = vllm(rehearsal, DECODE)
    assert "--port=8200" in container["args"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"vllm": 8200, "nixl": 5600}


@pytest.mark.parametrize("name", [PREFILL, AGGREGATED])
def test_servers_without_a_sidecar_listen_on_port_8000(rehearsal, baseline, name):
    stack = rehearsal if name == PREFILL else baseline
    assert "initContainers" not in pod(stack, name)["spec"]
    assert "--port=8000" in vllm(stack, name)["args"]
    assert vllm(stack, name)["ports"][0]["containerPort"] == 8000


def test_the_sidecar_is_a_native_sidecar_container_with_the_releases_flags(rehearsal, guide):
    for stack in (rehearsal, guide):
        (sidecar,) = pod(stack, DECODE)["spec"]["initContainers"]
        assert sidecar["restartPolicy"] == "Always"
        assert sidecar["image"].startswith("ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.10.0")
        assert {"--kv-connector=nixlv2", "--secure-proxy=false", "--prefill-max-retries=2"} <= set(sidecar["args"])
        assert sidecar["securityContext"]["runAsNonRoot"] is True


def test_probes_of_a_server_query_vllm_itself_and_not_the_sidecar(rehearsal):
    container = vllm(rehearsal, DECODE)
    startup, live, ready = (container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness"))
    assert startup["periodSeconds"] * startup["failureThreshold"] == 3600
    assert {probe["httpGet"]["port"] for probe in (startup, live, ready)} == {"vllm"}
    assert (live["httpGet"]["path"], live["periodSeconds"], live["timeoutSeconds"], live["failureThreshold"]) == (
        "/health",
        10,
        5,
        3,
    )
    assert (ready["httpGet"]["path"], ready["periodSeconds"], ready["timeoutSeconds"], ready["failureThreshold"]) == (
        "/health",
        5,
        2,
        3,
    )


def test_every_volume_mount_of_a_server_refers_to_a_volume_of_its_pod(stack):
    for deployment in [m for m in stack.manifests() if m["kind"] == "Deployment"]:
        spec = deployment["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        mounts = {mount["name"] for c in spec["containers"] for mount in c.get("volumeMounts", ())}
        assert mounts <= volumes


KEPT, OFF = "--no-disable-hybrid-kv-cache-manager", "--disable-hybrid-kv-cache-manager"


def test_models_with_sliding_window_layers_transfer_only_the_windows_kv_cache(varied, rehearsal, baseline):
    """vLLM is told where the release makes it certain, for models with such layers, unless the user says otherwise."""
    assert all(KEPT in vllm(rehearsal, name)["args"] for name in (PREFILL, DECODE))
    older = varied(stack={"release": "llm-d-0.7.0"}, topology="2p-tp1-2d-tp1")
    asked = varied(engine={"extraArgs": [OFF]})
    assert KEPT not in vllm(baseline, AGGREGATED)["args"] + vllm(older, DECODE)["args"] + vllm(asked, DECODE)["args"]
    llama = varied(model="llama-3.3-70b-instruct-fp8-dynamic", name="gpt-oss-120b")
    assert KEPT not in vllm(llama, DECODE)["args"]


def test_servers_are_configured_to_transfer_the_states_of_linear_attention(varied, monkeypatch):
    dense = catalogue.model("qwen3-32b")
    linear = LinearAttention(layers=48, state_bytes_per_sequence=2**20)
    architecture = dense.architecture.model_copy(update={"linear_attention": linear})
    monkeypatch.setattr(catalogue, "model", lambda _: dense.model_copy(update={"architecture": architecture}))
    servers = varied(model="qwen3-32b", name="gpt-oss-120b", topology="2p-tp1-2d-tp1")
    assert env(vllm(servers, DECODE))["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"
    assert KEPT in vllm(servers, PREFILL)["args"]
    alone = varied(model="qwen3-32b", name="gpt-oss-120b", topology="agg-tp1-2r")
    assert "VLLM_SSM_CONV_STATE_LAYOUT" not in env(vllm(alone, AGGREGATED))


def test_only_servers_of_separate_roles_transfer_kv_cache(rehearsal, baseline):
    for name in (PREFILL, DECODE):
        container = vllm(rehearsal, name)
        (transfer,) = [arg for arg in container["args"] if arg.startswith("--kv-transfer-config=")]
        assert json.loads(transfer.split("=", 1)[1])["kv_connector"] == "NixlConnector"
        assert env(container)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
        (host,) = [entry for entry in container["env"] if entry["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST"]
        assert host["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    container = vllm(baseline, AGGREGATED)
    assert not [arg for arg in container["args"] if arg.startswith("--kv-transfer-config")]
    assert not [entry for entry in container["env"] if "NIXL" in entry["name"]]


def test_prefill_and_decode_have_equal_settings_of_their_kv_cache(stack):
    shared = ("--block-size", "--max-model-len", "--attention-backend")
    told = [
        sorted(arg for arg in m["spec"]["template"]["spec"]["containers"][0]["args"] if arg.startswith(shared))
        for m in stack.manifests()
        if m["kind"] == "Deployment" and "llm-d.ai/role" in m["metadata"]["labels"]
    ]
    assert all(args == told[0] for args in told)


def test_a_setting_for_all_roles_is_an_argument_of_prefill_and_decode_servers(varied):
    made = varied(engine={"maxNumBatchedTokens": 32768})
    for name in (PREFILL, DECODE):
        assert "--max-num-batched-tokens=32768" in vllm(made, name)["args"]


def test_a_servers_environment_variables_are_unique_and_the_stack_files_values_win(varied):
    mine = varied(engine={"env": {"UCX_TLS": "tcp", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5700"}, "extraArgs": ["--seed=1"]})
    container = vllm(mine, DECODE)
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names))
    assert (env(container)["UCX_TLS"], env(container)["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == ("tcp", "5700")
    assert container["args"][-1] == "--seed=1"


def test_the_hugging_face_token_is_optional_for_servers(rehearsal):
    (token,) = [entry for entry in vllm(rehearsal, PREFILL)["env"] if entry["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "huggingface-token", "key": "token", "optional": True}


def test_servers_select_nodes_of_the_shape_and_tolerate_their_taint(stack):
    for deployment in [m for m in stack.manifests() if "llm-d.ai/role" in m["metadata"].get("labels", {})]:
        spec = deployment["spec"]["template"]["spec"]
        assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8"}
        assert spec["tolerations"] == [
            {"key": "amd.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
        ]


def test_server_pods_mount_no_service_account_token(rehearsal):
    spec = pod(rehearsal, DECODE)["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("model-server", False)
    assert rehearsal.kubernetes("ServiceAccount", "model-server")["automountServiceAccountToken"] is False


def test_each_role_has_a_disruption_budget_for_its_own_pods(rehearsal):
    for name in (PREFILL, DECODE):
        spec = rehearsal.kubernetes("PodDisruptionBudget", name)["spec"]
        assert spec["maxUnavailable"] == 1
        chosen = spec["selector"]["matchLabels"]
        assert selects(chosen, pod(rehearsal, name)["metadata"]["labels"])
        other = PREFILL if name == DECODE else DECODE
        assert not selects(chosen, pod(rehearsal, other)["metadata"]["labels"])


def test_pods_have_the_role_labels_that_the_endpoint_pickers_filters_expect(rehearsal, baseline):
    roles = [pod(rehearsal, name)["metadata"]["labels"]["llm-d.ai/role"] for name in (PREFILL, DECODE)]
    assert [*roles, pod(baseline, AGGREGATED)["metadata"]["labels"]["llm-d.ai/role"]] == [
        "prefill",
        "decode",
        "prefill-decode",
    ]


def test_prefill_and_decode_pods_share_a_version_label_that_settings_change(rehearsal, varied):
    versions = {pod(rehearsal, name)["metadata"]["labels"]["llmd-oke/version"] for name in (PREFILL, DECODE)}
    changed = varied(engine={"blockSize": 64})
    after = {pod(changed, name)["metadata"]["labels"]["llmd-oke/version"] for name in (PREFILL, DECODE)}
    assert len(versions) == len(after) == 1
    assert versions.isdisjoint(after)


def test_selectors_of_deployments_match_their_own_pods_only(stack):
    deployments = [m for m in stack.manifests() if m["kind"] == "Deployment"]
    for deployment in deployments:
        chosen = deployment["spec"]["selector"]["matchLabels"]
        hit = [d for d in deployments if selects(chosen, d["spec"]["template"]["metadata"]["labels"])]
        assert hit == [deployment]
