import os
from pathlib import Path

import pytest
from llmd_oke.progress import PlainProgress
from llmd_oke.rehearsal import programs
from llmd_oke.rehearsal.control_plane import plane
from llmd_oke.rehearsal.processes import WorldSpec
from llmd_oke.rehearsal.waiting import until

pytestmark = pytest.mark.rehearsal

CREATE_NAMESPACE = """
import time
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Endpoints, Namespace, ServiceAccount

client = Client(KubeConfig.from_file("kubeconfig.yaml").get())
client.create(Namespace(metadata=ObjectMeta(name="demo")))

def appears(kind, name):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return client.get(kind, name, namespace="demo").metadata.name
        except ApiError:
            time.sleep(0.02)

print(appears(ServiceAccount, "default"), appears(ConfigMap, "kube-root-ca.crt"))
print(client.get(Endpoints, "kubernetes", namespace="default").subsets[0].addresses[0].ip)
"""


@pytest.fixture
def control_plane(tmp_path: Path) -> plane.ControlPlane:
    found = {name: programs.locate(name) for name in plane.PROGRAMS}
    missing = [name for name, program in found.items() if program is None]
    if missing:
        where = os.environ.get(programs.finding.OVERRIDE, "the cache and PATH")
        pytest.skip(f"{', '.join(missing)} not found in {where}")
    paths = {name: program.path for name, program in found.items() if program is not None}
    return plane.prepare(tmp_path / "state", paths)


def _is_back(world, name):
    process = world.status().processes[name]
    return process.restarts == 1 and process.ready_after_s is not None


def test_a_control_plane_starts_serves_survives_its_kills_and_leaves_nothing(world, control_plane, python):
    spec = WorldSpec(processes=control_plane.processes, facts={"kubeconfig": str(control_plane.kubeconfig)})
    record = world.start(spec, PlainProgress(), discard=[control_plane.data])
    assert set(record.processes) == set(plane.PROGRAMS)
    assert record.facts == spec.facts
    for ended in ("etcd", "kube-apiserver"):
        world.run_inside(["pkill", "-KILL", "-x", ended])
        assert until(lambda name=ended: _is_back(world, name), 30)
    done = world.run_inside([python, "-c", CREATE_NAMESPACE], timeout_s=180)
    assert done.stdout.splitlines() == ["default kube-root-ca.crt", "10.244.0.1"], done.stderr
