"""The real engine, attached to the stand-in."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulumi
import pytest
from kubernetes_control_plane import ControlPlane, program
from llmd_oke.rehearsal.kubernetes_plugin.server import start
from pulumi import automation

pytestmark = [pytest.mark.rehearsal, pytest.mark.engine]

Program = Callable[[Any], None]
Run = Callable[[str, Program], Any]


@pytest.fixture
def run(control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Does `preview`, `up` or `destroy` of a program, which gets the resource options to use."""
    if not program("pulumi").is_file():
        pytest.skip("no pulumi (looked in LLMD_OKE_PROGRAMS)")
    monkeypatch.setenv("PATH", f"{program('pulumi').parent}:{os.environ['PATH']}")
    server = start()
    environment = {
        "PULUMI_CONFIG_PASSPHRASE": "none",
        "PULUMI_DEBUG_PROVIDERS": f"kubernetes:{server.port}",
        "PULUMI_HOME": str(tmp_path / "home"),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }
    backend = automation.ProjectBackend(f"file://{tmp_path}")
    settings = automation.ProjectSettings("stand-in", "python", backend=backend)
    options = automation.LocalWorkspaceOptions(str(tmp_path), project_settings=settings, env_vars=environment)

    def run_(operation: str, program_: Program) -> Any:
        def inline() -> None:
            import pulumi_kubernetes as k8s  # noqa: PLC0415 - a second of import time

            provider = k8s.Provider("k", kubeconfig=control_plane.kubeconfig_text())
            program_(pulumi.ResourceOptions(provider=provider))

        stack = automation.create_or_select_stack("dev", "stand-in", inline, opts=options, work_dir=str(tmp_path))
        return getattr(stack, operation)()

    yield run_
    server.stop()


def test_the_engine_makes_changes_and_deletes_objects(run: Run):
    import pulumi_kubernetes as k8s  # noqa: PLC0415 - a second of import time

    def app(replicas: int) -> Program:
        def program_(options: pulumi.ResourceOptions) -> None:
            namespace = k8s.core.v1.Namespace("ns", metadata={"name": "engine"}, opts=options)
            where = {"namespace": namespace.metadata["name"]}
            k8s.core.v1.Secret("s", metadata=where, string_data={"k": pulumi.Output.secret("v")}, opts=options)
            limits = {"cpu": "1000m", "memory": "2048Mi"}
            pod = {"host_network": False, "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}
            template = {"metadata": {"labels": {"app": "d"}}, "spec": pod}
            spec = {"replicas": replicas, "selector": {"match_labels": {"app": "d"}}, "template": template}
            deployment = k8s.apps.v1.Deployment("d", metadata={"name": "d", **where}, spec=spec, opts=options)
            pulumi.export("ready", deployment.status["ready_replicas"])

        return program_

    made = run("up", app(1))
    assert (made.summary.resource_changes, made.outputs["ready"].value) == ({"create": 5}, 1)
    assert run("up", app(1)).summary.resource_changes == {"same": 5}
    scaled = run("up", app(2))
    assert (scaled.summary.resource_changes, scaled.outputs["ready"].value) == ({"same": 4, "update": 1}, 2)
    assert run("destroy", app(2)).summary.resource_changes == {"delete": 5}


def test_a_kind_that_is_not_served_is_named(run: Run):
    import pulumi_kubernetes as k8s  # noqa: PLC0415 - a second of import time

    def program_(options: pulumi.ResourceOptions) -> None:
        k8s.networking.v1.IngressClass("i", spec={"controller": "c.example/c"}, opts=options)

    with pytest.raises(automation.CommandError, match="IngressClass is not in this rehearsal"):
        run("preview", program_)
