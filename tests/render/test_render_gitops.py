import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from created_cluster import created
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.cli.main import app
from llmd_oke.gitops import rendering
from llmd_oke.gitops.manifests import files, write_folder
from llmd_oke.gitops.rendering import Rendering
from llmd_oke.testing import Rendered, without_hash
from render_support import PROJECT, STACKS, need_definitions
from stack_files import model, stack, write
from typer.testing import CliRunner

SECURE = {"secure": "v1:bm9uY2U=:Y2lwaGVydGV4dA=="}
BUCKET = {"modelCache": {"kind": "node-disk"}, "prewarm": {"source": "object-storage"}}
OUTPUTS = {"cluster_id": "ocid1.cluster.oc1.iad.a", "model_cache_handle": "ocid1.fs:10.0.0.9:/models"}
SERVING: Mapping[str, Any] = {
    "layer": "serving",
    "clusterStack": "organization/llmd-oke/cluster",
    "storage": {"modelCache": {"kind": "file-storage"}},
}

Render = Callable[..., Rendering]


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Render a stack from a file of its own."""
    need_definitions("llm-d-0.9.0")

    def render_(
        config: Mapping[str, Any], settings: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None
    ) -> Rendering:
        write(tmp_path, "prod", config, settings)
        return rendering.render(tmp_path, "prod", outputs)

    return render_


def serving(**changes: Any) -> dict[str, Any]:
    config = {**stack(), **SERVING, **changes}
    del config["cluster"]
    return config


def without_pulumi(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """An object without annotations for Pulumi, and without a Job's name, which is another one in plain YAML."""
    metadata = dict(manifest["metadata"])
    annotations = {
        key: value for key, value in metadata.pop("annotations", {}).items() if not key.startswith("pulumi.com/")
    }
    if manifest["kind"] == "Job":
        metadata.pop("name")
    return {**manifest, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}


def as_texts(manifests: list[Mapping[str, Any]]) -> list[str]:
    return sorted(json.dumps(without_pulumi(manifest), sort_keys=True) for manifest in manifests)


@pytest.mark.parametrize("name", STACKS)
def test_each_object_that_the_pulumi_program_declares_is_rendered_unchanged(
    rendered: Callable[..., Rendered], name: str
):
    declared = rendered(name)
    result = rendering.render(PROJECT, name)
    named = [manifest for manifest in declared.manifests() if not manifest["metadata"]["name"].endswith("-facts")]
    facts = [item.manifest for item in result.objects if item.name.endswith("-facts")]
    others = [item.manifest for item in result.objects if not item.name.endswith("-facts")]
    assert as_texts(others) == as_texts(named)
    assert all(json.loads(manifest["data"]["facts.json"])["stack"] == name for manifest in facts)


def waves_of(result: Rendering, kind: str) -> dict[str, int]:
    return {without_hash(item.name): item.wave for item in result.objects if item.kind == kind}


def test_rendered_objects_follow_the_objects_that_they_depend_on_in_pulumi(render: Render):
    result = render(stack(model("2p-tp1-1d-tp2"), storage={"modelCache": {"kind": "node-disk"}}))
    jobs, deployments = waves_of(result, "Job"), waves_of(result, "Deployment")
    servers, front_door = deployments["gpt-oss-120b-decode"], deployments["gpt-oss-120b-front-door"]
    assert 0 == waves_of(result, "Namespace")["llm-d"] < jobs["prewarm-gpt-oss-120b"] < servers < front_door
    assert max(waves_of(result, "PriorityClass").values()) < servers
    assert front_door < jobs["gpt-oss-120b-smoke"] == max(item.wave for item in result.objects)


def test_rendering_a_stack_to_yaml_twice_writes_identical_bytes(render: Render, tmp_path: Path):
    config = stack()
    write_folder(tmp_path / "out", files(render(config)))
    again = write_folder(tmp_path / "out", files(render(config)))
    assert (again.written, again.removed) == ((), ())


def test_rendered_yaml_names_the_needed_secrets_in_comments_without_their_content(render: Render):
    settings = {"llmd-oke:huggingFaceToken": SECURE, "llmd-oke:modelSourceUrl": SECURE}
    result = render(stack(storage=BUCKET), settings)
    assert [(secret.setting, secret.namespace) for secret in result.secrets] == [
        ("modelSourceUrl", "llm-d"),
        ("huggingFaceToken", "llm-d"),
    ]
    assert [item for item in result.objects if item.kind == "Secret"] == []
    assert not [text for text in files(result).values() if "llmd-oke-secret" in text or "v1:" in text]


def test_rendered_yaml_of_a_stack_without_secret_settings_names_no_secret(render: Render):
    assert render(stack()).secrets == ()


def test_rendering_without_an_output_of_the_clusters_stack_is_refused_with_a_remedy(render: Render):
    with pytest.raises(InvalidStack) as refused:
        render(serving())
    (problem,) = refused.value.problems
    assert (problem.path, problem.line is not None) == ("clusterStack", True)
    assert "PersistentVolume llm-d-model-cache" in problem.why
    assert "pulumi stack output --json --stack organization/llmd-oke/cluster" in problem.accepted


def test_outputs_of_the_cluster_stack_complete_the_rendered_kubernetes_objects(render: Render):
    result = render(serving(), outputs=OUTPUTS)
    (volume,) = [item.manifest for item in result.objects if item.kind == "PersistentVolume"]
    assert volume["spec"]["csi"]["volumeHandle"] == OUTPUTS["model_cache_handle"]


def test_outputs_passed_to_render_are_refused_for_a_stack_that_uses_no_other_stack(render: Render):
    with pytest.raises(KitError, match="takes nothing from another stack"):
        render(stack(), outputs=OUTPUTS)


def test_taints_of_the_cluster_that_the_stack_file_lacks_are_reported(render: Render):
    taint = {"key": "a", "value": "b", "effect": "NoSchedule"}
    outputs = {**OUTPUTS, "gpu_pools": {"mi300x": {"taints": [taint]}}}
    with pytest.raises(KitError, match="a=b:NoSchedule"):
        render(serving(), outputs=outputs)


def test_deployments_that_an_autoscaler_scales_are_rendered_without_replicas(render: Render):
    scaling = {"aggregated": {"minReplicas": 1, "maxReplicas": 4, "requests": 40}}
    result = render(stack(model("agg-tp1-2r", scaling=scaling)))
    (servers,) = [
        item.manifest for item in result.objects if (item.kind, item.name[-10:]) == ("Deployment", "aggregated")
    ]
    assert "replicas" not in servers["spec"]
    (scaled,) = [item.manifest for item in result.objects if item.kind == "ScaledObject"]
    assert scaled["spec"]["minReplicaCount"] == 1


def test_gitops_yaml_of_a_created_cluster_has_its_operators_but_no_node_gates(render: Render):
    result = render(created())
    assert [chart.name for chart in result.charts] == ["cert-manager", "amd-gpu-operator"]
    assert {item.name.split(" ")[0] for item in result.left_out} >= {"Job", "ConfigMap", "ServiceAccount"}
    assert all("only an update" in item.reason for item in result.left_out)
    device_config = next(item for item in result.objects if item.kind == "DeviceConfig")
    assert device_config.wave > result.charts[-1].wave
    assert [item.name for item in result.objects if item.outlives and item.kind != "CustomResourceDefinition"] == []


def test_the_controller_of_leaderworkersets_is_rendered_before_the_servers(render: Render):
    result = render(stack(model("agg-tp1dp16ep-1r"), leaderWorkerSets="install"))
    (chart,) = result.charts
    (servers,) = (item for item in result.objects if item.kind == "LeaderWorkerSet")
    assert (chart.name, chart.version) == ("lws", "0.9.0")
    assert chart.wave < servers.wave


def test_a_file_system_that_does_not_exist_yet_is_refused_in_gitops(render: Render):
    with pytest.raises(InvalidStack) as refused:
        render(created(storage={"modelCache": {"kind": "file-storage", "availabilityDomain": "Uocm:US-ASHBURN-AD-1"}}))
    (problem,) = refused.value.problems
    assert problem.path == "storage.modelCache"
    assert "storage.modelCache.existing" in problem.accepted


def test_copies_of_a_model_that_update_one_by_one_have_different_sync_waves(render: Render):
    config = stack(model(topology="2p-tp1-1d-tp2", copies=2), nodes=1)
    waves = waves_of(render(config), "Deployment")
    assert waves["gpt-oss-120b-1-decode"] > waves["gpt-oss-120b-0-decode"]


def by_name(result: Rendering, kind: str) -> dict[str, int]:
    return {item.name: item.wave for item in result.objects if item.kind == kind}


@pytest.mark.parametrize("copies", [1, 2])
def test_without_free_gpus_an_inferencepool_syncs_after_its_decode_servers(render: Render, copies: int):
    """Else nothing would be in the pool until the first of them has started."""
    result = render(stack(model("2p-tp1-2d-tp1" if copies == 2 else "4p-tp1-4d-tp1", copies=copies), nodes=1))
    pools, servers, pickers = (by_name(result, kind) for kind in ("InferencePool", "Deployment", "ConfigMap"))
    assert len(pools) == copies
    for unit, wave in pools.items():
        assert servers[f"{unit}-decode"] < wave == servers[f"{unit}-prefill"] < servers[f"{unit}-epp"]
        assert pickers[f"{unit}-epp"] < servers[f"{unit}-epp"]


def test_without_free_gpus_an_inferencepool_syncs_after_its_disaggregatedset(render: Render):
    config = stack(model("4p-tp1-4d-tp1", disaggregatedSet=True), nodes=1, release="llm-d-0.10.0")
    result = render(config)
    (servers,), (pool,) = (by_name(result, kind).values() for kind in ("DisaggregatedSet", "InferencePool"))
    (wait,) = (wave for name, wave in by_name(result, "Job").items() if "-wait-" in name)
    assert servers < wait < pool


def test_with_enough_gpus_changed_servers_are_rendered_with_a_new_inferencepool(render: Render):
    before, after = (render(stack(model("2p-tp1-1d-tp2", engine={"blockSize": size}))) for size in (128, 64))
    pools, servers = by_name(before, "InferencePool"), by_name(before, "Deployment")
    assert not pools.keys() & by_name(after, "InferencePool").keys()
    assert [update.way for update in before.updates] == ["beside"]
    (unit,) = pools
    assert servers[f"{unit}-prefill"] == servers[f"{unit}-decode"]


def test_rendering_reports_an_outage_that_an_update_would_cause(tmp_path: Path):
    need_definitions("llm-d-0.9.0")
    words = ["render", "--stack", "prod", "--project", str(tmp_path), "--output", str(tmp_path / "out")]

    def told(size: int, *more: str) -> Any:
        config = stack(model("4p-tp1-4d-tp1", engine={"blockSize": size}), nodes=1)
        write(tmp_path, "prod", config)
        return CliRunner().invoke(app, [*words, *more])

    assert "Later updates of gpt-oss-120b:" in told(128).stderr
    assert "outage of a start-up, at most" in told(128).stderr
    (update,) = json.loads(told(64, "--json").stdout)["updates"]
    assert (update["way"], update["replaced_now"]) == ("outage", ["gpt-oss-120b"])
    assert "This update replaces the servers of gpt-oss-120b. gpt-oss-120b: another image" in told(128).stderr


@pytest.mark.parametrize("text", ["[]", "{", "text"])
def test_outputs_passed_to_render_that_are_not_a_json_object_are_refused(tmp_path: Path, text: str):
    (tmp_path / "outputs.json").write_text(text)
    with pytest.raises(KitError, match="no JSON object"):
        rendering.read_outputs(tmp_path / "outputs.json")


def test_every_model_of_a_stack_is_rendered_with_servers_router_and_service(render: Render):
    llama = "llama-3.3-70b-instruct-fp8-dynamic"
    plain = model("agg-tp1-2r", name="plain", router={"mode": "none"})
    result = render(stack(model("2p-tp1-1d-tp2"), model("1p-tp2-1d-tp4", model=llama), plain, nodes=2))
    names = [item.name for item in result.objects if item.kind == "Deployment"]
    assert sorted(map(without_hash, names)) == [
        *(f"gpt-oss-120b-{part}" for part in ("decode", "epp", "front-door", "prefill")),
        *(f"llama-3-3-70b-instruct-fp8-dynamic-{part}" for part in ("decode", "epp", "front-door", "prefill")),
        "plain-aggregated",
    ]
    addresses = {item.name for item in result.objects if item.kind == "Service"}
    assert addresses > {"gpt-oss-120b", "llama-3-3-70b-instruct-fp8-dynamic", "plain"}
    classes = [item.manifest for item in result.objects if item.kind == "PriorityClass"]
    assert [(entry["value"], entry["preemptionPolicy"]) for entry in classes] == [
        (1000, "Never"),
        (2000, "Never"),
        (4000, "Never"),
    ]
    benchmarks = [item.wave for item in result.objects if item.kind == "Job" and "-smoke" in item.name]
    others = [item.wave for item in result.objects if "smoke" not in item.name]
    assert len(benchmarks) == 3
    assert min(benchmarks) > max(others)


def test_render_lists_the_files_that_it_wrote_and_the_commands_that_create_secrets(tmp_path: Path):
    need_definitions("llm-d-0.9.0")
    write(tmp_path, "prod", stack(storage=BUCKET), {"llmd-oke:modelSourceUrl": SECURE})
    words = ["render", "--stack", "prod", "--project", str(tmp_path), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*words, "--argo-cd", "--json"])
    document = json.loads(result.stdout)
    assert (result.exit_code, document["objects"]) == (0, len(document["files"]["written"]) - 1)
    assert [secret["name"] for secret in document["secrets"]] == ["model-source"]
    again = CliRunner().invoke(app, [*words, "--argo-cd"])
    assert f"0 files written, {document['objects'] + 1} unchanged, 0 removed" in again.stderr
    assert "kubectl create secret generic model-source" in again.stderr
    stream = CliRunner().invoke(app, [*words[:-1], "-"]).stdout
    assert stream.count("\n---\n") == document["objects"] - 1


def test_render_refuses_yaml_and_json_together_on_standard_output(tmp_path: Path):
    result = CliRunner().invoke(app, ["render", "--stack", "prod", "--project", str(tmp_path), "-o", "-", "--json"])
    assert "both be on standard output" in str(result.exception)


def test_rendered_gitops_yaml_contains_a_front_door_with_its_weights(render: Render):
    door = {"host": "llm.example.com", "tls": {"kind": "issuer", "name": "internal"}, "weights": {"gpt-oss-120b": 100}}
    kinds = [item.kind for item in render(stack(frontDoor=door)).objects if item.name.startswith("front-door")]
    assert sorted(kinds) == [
        "Certificate",
        "ConfigMap",
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
    ]


def test_a_front_door_whose_secrets_pulumi_generates_is_refused_in_gitops(render: Render):
    door = {
        "host": "llm.example.com",
        "tls": {"kind": "config"},
        "authentication": {"kind": "api-keys"},
        "uncheckedPods": "accepted",
    }
    with pytest.raises(InvalidStack) as refused:
        render(stack(frontDoor=door))
    assert {problem.path for problem in refused.value.problems} == {"frontDoor.authentication", "frontDoor.tls.kind"}


def test_gitops_yaml_puts_prometheus_before_its_monitors(render: Render):
    result = render(stack(monitoring="install"))
    (chart,) = result.charts
    assert (chart.name, chart.namespace) == ("kube-prometheus-stack", "llm-d-monitoring")
    monitors = [item for item in result.objects if item.kind in {"PodMonitor", "ServiceMonitor", "PrometheusRule"}]
    assert {item.kind for item in monitors} == {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
    assert all(item.wave > chart.wave for item in monitors)
