import os
from pathlib import Path

import pytest
from llmd_base.progress import PlainProgress
from llmd_oke.operations.locks import until
from llmd_rehearsal import control_plane, programs
from llmd_rehearsal.cluster_spec import ClusterSpec

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
def plane(tmp_path: Path) -> control_plane.ControlPlane:
    located = {name: programs.locate(name) for name in control_plane.PROGRAMS}
    missing = [name for name, program in located.items() if program is None]
    if missing:
        places = os.environ.get(programs.OVERRIDE, "the cache and PATH")
        pytest.skip(f"{', '.join(missing)} not found in {places}")
    paths = {name: program.path for name, program in located.items() if program is not None}
    return control_plane.prepare(tmp_path / "state", paths)


def _is_back(cluster, name):
    process = cluster.status().processes[name]
    return process.restarts == 1 and process.ready_after_s is not None


def test_a_local_control_plane_survives_killed_components_and_leaves_no_process(cluster, plane, python):
    spec = ClusterSpec(processes=plane.processes, facts={"kubeconfig": str(plane.kubeconfig)})
    record = cluster.start(spec, PlainProgress(), discard=[plane.data])
    assert set(record.processes) == set(control_plane.PROGRAMS)
    assert record.facts == spec.facts
    for ended in ("etcd", "kube-apiserver"):
        cluster.run_inside(["pkill", "-KILL", "-x", ended])
        assert until(lambda name=ended: _is_back(cluster, name), 30)
    result = cluster.run_inside([python, "-c", CREATE_NAMESPACE], timeout_s=180)
    assert result.stdout.splitlines() == ["default kube-root-ca.crt", "10.244.0.1"], result.stderr
