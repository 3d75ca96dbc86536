import json
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import Status
from llmd_oke import config, planning
from llmd_rehearsal import agent, cluster_plan
from llmd_rehearsal.agent import install_crds, install_objects
from llmd_rehearsal.autoscaling import ScalingTime
from llmd_rehearsal.cluster_plan import PLUGIN_PORTS, SIMULATED_NODE_SCALING, RehearsedCluster, simulated
from llmd_rehearsal.cluster_spec import ClusterSpec, fact_differences
from llmd_rehearsal.plugins import KubernetesPlugin
from project_entries import kit_entry, model_entry, write_entry
from stack_files import StackObject, created_stack, model, plan, read, stack

EXISTING = stack(nodes=2)
CREATED = created_stack()
STAND_IN = KubernetesPlugin("4.30.0")


class _Programs(dict[str, Path]):
    """Every program, somewhere."""

    def __missing__(self, name: str) -> Path:
        return Path("/programs") / name


def _spec(state: Path, stack: StackObject, plugin: KubernetesPlugin = STAND_IN, **settings: Any) -> ClusterSpec:
    created = planning.plan(config.validate(stack))
    return RehearsedCluster(state, state, created, _Programs(), plugin, **settings).spec()


@pytest.mark.parametrize(("stack", "nodes"), [(EXISTING, ["mi300x-0", "mi300x-1", "system-0"]), (CREATED, [])])
def test_only_an_existing_cluster_has_nodes_from_the_start(tmp_path: Path, stack: StackObject, nodes: list[str]):
    _spec(tmp_path, stack)
    assert [node["name"] for node in json.loads((tmp_path / "agent.json").read_text())["nodes"]] == nodes


def test_another_boot_time_of_nodes_is_reported_and_needs_another_local_cluster(tmp_path: Path):
    usual, slow = _spec(tmp_path, EXISTING), _spec(tmp_path, EXISTING, startup_s=60)
    assert fact_differences(usual.facts, slow.facts) == ["seconds to start usual becomes 60"]
    (simulator,) = [process for process in slow.processes if process.name == "vllm"]
    assert simulator.argv[simulator.argv.index("--startup-seconds") + 1] == "60"


def test_another_revision_of_a_project_is_rehearsed_in_the_same_local_cluster(tmp_path: Path):
    state, plan = tmp_path / "state", planning.plan(config.validate(EXISTING))
    state.mkdir()

    def spec(project: str) -> ClusterSpec:
        write_entry(tmp_path / project, "models/own", model_entry("own"))
        return RehearsedCluster(state, tmp_path / project, plan, _Programs(), STAND_IN).spec()

    assert spec("base").digest() == spec("head").digest()
    assert (state / "catalogue" / "values" / "models" / "own.yaml").is_file()


def test_a_changed_image_table_needs_another_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = _spec(tmp_path, EXISTING)
    images = tmp_path / "values" / "rehearsal" / "images.yaml"
    images.parent.mkdir(parents=True)
    images.write_text("images: []\n")
    monkeypatch.setattr(cluster_plan, "values_folder", lambda: tmp_path / "values")
    assert _spec(tmp_path, EXISTING).digest() != before.digest()


@pytest.mark.parametrize("stack", [EXISTING, CREATED])
def test_a_local_cluster_starts_the_stand_ins_for_the_oci_and_kubernetes_plug_ins(tmp_path: Path, stack: StackObject):
    processes = {process.name: process for process in _spec(tmp_path, stack).processes}
    for name, port in PLUGIN_PORTS.items():
        assert str(port) in processes[f"{name}-plugin"].argv


def test_switching_to_the_real_kubernetes_plug_in_needs_another_local_cluster(tmp_path: Path):
    before = _spec(tmp_path, EXISTING)
    now = _spec(tmp_path, EXISTING, KubernetesPlugin("4.30.0", Path("/there")))
    assert "kubernetes-plugin" not in {process.name for process in now.processes}
    assert fact_differences(before.facts, now.facts) == ["kubernetes plugin stand-in 4.30.0 becomes real 4.30.0"]


def test_the_oci_stand_in_is_started_with_kubeconfig_fault_file_and_node_agents_url(tmp_path: Path):
    (plugin,) = [item for item in _spec(tmp_path, EXISTING).processes if item.name == "oci-plugin"]
    agent = json.loads((tmp_path / "agent.json").read_text())
    options = dict(zip(plugin.argv[3::2], plugin.argv[4::2], strict=True))
    assert options["--kubeconfig"] == str(tmp_path / "kubeconfig.yaml")
    assert options["--faults"] == str(tmp_path / "oci-faults.yaml")
    assert options["--nodes-url"] == f"http://127.0.0.1:{agent['control_port']}"


SPEC = {"group": "g", "names": {"kind": "K", "plural": "ks"}, "scope": "Namespaced", "versions": []}
DEFINITION = {"metadata": {"name": "ks.g"}, "spec": SPEC}


class Cluster:
    def __init__(self, code: int | None = None) -> None:
        self.code = code
        self.created: list[str] = []

    async def create(self, definition: Any) -> None:
        if self.code is not None:
            raise ApiError(status=Status(code=self.code, message="no"))
        self.created.append(definition.metadata.name)


def test_another_speed_up_of_autoscaling_needs_another_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_plan, "crd_manifests", lambda _crds: [])
    scaled = model("2p-tp1-2d-tp1", scaling={"decode": {"minReplicas": 1, "maxReplicas": 2, "requests": 9}})
    usual, real = (_spec(tmp_path, stack(scaled), scaling_time=ScalingTime(speed)) for speed in (15, 1))
    assert fact_differences(usual.facts, real.facts) == ["scaling speed 15 becomes 1"]
    flags = {process.name: process.argv for process in usual.processes}
    assert "--horizontal-pod-autoscaler-sync-period=1s" in flags["kube-controller-manager"]
    assert flags["prometheus-operator"][-2:] == ("--interval", "2")


def test_only_the_rehearsal_of_an_autoscaled_gpu_pool_reports_simulated_autoscaling():
    stack = read("reference")
    assert SIMULATED_NODE_SCALING not in simulated(planning.plan(config.validate(stack)), STAND_IN)
    stack["gpuPools"][0]["scaling"] = {"mode": "cluster-autoscaler", "minSize": 8, "maxSize": 12}
    assert SIMULATED_NODE_SCALING in simulated(planning.plan(config.validate(stack)), STAND_IN)


async def test_crds_are_created_unless_they_exist_or_the_api_server_refuses_them():
    new = Cluster()
    await install_crds(cast("Any", new), [DEFINITION])
    assert new.created == ["ks.g"]
    await install_crds(cast("Any", Cluster(409)), [DEFINITION])
    with pytest.raises(ApiError):
        await install_crds(cast("Any", Cluster(403)), [DEFINITION])


async def test_creating_an_object_waits_until_the_api_server_serves_its_api_group(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agent, "_ESTABLISHED_PAUSE_S", 0)
    request = httpx2.Request("POST", "https://10.244.0.1:6443/apis/g/v1/ks")
    pending: list[httpx2.HTTPStatusError] = [
        httpx2.HTTPStatusError("no", request=request, response=httpx2.Response(404, text="404 page not found")),
        ApiError(status=Status(code=404, message="no")),
    ]
    cluster = Cluster()

    async def create(resource: Any) -> None:
        if pending:
            raise pending.pop(0)
        cluster.created.append(resource.metadata.name)

    monkeypatch.setattr(cluster, "create", create)
    await install_objects(cast("Any", cluster), [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}])
    assert cluster.created == ["n"]


def test_a_stack_without_autoscaling_has_another_config_hash_than_one_with_it():
    scaled = plan(model(scaling={"decode": {"minReplicas": 2, "maxReplicas": 6, "requests": 40}}))
    assert "scaling" not in json.loads(plan().config.model_dump_json(by_alias=True))["models"][0]
    assert plan().config_hash != scaled.config_hash


def test_a_rehearsal_names_exactly_the_models_with_only_bounds_for_latencies():
    llama = model("agg-tp2-1r", model="llama-3.3-70b-instruct-fp8-dynamic")
    words = " ".join(simulated(plan(model("agg-tp1-1r"), llama), STAND_IN))
    assert "times of RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic (bounds" in words
    assert "gpt-oss" not in words


def test_simulators_of_vllm_model_sources_and_oci_read_the_projects_own_catalogue(tmp_path: Path):
    processes = {process.name: process.argv for process in _spec(tmp_path, EXISTING).processes}
    readers = [name for name, argv in processes.items() if "--project" in argv]
    assert readers == ["vllm", "outside", "oci-plugin"]


def test_a_changed_shape_entry_in_the_project_needs_another_local_cluster(tmp_path: Path):
    usual = _spec(tmp_path, EXISTING)
    shape = "shapes/BM.GPU.MI300X.8"
    write_entry(tmp_path / "project", shape, kit_entry(shape, price_usd_per_hour=40.0))
    assert _spec(tmp_path, EXISTING).digest() != usual.digest()
