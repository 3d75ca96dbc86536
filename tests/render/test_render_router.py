"""The router: endpoint picker, Envoy and InferencePool."""

import subprocess

import pytest
import yaml
from llmd_oke.serving import router
from llmd_oke.serving.picker_config import RouterArgs
from llmd_oke.testing import without_hash
from render_support import find_program, pod, selects

EPP = "gpt-oss-120b-epp"

ROUTER: RouterArgs = {
    "release": "llm-d-0.7.0",
    "namespace": "llm-d",
    "model": "m",
    "unit": "u",
    "disaggregated": True,
}

LOADED = "loaded configuration from file/text successfully"


def picker(stack):
    (container,) = [c for c in pod(stack, EPP)["spec"]["containers"] if c["name"] == "epp"]
    return container


def picker_config(stack):
    args = picker(stack)["args"]
    name = args[args.index("--config-file") + 1].removeprefix("/config/")
    return name, stack.kubernetes("ConfigMap", EPP)["data"][name]


@pytest.fixture
def older(varied):
    """The rehearsal's stack with the router of the oldest release, whose endpoint picker runs here."""
    return varied(stack={"override": {"router": "llm-d-0.6.0"}})


def test_routers_run_the_releases_version_of_the_llm_d_endpoint_picker(older, guide):
    images = [picker(stack)["image"].partition("@")[0] for stack in (older, guide)]
    assert images == [
        "ghcr.io/llm-d/llm-d-inference-scheduler:v0.7.1",
        "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.10.0",
    ]


GUIDE = {
    "always-disagg-pd-decider": {},
    "disagg-profile-handler": {"deciders": {"prefill": "always-disagg-pd-decider"}},
    "prefill-filter": {},
    "decode-filter": {},
    "approx-prefix-cache-producer": {"maxPrefixTokensToMatch": 131072},
    "inflight-load-producer": {},
    "prefix-cache-affinity-filter": {"peakPrefillThroughput": 33821},
    "token-load-scorer": {},
    "active-request-scorer": {},
    "max-score-picker": {},
}
"""Plugins of llm-d's P/D guide and their parameters (guides/pd-disaggregation/router/pd-disaggregation.values.yaml at
83bb7c18, which has one picker too)."""

GUIDE_PROFILES = {
    "prefill": {"prefill-filter", "prefix-cache-affinity-filter", "token-load-scorer", "max-score-picker"},
    "decode": {"decode-filter", "active-request-scorer", "max-score-picker"},
}


def test_the_guide_stacks_picker_config_equals_that_of_the_llm_d_guide(guide):
    config = yaml.safe_load(picker_config(guide)[1])
    assert {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]} == GUIDE
    profiles = {one["name"]: {part["pluginRef"] for part in one["plugins"]} for one in config["schedulingProfiles"]}
    assert profiles == GUIDE_PROFILES
    assert guide.kubernetes("Deployment", EPP)["spec"]["replicas"] == 1
    assert "--ha-enable-leader-election" not in picker(guide)["args"]


def test_a_picker_parameter_in_the_stack_file_replaces_the_llm_d_guides(varied):
    router = {"profile": "prefix-affinity", "peakPrefillTokensPerS": 20000}
    plugins = yaml.safe_load(picker_config(varied(router=router))[1])["plugins"]
    parameters = {plugin["type"]: plugin.get("parameters") for plugin in plugins}
    assert parameters["prefix-cache-affinity-filter"] == {"peakPrefillThroughput": 20000}


def test_the_preparedataplugins_feature_gate_is_set_only_for_older_pickers(older, guide):
    assert yaml.safe_load(picker_config(older)[1])["featureGates"] == ["prepareDataPlugins"]
    assert "featureGates" not in yaml.safe_load(picker_config(guide)[1])
    assert "prepareDataPlugins" not in str(guide.manifests())


def test_the_decider_plugin_is_listed_before_the_profile_handler_that_refers_to_it(rehearsal):
    plugins = [plugin["type"] for plugin in yaml.safe_load(picker_config(rehearsal)[1])["plugins"]]
    assert plugins.index("prefix-based-pd-decider") < plugins.index("disagg-profile-handler")


def test_the_decider_plugin_gets_16_tokens_as_zero_would_disable_remote_prefill(rehearsal):
    plugins = yaml.safe_load(picker_config(rehearsal)[1])["plugins"]
    (decider,) = [plugin for plugin in plugins if plugin["type"] == "prefix-based-pd-decider"]
    assert decider["parameters"]["nonCachedTokens"] == 16


def test_the_prefill_profile_has_the_name_that_the_prefix_indexer_expects(rehearsal):
    profiles = yaml.safe_load(picker_config(rehearsal)[1])["schedulingProfiles"]
    assert [profile["name"] for profile in profiles] == ["prefill", "decode"]


def test_no_model_server_metric_flag_is_passed_because_the_picker_exits_on_it(stack):
    refused = ("--total-queued", "--total-running", "--kv-cache-usage", "--lora-info", "--cache-info")
    for deployment in [m for m in stack.manifests() if m["metadata"]["name"] == EPP and m["kind"] == "Deployment"]:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            assert not [arg for arg in container["args"] if arg.startswith(refused)]


def test_the_picker_config_file_is_named_after_a_hash_of_its_content(rehearsal, varied):
    first, _ = picker_config(rehearsal)
    second, text = picker_config(varied(router={"nonCachedTokens": 512}))
    assert first != second
    assert "nonCachedTokens: 512" in text


def test_router_pods_have_an_annotation_with_a_hash_of_all_their_config(older, guide):
    hashes = {pod(stack, EPP)["metadata"]["annotations"]["llmd-oke/config"] for stack in (older, guide)}
    assert len(hashes) == 2


def test_envoy_configmaps_of_two_copies_of_a_model_have_different_names(varied):
    two = varied(copies=2)
    maps = {m["metadata"]["name"] for m in two.manifests() if m["kind"] == "ConfigMap"}
    assert {"gpt-oss-120b-0-envoy", "gpt-oss-120b-1-envoy"} <= {without_hash(name) for name in maps}
    for unit in ("gpt-oss-120b-0", "gpt-oss-120b-1"):
        volumes = pod(two, f"{unit}-epp")["spec"]["volumes"]
        assert {without_hash(v["configMap"]["name"]) for v in volumes if "configMap" in v} == {
            f"{unit}-envoy",
            f"{unit}-epp",
        }


def test_envoy_logs_only_warnings_and_has_a_limited_number_of_threads(rehearsal):
    (envoy,) = [c for c in pod(rehearsal, EPP)["spec"]["containers"] if c["name"] == "envoy-proxy"]
    assert envoy["args"][envoy["args"].index("--log-level") + 1] == "warn"
    assert envoy["args"][envoy["args"].index("--concurrency") + 1] == "8"
    assert envoy["resources"]["requests"] == {"cpu": "4", "memory": "8Gi"}


def test_envoy_listens_on_the_target_port_of_the_services(rehearsal):
    bootstrap = yaml.safe_load(rehearsal.kubernetes("ConfigMap", "gpt-oss-120b-envoy")["data"]["envoy.yaml"])
    ports = {
        listener["address"]["socket_address"]["port_value"] for listener in bootstrap["static_resources"]["listeners"]
    }
    targets = {
        port["targetPort"]
        for name in ("gpt-oss-120b", EPP)
        for port in rehearsal.kubernetes("Service", name)["spec"]["ports"]
        if port["name"] == "http"
    }
    assert targets <= ports


def test_an_inferencepool_selects_only_the_prefill_and_decode_pods_of_its_model_copy(varied):
    two = varied(copies=2)
    chosen = two.kubernetes("InferencePool", "gpt-oss-120b-0")["spec"]["selector"]["matchLabels"]
    hit = {
        m["metadata"]["name"]
        for m in two.manifests()
        if m["kind"] == "Deployment" and selects(chosen, m["spec"]["template"]["metadata"]["labels"])
    }
    assert {without_hash(name) for name in hit} == {"gpt-oss-120b-0-prefill", "gpt-oss-120b-0-decode"}


def test_the_inferencepool_names_its_picker_and_port_8000_of_both_roles(rehearsal):
    spec = rehearsal.kubernetes("InferencePool", "gpt-oss-120b")["spec"]
    assert spec["targetPorts"] == [{"number": 8000}]
    assert without_hash(spec["endpointPickerRef"]["name"]) == EPP
    assert spec["endpointPickerRef"]["port"]["number"] == 9002
    ports = {port["name"]: port["port"] for port in rehearsal.kubernetes("Service", EPP)["spec"]["ports"]}
    assert ports == {"grpc-ext-proc": 9002, "http-metrics": 9090, "http": 80}


def test_router_pods_meet_the_restricted_standard_and_lack_the_label_of_servers(rehearsal):
    template = pod(rehearsal, EPP)
    assert without_hash(template["metadata"]["labels"]["llmd-oke/unit"]) == "gpt-oss-120b"
    assert "llm-d.ai/inference-serving" not in template["metadata"]["labels"]
    assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert template["spec"]["securityContext"]["runAsNonRoot"]
    for container in template["spec"]["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


def test_router_pods_are_created_after_their_config_and_before_their_service(rehearsal):
    needed = rehearsal.kubernetes_resource("Deployment", EPP).depends_on
    read = ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "InferencePool"]
    assert all(any(kind in urn for urn in needed) for kind in read)
    service = rehearsal.kubernetes_resource("Service", EPP)
    assert rehearsal.kubernetes_resource("Deployment", EPP).urn in service.depends_on
    assert service.urn not in needed


def test_the_longest_allowed_model_name_is_not_truncated_in_names_of_objects(varied):
    name = "m" * 36
    many = varied(name=name, copies=2, topology="1p-tp1-1d-tp1")
    picker = many.kubernetes("InferencePool", f"{name}-0")["spec"]["endpointPickerRef"]
    assert without_hash(picker["name"]) == f"{name}-0-epp"
    assert many.kubernetes("Service", f"{name}-1-epp")


def test_the_router_component_declares_its_kubernetes_manifests_unchanged(rehearsal):
    labels = rehearsal.kubernetes("Deployment", "gpt-oss-120b-decode")["spec"]["template"]["metadata"]["labels"]
    unit, version = labels["llmd-oke/unit"], labels["llmd-oke/version"]
    args: RouterArgs = {
        **ROUTER,
        "release": "llm-d-0.9.0",
        "profile": "token-load",
        "model": "gpt-oss-120b",
        "unit": unit,
        "version": version,
        "control_plane_cidrs": ["10.244.0.1/32"],
    }
    for manifest in router.router_manifests(args):
        assert rehearsal.kubernetes(manifest["kind"], manifest["metadata"]["name"]) == manifest


def test_a_router_is_rendered_without_helm_or_a_chart(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("LLMD_OKE_CACHE", "/nowhere")
    assert router.router_manifests(ROUTER)


def bootstrap(stack):
    return yaml.safe_load(stack.kubernetes("ConfigMap", "gpt-oss-120b-envoy")["data"]["envoy.yaml"])


def requests_filters(stack):
    """Envoy's filters of requests, in their order."""
    (listener,) = [item for item in bootstrap(stack)["static_resources"]["listeners"] if item["name"] == "vllm"]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]


def test_envoy_removes_client_headers_that_name_servers_before_it_calls_the_picker(older, guide):
    for stack in (older, guide):
        cleaned, held, checked, picking, _ = requests_filters(stack)
        assert "x-prefiller-" in cleaned["typed_config"]["default_source_code"]["inline_string"]
        assert held["name"] == "envoy.filters.http.buffer"
        assert "kv_transfer_params" in checked["typed_config"]["default_source_code"]["inline_string"]
        assert picking["name"] == "envoy.filters.http.ext_proc"
        assert picking["typed_config"]["failure_mode_allow"] is False


def test_two_pickers_elect_a_leader_and_both_pods_are_ready(rehearsal):
    deployment = rehearsal.kubernetes("Deployment", EPP)["spec"]
    assert deployment["replicas"] == 2
    assert "--ha-enable-leader-election" in picker(rehearsal)["args"]
    assert picker(rehearsal)["readinessProbe"]["grpc"]["service"] == "liveness"
    leases = [
        rule
        for rule in rehearsal.kubernetes("Role", f"{EPP}-leader-election")["rules"]
        if "leases" in rule["resources"]
    ]
    assert {"get", "create", "update"} <= set(leases[0]["verbs"])


def test_envoy_calls_the_picker_that_is_leader_through_a_headless_address(rehearsal):
    (cluster,) = [item for item in bootstrap(rehearsal)["static_resources"]["clusters"] if item["name"] == "ext_proc"]
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    pickers = rehearsal.kubernetes("Service", f"{EPP}-pickers")
    name = f"{pickers['metadata']['name']}.llm-d.svc.cluster.local"
    assert endpoint["address"]["socket_address"]["address"] == name
    assert pickers["spec"]["clusterIP"] == "None"
    assert endpoint["health_check_config"]["port_value"] in [port["port"] for port in pickers["spec"]["ports"]]


def test_one_of_two_router_pods_may_be_evicted_and_they_spread_over_nodes(rehearsal):
    budget = rehearsal.kubernetes("PodDisruptionBudget", EPP)["spec"]
    assert budget["maxUnavailable"] == 1
    assert selects(budget["selector"]["matchLabels"], pod(rehearsal, EPP)["metadata"]["labels"])
    (constraint,) = pod(rehearsal, EPP)["spec"]["topologySpreadConstraints"]
    assert constraint["topologyKey"] == "kubernetes.io/hostname"


def test_a_terminating_router_pod_has_time_to_finish_its_answers(rehearsal):
    (proxy,) = [c for c in pod(rehearsal, EPP)["spec"]["containers"] if c["name"] == "envoy-proxy"]
    drain_s = proxy["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert f"--drain-timeout={drain_s}s" in picker(rehearsal)["args"]
    assert drain_s < pod(rehearsal, EPP)["spec"]["terminationGracePeriodSeconds"]


def test_a_release_whose_standby_picker_knows_no_servers_gets_one_picker(older):
    assert older.kubernetes("Deployment", EPP)["spec"]["replicas"] == 1
    assert "--ha-enable-leader-election" not in picker(older)["args"]
    assert not [m for m in older.manifests() if m["metadata"]["name"] == f"{EPP}-pickers"]


def sources(policy, port):
    """Return what may reach a port, as the policy's rules name it; None where everybody may."""
    rules = policy["spec"]["ingress"]
    taking = [rule for rule in rules if port in [item["port"] for item in rule.get("ports", [{"port": port}])]]
    matches = [rule.get("from") for rule in taking]
    return None if None in matches else [peer for peers in matches for peer in peers]


def test_only_a_routers_own_envoys_may_call_its_pickers(guide):
    policy = guide.kubernetes("NetworkPolicy", EPP)
    own = pod(guide, EPP)["metadata"]["labels"]
    for port in (9002, 9003):
        (peer,) = sources(policy, port)
        assert selects(peer["podSelector"]["matchLabels"], own)
        assert not selects(peer["podSelector"]["matchLabels"], pod(guide, "gpt-oss-120b-decode")["metadata"]["labels"])
    assert sources(policy, 8081) is None


def test_servers_without_a_router_are_reachable_by_all_pods_and_receive_no_kv_cache(baseline):
    policy = baseline.kubernetes("NetworkPolicy", "gpt-oss-120b-aggregated")
    assert sources(policy, 8000) is None
    assert sources(policy, 5600) == []


def test_servers_behind_a_router_admit_its_pods_but_no_front_door_or_image_puller(rehearsal):
    for role in ("prefill", "decode"):
        allowed = sources(rehearsal.kubernetes("NetworkPolicy", f"gpt-oss-120b-{role}"), 8000)
        named = [peer["podSelector"]["matchLabels"] for peer in allowed if "matchLabels" in peer.get("podSelector", {})]
        assert any(selects(item, pod(rehearsal, EPP)["metadata"]["labels"]) for item in named)
        front_door = pod(rehearsal, "gpt-oss-120b-front-door")["metadata"]["labels"]
        image_pull = rehearsal.kubernetes("DaemonSet", "image-pull")["spec"]["template"]["metadata"]["labels"]
        assert not any(selects(item, other) for item in named for other in (front_door, image_pull))


def test_pods_without_a_network_policy_of_their_own_cannot_be_reached(rehearsal):
    policy = rehearsal.kubernetes("NetworkPolicy", "llmd-oke-default")
    assert (policy["metadata"]["namespace"], policy["spec"]["ingress"]) == ("llm-d", [])
    assert policy["spec"]["podSelector"] == {}


def test_a_router_is_updated_in_place_to_another_release(older, guide):
    selectors = [stack.kubernetes("Deployment", EPP)["spec"]["selector"]["matchLabels"] for stack in (older, guide)]
    assert [sorted(selector) for selector in selectors] == [["llmd-oke/router", "llmd-oke/unit"]] * 2


def test_another_llm_d_release_of_a_model_gets_its_own_router(varied, older):
    def unit(stack):
        return stack.kubernetes("Deployment", EPP)["spec"]["selector"]["matchLabels"]["llmd-oke/unit"]

    assert unit(older) != unit(varied())


@pytest.mark.rehearsal
@pytest.mark.parametrize("topology", ["4p-tp1-4d-tp1", "agg-tp1-16r"])
def test_the_real_picker_accepts_the_rendered_config_and_flags(varied, tmp_path, topology):
    program = find_program("epp")
    if program is None:
        pytest.skip("there is no `epp` in LLMD_OKE_PROGRAMS, on PATH or in the cache")
    stack = varied(stack={"override": {"router": "llm-d-0.6.0"}}, topology=topology)
    name, text = picker_config(stack)
    (tmp_path / name).write_text(text)
    (tmp_path / "kubeconfig.yaml").write_text(yaml.safe_dump(nowhere()))
    args = [str(tmp_path / name) if arg.startswith("/config/") else arg for arg in picker(stack)["args"]]
    done = subprocess.run(
        [program, *args],
        env={"KUBECONFIG": str(tmp_path / "kubeconfig.yaml")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert LOADED in done.stdout + done.stderr
    assert "connection refused" in done.stdout + done.stderr


@pytest.mark.rehearsal
def test_the_real_sidecar_accepts_the_rendered_flags(older):
    program = find_program("pd-sidecar")
    if program is None:
        pytest.skip("there is no `pd-sidecar` in LLMD_OKE_PROGRAMS, on PATH or in the cache")
    (sidecar,) = pod(older, "gpt-oss-120b-decode")["spec"]["initContainers"]
    done = subprocess.run(
        [program, *sidecar["args"], "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "unknown flag" not in done.stdout + done.stderr
    assert "--vllm-port" in done.stdout + done.stderr


def nowhere() -> dict:
    """A kubeconfig of a server that refuses connections: the picker has read its config by then."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "nowhere",
        "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}],
        "clusters": [{"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "nobody", "user": {}}],
    }
