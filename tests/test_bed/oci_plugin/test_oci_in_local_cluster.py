"""OCI's stand-in in a local cluster: its pools are nodes of the real API server."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_rehearsal import control_plane
from llmd_rehearsal.agent_config import AgentConfig
from llmd_rehearsal.cluster_spec import ClusterSpec, ProcessSpec, TcpReady
from llmd_rehearsal.local_cluster import LocalCluster

pytestmark = pytest.mark.rehearsal

HERE = Path(__file__).parent
IMAGES = HERE.parents[2] / "values" / "rehearsal" / "images.yaml"
PLUGIN_PORT, CONTROL_PORT = 9303, 9304


def _programs() -> dict[str, Path]:
    folder = Path(os.environ.get("LLMD_OKE_PROGRAMS", "/nowhere"))
    return {name: folder / name for name in control_plane.PROGRAMS}


def _spec(state: Path) -> ClusterSpec:
    control = control_plane.prepare(state, _programs())
    programs = {name: Path("/nowhere") / name for name in ("envoy", "epp", "pd-sidecar")}
    config = AgentConfig(
        kubeconfig=control.kubeconfig,
        state_folder=state,
        images=IMAGES,
        programs=programs,
        control_port=CONTROL_PORT,
        simulator_url="http://127.0.0.1:9302",
    )
    (state / "agent.json").write_text(config.model_dump_json())
    agent = (sys.executable, "-m", "llmd_rehearsal.agent", "--config", str(state / "agent.json"))
    own = ("--port", str(PLUGIN_PORT), "--kubeconfig", str(control.kubeconfig))
    nodes = ("--nodes-url", f"http://127.0.0.1:{CONTROL_PORT}", "--journal", str(state / "oci" / "journal.jsonl"))
    scaled = ("--helm", "/nowhere/helm", "--autoscaler-time-scale", "0.005")
    plugin = (sys.executable, "-m", "llmd_rehearsal.oci_plugin", *own, *nodes, *scaled)
    return ClusterSpec(
        processes=(
            *control.processes,
            ProcessSpec("agent", agent, after=("kube-apiserver",), readiness=TcpReady(53, control_plane.DNS_SERVICE)),
            ProcessSpec("oci-plugin", plugin, readiness=TcpReady(PLUGIN_PORT)),
        )
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    missing = [name for name, path in _programs().items() if not path.is_file()]
    missing += [name for name in ("bwrap", "ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} (control plane programs are looked up in LLMD_OKE_PROGRAMS)")
    cluster = LocalCluster(tmp_path)
    try:
        cluster.start(_spec(tmp_path))
    except KitError as error:
        if "does not allow" in error.message:
            pytest.skip(error.message)
        raise
    yield cluster
    cluster.stop()


def test_nodes_of_an_oci_pool_join_and_leave_a_local_cluster_as_the_pool_is_resized(cluster: LocalCluster):
    kubeconfig = cluster.folder.path / "kubeconfig.yaml"
    done = cluster.run_inside([sys.executable, str(HERE / "oci_cluster_client.py"), str(PLUGIN_PORT), str(kubeconfig)])
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert {node["metadata"]["name"] for node in answers["made"]} == {"gpu-0", "gpu-1", "gpu-2"}
    (first,) = [node for node in answers["made"] if node["metadata"]["name"] == "gpu-0"]
    assert first["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "BM.GPU.MI300X.8"
    assert {"type": "Ready", "status": "True"}.items() <= first["status"]["conditions"][-1].items()
    assert str(control_plane.API_SERVER_PORT) in answers["server"]
    assert len(answers["grown"]) == 4
    (message,) = answers["told"]
    assert message.endswith("3->4 (max: 4)}]")
    assert len(answers["shrunk"]) == 3
    assert "cloudProviderTarget" in answers["status"]["status"]
    assert answers["deleted"] == []
