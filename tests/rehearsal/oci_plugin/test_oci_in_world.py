"""OCI's stand-in in a world: its pools are nodes of the real API server."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmd_oke.errors import KitError
from llmd_oke.rehearsal.agent_config import AgentConfig
from llmd_oke.rehearsal.control_plane import addresses, plane
from llmd_oke.rehearsal.processes import ProcessSpec, TcpReady, WorldSpec
from llmd_oke.rehearsal.world import World

pytestmark = pytest.mark.rehearsal

HERE = Path(__file__).parent
IMAGES = HERE.parents[2] / "values" / "rehearsal" / "images.yaml"
PLUGIN_PORT, CONTROL_PORT = 9303, 9304


def _programs() -> dict[str, Path]:
    folder = Path(os.environ.get("LLMD_OKE_PROGRAMS", "/nowhere"))
    return {name: folder / name for name in plane.PROGRAMS}


def _spec(state: Path) -> WorldSpec:
    control = plane.prepare(state, _programs())
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
    agent = (sys.executable, "-m", "llmd_oke.rehearsal.agent", "--config", str(state / "agent.json"))
    own = ("--port", str(PLUGIN_PORT), "--kubeconfig", str(control.kubeconfig))
    nodes = ("--nodes-url", f"http://127.0.0.1:{CONTROL_PORT}", "--journal", str(state / "oci" / "journal.jsonl"))
    plugin = (sys.executable, "-m", "llmd_oke.rehearsal.oci_plugin", *own, *nodes)
    return WorldSpec(
        processes=(
            *control.processes,
            ProcessSpec("agent", agent, after=("kube-apiserver",), readiness=TcpReady(53, addresses.DNS_SERVICE)),
            ProcessSpec("oci-plugin", plugin, readiness=TcpReady(PLUGIN_PORT)),
        )
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    missing = [name for name, path in _programs().items() if not path.is_file()]
    missing += [name for name in ("bwrap", "ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} (control plane programs are looked up in LLMD_OKE_PROGRAMS)")
    world = World(tmp_path)
    try:
        world.start(_spec(tmp_path))
    except KitError as error:
        if "does not allow" in error.message:
            pytest.skip(error.message)
        raise
    yield world
    world.stop()


def test_nodes_come_with_a_pool_and_go_with_it(world: World):
    kubeconfig = world.folder.path / "kubeconfig.yaml"
    done = world.run_inside([sys.executable, str(HERE / "oci_world_client.py"), str(PLUGIN_PORT), str(kubeconfig)])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {node["metadata"]["name"] for node in told["made"]} == {"gpu-0", "gpu-1", "gpu-2"}
    (first,) = [node for node in told["made"] if node["metadata"]["name"] == "gpu-0"]
    assert first["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "BM.GPU.MI300X.8"
    assert {"type": "Ready", "status": "True"}.items() <= first["status"]["conditions"][-1].items()
    assert str(addresses.API_SERVER_PORT) in told["server"]
    assert told["deleted"] == []
