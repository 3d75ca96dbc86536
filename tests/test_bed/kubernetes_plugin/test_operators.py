"""The operators of a GPU stack, installed by the real engine through the stand-in, with the real Helm."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pulumi
import pytest
from kubernetes_control_plane import ControlPlane, program
from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.kubernetes_plugin.server import start
from pulumi import automation
from pulumi_engine import count_changes, home_without_logs, new_stack

pytestmark = [pytest.mark.rehearsal, pytest.mark.engine]

TOLERATION: Any = {"key": "amd.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}

Run = Callable[[str], tuple[Any, dict[str, int]]]


def gpu_stack(options: pulumi.ResourceOptions) -> None:
    """All of `gpuStack: helm-operator`."""
    from llmd_oke import AmdGpuOperator, CertManager, NodeFeatureDiscovery  # noqa: PLC0415 - a second of import time

    certificates = CertManager("cert-manager", {}, options)
    discovery = NodeFeatureDiscovery("node-feature-discovery", {"tolerations": [TOLERATION]}, options)
    after = pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(depends_on=[certificates, discovery]))
    operator = AmdGpuOperator("amd-gpu-operator", {"tolerations": [TOLERATION]}, after)
    pulumi.export("namespace", operator.namespace)
    pulumi.export("device_config", operator.device_config)


@pytest.fixture
def run(control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run `preview`, `up` or `destroy`; return its result, and changes."""
    for name in ("pulumi", "helm"):
        if not program(name).is_file():
            pytest.skip(f"no {name} (looked in LLMD_OKE_PROGRAMS)")
    for module in (module for source in charts.sources() for module in source.modules()):
        if not module.path().is_dir():
            pytest.skip(f"{module.path()} is missing")
    monkeypatch.setenv("PATH", f"{program('pulumi').parent}:{os.environ['PATH']}")
    server = start(helm=str(program("helm")))
    environment = {
        "PULUMI_CONFIG_PASSPHRASE": "none",
        "PULUMI_DEBUG_PROVIDERS": f"kubernetes:{server.port}",
        "PULUMI_HOME": home_without_logs(tmp_path / "home"),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }
    backend = automation.ProjectBackend(f"file://{tmp_path}")
    settings = automation.ProjectSettings("operators", "python", backend=backend)
    options = automation.LocalWorkspaceOptions(str(tmp_path), project_settings=settings, env_vars=environment)

    def inline() -> None:
        import pulumi_kubernetes as k8s  # noqa: PLC0415 - a second of import time

        gpu_stack(pulumi.ResourceOptions(provider=k8s.Provider("k", kubeconfig=control_plane.kubeconfig_text())))

    stack = new_stack(inline, options, "dev")

    def run_(operation: str) -> tuple[Any, dict[str, int]]:
        return count_changes(getattr(stack, operation))

    yield run_
    server.stop()


def test_the_kubernetes_stand_in_installs_keeps_and_deletes_operators_helm_releases(
    run: Run, control_plane: ControlPlane
) -> None:
    assert run("preview")[1]["create"] == 12
    result, _ = run("up")
    assert result.outputs["namespace"].value == "kube-amd-gpu"
    with control_plane.client() as api:
        config = api.get("/apis/amd.com/v1alpha1/namespaces/kube-amd-gpu/deviceconfigs/gpus").json()
        assert config["spec"]["devicePlugin"]["devicePluginTolerations"] == [TOLERATION]
        assert workers(api)["tolerations"][-1] == TOLERATION
        assert api.get("/apis/nfd.k8s-sigs.io/v1alpha1/nodefeaturerules/amd-gpu-label-nfd-rule").is_success
    assert run("up")[1] == {"same": 12}
    run("destroy")
    with control_plane.client() as api:
        namespaces = [item["metadata"]["name"] for item in api.get("/api/v1/namespaces").json()["items"]]
    assert {"kube-amd-gpu", "cert-manager", "node-feature-discovery"}.isdisjoint(namespaces)


def workers(api: httpx2.Client) -> Any:
    daemonsets = api.get("/apis/apps/v1/namespaces/node-feature-discovery/daemonsets").json()["items"]
    [worker] = [item for item in daemonsets if item["metadata"]["name"].endswith("worker")]
    return worker["spec"]["template"]["spec"]
