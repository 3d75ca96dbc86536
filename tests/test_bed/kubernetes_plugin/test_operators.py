"""The operators of a GPU stack, installed by the real engine through the stand-in, with the real Helm."""

from typing import Any

import httpx2
import pulumi
import pytest
from kubernetes_control_plane import ControlPlane
from kubernetes_engine import Run, need_charts

pytestmark = [pytest.mark.rehearsal, pytest.mark.engine]

TOLERATION: Any = {"key": "amd.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}


def gpu_stack(options: pulumi.ResourceOptions) -> None:
    """All of `gpuStack: helm-operator`."""
    from llmd_oke import AmdGpuOperator, CertManager, NodeFeatureDiscovery  # noqa: PLC0415 - a second of import time

    certificates = CertManager("cert-manager", {}, options)
    discovery = NodeFeatureDiscovery("node-feature-discovery", {"tolerations": [TOLERATION]}, options)
    after = pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(depends_on=[certificates, discovery]))
    operator = AmdGpuOperator("amd-gpu-operator", {"tolerations": [TOLERATION]}, after)
    pulumi.export("namespace", operator.namespace)
    pulumi.export("device_config", operator.device_config)


def test_the_kubernetes_stand_in_installs_keeps_and_deletes_operators_helm_releases(
    run: Run, control_plane: ControlPlane
) -> None:
    need_charts()
    assert run("preview", gpu_stack)[1]["create"] == 12
    result, _ = run("up", gpu_stack)
    assert result.outputs["namespace"].value == "kube-amd-gpu"
    with control_plane.client() as api:
        config = api.get("/apis/amd.com/v1alpha1/namespaces/kube-amd-gpu/deviceconfigs/gpus").json()
        assert config["spec"]["devicePlugin"]["devicePluginTolerations"] == [TOLERATION]
        assert workers(api)["tolerations"][-1] == TOLERATION
        assert api.get("/apis/nfd.k8s-sigs.io/v1alpha1/nodefeaturerules/amd-gpu-label-nfd-rule").is_success
    assert run("up", gpu_stack)[1] == {"same": 12}
    run("destroy", gpu_stack)
    with control_plane.client() as api:
        namespaces = [item["metadata"]["name"] for item in api.get("/api/v1/namespaces").json()["items"]]
    assert {"kube-amd-gpu", "cert-manager", "node-feature-discovery"}.isdisjoint(namespaces)


def workers(api: httpx2.Client) -> Any:
    daemonsets = api.get("/apis/apps/v1/namespaces/node-feature-discovery/daemonsets").json()["items"]
    [worker] = [item for item in daemonsets if item["metadata"]["name"].endswith("worker")]
    return worker["spec"]["template"]["spec"]
