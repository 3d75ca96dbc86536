"""What a world is made of, by its plan."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from llmd_oke import config, planning
from llmd_oke.rehearsal.plugins import KubernetesPlugin
from llmd_oke.rehearsal.processes import WorldSpec, differences
from llmd_oke.rehearsal.world_plan import PLUGIN_PORTS, world_spec

MODEL = {
    "model": "gpt-oss-120b",
    "topology": "8p-tp1-4d-tp2",
    "workload": {"inputTokens": 4096, "outputTokens": 256},
}
POOL = {"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}
EXISTING = {"mode": "existing", "identifier": "here"}
CREATED = {
    "mode": "create",
    "name": "prod",
    "region": "us-ashburn-1",
    "compartmentId": "ocid1.compartment.oc1..cluster",
    "tenancyId": "ocid1.tenancy.oc1..tenancy",
    "kubernetesVersion": "v1.34.2",
}
CREATED_POOL = {
    **POOL,
    "availabilityDomain": "Uocm:US-ASHBURN-AD-1",
    "image": {"ocid": "ocid1.image.oc1.iad.there"},
}


STAND_IN = KubernetesPlugin("4.30.0")


class _Programs(dict[str, Path]):
    """Every program, somewhere."""

    def __missing__(self, name: str) -> Path:
        return Path("/programs") / name


def _spec(
    state: Path,
    cluster: Mapping[str, Any],
    pool: Mapping[str, Any],
    plugin: KubernetesPlugin = STAND_IN,
    startup_s: float | None = None,
) -> WorldSpec:
    stack = {"cluster": cluster, "gpuPools": [pool], "release": "llm-d-0.9.0", "models": [MODEL]}
    made = planning.plan(config.validate(stack))
    return world_spec(state, made, _Programs(), 1, 1, plugin=plugin, startup_s=startup_s)


def _nodes(state: Path) -> list[str]:
    return [node["name"] for node in json.loads((state / "agent.json").read_text())["nodes"]]


def test_nodes_of_an_existing_cluster_are_there_from_the_start(tmp_path: Path):
    _spec(tmp_path, EXISTING, POOL)
    assert _nodes(tmp_path) == ["mi300x-0", "mi300x-1", "system-0"]


def test_another_time_to_start_makes_another_world_and_is_told(tmp_path: Path):
    usual, slow = _spec(tmp_path, EXISTING, POOL), _spec(tmp_path, EXISTING, POOL, startup_s=60)
    assert differences(usual, slow) == ["seconds to start usual becomes 60"]
    (simulator,) = [process for process in slow.processes if process.name == "vllm"]
    assert simulator.argv[simulator.argv.index("--startup-seconds") + 1] == "60"


def test_nodes_of_a_created_cluster_come_with_its_pools(tmp_path: Path):
    _spec(tmp_path, CREATED, CREATED_POOL)
    assert _nodes(tmp_path) == []


@pytest.mark.parametrize(("cluster", "pool"), [(EXISTING, POOL), (CREATED, CREATED_POOL)])
def test_every_world_has_both_stand_ins(tmp_path: Path, cluster: Mapping[str, Any], pool: Mapping[str, Any]):
    processes = {process.name: process for process in _spec(tmp_path, cluster, pool).processes}
    for name, port in PLUGIN_PORTS.items():
        assert str(port) in processes[f"{name}-plugin"].argv


def test_the_engine_starts_a_real_plug_in_itself_and_another_choice_is_another_world(tmp_path: Path):
    before = _spec(tmp_path, EXISTING, POOL)
    now = _spec(tmp_path, EXISTING, POOL, KubernetesPlugin("4.30.0", Path("/there")))
    assert "kubernetes-plugin" not in {process.name for process in now.processes}
    assert differences(before, now) == ["kubernetes plugin stand-in 4.30.0 becomes real 4.30.0"]


def test_ocis_stand_in_finds_cluster_nodes_and_faults_of_its_world(tmp_path: Path):
    (plugin,) = [each for each in _spec(tmp_path, EXISTING, POOL).processes if each.name == "oci-plugin"]
    agent = json.loads((tmp_path / "agent.json").read_text())
    options = dict(zip(plugin.argv[3::2], plugin.argv[4::2], strict=True))
    assert options["--kubeconfig"] == str(tmp_path / "kubeconfig.yaml")
    assert options["--faults"] == str(tmp_path / "oci-faults.yaml")
    assert options["--nodes-url"] == f"http://127.0.0.1:{agent['control_port']}"
