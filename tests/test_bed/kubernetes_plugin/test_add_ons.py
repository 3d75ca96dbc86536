import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from kubernetes_control_plane import ControlPlane
from kubernetes_engine import need_charts
from llmd_oke import catalogue
from llmd_oke.catalogue import operators
from llmd_oke.operators.crds import _wait  # pyright: ignore[reportPrivateUsage]
from llmd_oke.planning.gpu_stack import tolerations
from llmd_rehearsal.oci_plugin.local_cluster import LocalAddOns, contents

pytestmark = pytest.mark.rehearsal

SHAPE = catalogue.shape("BM.GPU.MI300X.8")
assert SHAPE is not None
TOLERATIONS = tolerations(SHAPE.node.taints)


@pytest.fixture
def add_ons(control_plane: ControlPlane, tmp_path: Path) -> Iterator[LocalAddOns]:
    """Add-ons whose namespaces go with the test: removing an add-on leaves its namespace, as on OKE."""
    helm = need_charts()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(control_plane.kubeconfig_text())
    yield LocalAddOns(kubeconfig, str(helm))
    with control_plane.client() as api:
        for namespace in ("node-feature-discovery", "nvidia-network-operator"):
            _delete_namespace(api, namespace)


def _delete_namespace(api: httpx2.Client, name: str) -> None:
    """Delete a namespace and wait for its end, 30 s at most."""
    path = f"/api/v1/namespaces/{name}"
    response = api.get(path)
    if response.status_code == httpx2.codes.NOT_FOUND:
        return
    version = api.get("/api/v1/namespaces").json()["metadata"]["resourceVersion"]
    api.delete(path)
    query = {
        "watch": "true",
        "fieldSelector": f"metadata.name={name}",
        "resourceVersion": version,
        "timeoutSeconds": "30",
    }
    with api.stream("GET", "/api/v1/namespaces", params=query, timeout=40) as events:
        if not any(json.loads(line)["type"] == "DELETED" for line in events.iter_lines()):
            raise AssertionError(f"{name} is still there after 30 s")


def daemon_sets(api: httpx2.Client, namespace: str) -> dict[str, Any]:
    items = api.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets").json()["items"]
    return {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in items}


async def test_the_network_operator_installs_the_crds_that_the_rdma_network_needs(
    control_plane: ControlPlane, add_ons: LocalAddOns
) -> None:
    from llmd_oke.operators.crds import _client  # noqa: PLC0415 - beside its use

    add_on = operators.gpu_stacks().rdma["sriov-vf"].add_ons[1].tolerating(TOLERATIONS)
    add_ons.install(add_on.name, add_on.configurations)
    await _wait(operators.rdma().definitions, 30, _client(control_plane.kubeconfig_text(), None))
    with control_plane.client() as api:
        pod = daemon_sets(api, "nvidia-network-operator")["sriov-device-plugin"]
        assert pod["tolerations"] == TOLERATIONS
        add_ons.remove(add_on.name)
        assert daemon_sets(api, "nvidia-network-operator") == {}


def test_node_feature_discovery_gets_the_tolerations_of_its_configuration(
    control_plane: ControlPlane, add_ons: LocalAddOns
) -> None:
    add_on = operators.gpu_stacks().rdma["sriov-vf"].add_ons[0].tolerating(TOLERATIONS)
    add_ons.install(add_on.name, add_on.configurations)
    add_ons.install(add_on.name, add_on.configurations)
    with control_plane.client() as api:
        [worker] = [pod for name, pod in daemon_sets(api, "node-feature-discovery").items() if "worker" in name]
        assert worker["tolerations"] == TOLERATIONS
    add_ons.remove(add_on.name)


def test_okes_device_plug_in_skips_nodes_with_its_opt_out_label(
    control_plane: ControlPlane, add_ons: LocalAddOns
) -> None:
    add_ons.install("AmdGpuPlugin", {})
    with control_plane.client() as api:
        pod = daemon_sets(api, "kube-system")["amdgpu-device-plugin-daemonset"]
    rules = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": "oci.oraclecloud.com/disable-gpu-device-plugin", "operator": "NotIn", "values": ["true"]} in (
        rules[0]["matchExpressions"]
    )
    add_ons.remove("AmdGpuPlugin")


def test_rehearsals_have_a_helm_chart_for_every_oke_add_on_that_gpu_stacks_install() -> None:
    rows = operators.gpu_stacks()
    names = {add_on.name for row in (*rows.gpu_stacks.values(), *rows.rdma.values()) for add_on in row.add_ons}
    assert names <= contents().keys()


def test_installing_an_oke_add_on_without_a_chart_does_nothing_in_a_rehearsal(add_ons: LocalAddOns) -> None:
    add_ons.install("KubernetesDashboard", {})
    add_ons.remove("KubernetesDashboard")
