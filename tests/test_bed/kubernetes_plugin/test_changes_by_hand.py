import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pulumi
import pytest
from kubernetes_control_plane import ControlPlane, program
from kubernetes_engine import attached_engine, engine_stack
from llmd_oke.catalogue.operations import remedy_for
from llmd_oke.operations import drift
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_rehearsal.engine import read_drift
from llmd_rehearsal.engine_events import StepRecorder
from pulumi import automation

pytestmark = [pytest.mark.rehearsal, pytest.mark.engine]

MERGE = {"Content-Type": "application/merge-patch+json"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}


TAKEN_BACK = "the update makes it what the stack file says"
STAYS = "stays until the object's next update"
CONTAINER = "spec.template.spec.containers[0]"


@dataclass(frozen=True)
class Cluster:
    """Objects of one namespace, as somebody else sees and changes them."""

    client: httpx2.Client
    namespace: str

    def path(self, kind: str, name: str) -> str:
        group = "apis/apps/v1" if kind == "deployments" else "api/v1"
        return f"/{group}/namespaces/{self.namespace}/{kind}/{name}"

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.client.get(self.path(kind, name)).raise_for_status().json()

    def delete(self, kind: str, name: str) -> None:
        self.client.delete(self.path(kind, name)).raise_for_status()

    def patch(self, path: str, manager: str, body: Any, headers: dict[str, str] = MERGE) -> None:
        params = {"fieldManager": manager}
        self.client.patch(path, params=params, content=json.dumps(body), headers=headers).raise_for_status()

    def scale(self, replicas: int, manager: str = "kubectl") -> None:
        self.patch(f"{self.path('deployments', 'd')}/scale", manager, {"spec": {"replicas": replicas}})


@dataclass(frozen=True)
class Stack:
    """A stack of a namespace, a ConfigMap and a Deployment of two pods."""

    engine: automation.Stack
    cli: PulumiCli
    inputs: dict[str, Any]

    def up(self, **inputs: Any) -> dict[str, int]:
        self.inputs.update(inputs)
        steps = StepRecorder(lambda _: None)
        self.engine.up(on_event=steps.hear)
        return steps.changes

    def differences(self) -> list[drift.Drift]:
        return drift.drift_of_refresh(self.cli.look(drift.OBJECTS))

    def look(self) -> list[str]:
        return [str(item) for item in self.differences()]


@pytest.fixture
def make(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Make a stack whose provider forces, or not."""
    (tmp_path / "Pulumi.yaml").write_text("name: llmd-oke\nruntime: python\n")

    def make_stack(namespace: str, *, force: bool = True) -> Stack:
        inputs: dict[str, Any] = {"image": "i", "autoscaled": False}
        declared = partial(declare, namespace, inputs)
        engine = engine_stack(tmp_path, control_plane, declared, force=force)
        return Stack(engine, PulumiCli(tmp_path, "dev", str(program("pulumi"))), inputs)

    with attached_engine(tmp_path):
        yield make_stack


def declare(namespace: str, inputs: dict[str, Any], options: pulumi.ResourceOptions) -> None:
    import pulumi_kubernetes as k8s  # noqa: PLC0415 - a second of import time

    namespace_object = k8s.core.v1.Namespace("ns", metadata={"name": namespace}, opts=options)
    where = {"namespace": namespace_object.metadata["name"]}
    k8s.core.v1.ConfigMap("c", metadata={"name": "c", **where}, data={"k": "v"}, opts=options)
    pod = {"containers": [{"name": "c", "image": inputs["image"], "env": [{"name": "A", "value": "1"}]}]}
    template = {"metadata": {"labels": {"app": "d"}}, "spec": pod}
    spec = {"replicas": 2, "selector": {"match_labels": {"app": "d"}}, "template": template}
    ignored = ["spec.replicas"] if inputs["autoscaled"] else None
    own = pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(ignore_changes=ignored))
    k8s.apps.v1.Deployment("d", metadata={"name": "d", **where}, spec=spec, opts=own)


@pytest.fixture
def client(control_plane: ControlPlane) -> Iterator[httpx2.Client]:
    with control_plane.client() as client:
        yield client


def test_without_force_an_update_after_a_manual_scale_is_a_conflict(make: Callable[..., Stack], client: httpx2.Client):
    """The real plug-in does the same (recordings 19 and 20)."""
    stack, cluster = make("conflict", force=False), Cluster(client, "conflict")
    stack.up()
    cluster.scale(3)
    with pytest.raises(automation.CommandError, match='conflict with "kubectl" with subresource "scale"') as refused:
        stack.up(image="j")
    assert "kubectl scale" in (remedy_for(str(refused.value)) or "")
    assert cluster.get("deployments", "d")["spec"]["replicas"] == 3


def test_a_preview_reports_and_an_update_reverts_manual_changes_to_objects(
    make: Callable[..., Stack], client: httpx2.Client
):
    stack, cluster = make("drift"), Cluster(client, "drift")
    assert stack.look() == []
    stack.up()
    cluster.scale(3)
    pod = {"spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"cpu": "1"}}}]}}
    cluster.patch(cluster.path("deployments", "d"), "kubectl-set", {"spec": {"template": pod}}, STRATEGIC)
    cluster.patch(cluster.path("deployments", "d"), "kubectl-label", {"metadata": {"labels": {"by": "hand"}}})
    cluster.delete("configmaps", "c")
    differences = stack.differences()
    assert sorted(map(str, differences)) == [
        "ConfigMap c is gone; the update makes it anew",
        f"Deployment d: metadata.labels.by was added by kubectl-label and {STAYS}",
        f"Deployment d: spec.replicas was 2 and is 3, set by kubectl (scale); {TAKEN_BACK}",
        f"Deployment d: {CONTAINER}.image was 'i' and is 'x', set by kubectl-set; {TAKEN_BACK}",
        f"Deployment d: {CONTAINER}.resources.limits.cpu was added by kubectl-set and {STAYS}",
    ]
    assert stack.cli.read(drift.to_read(differences)) == 0
    assert stack.up() == {"same": 3, "create": 1, "update": 1}
    live = cluster.get("deployments", "d")
    assert (live["spec"]["replicas"], live["metadata"].get("labels")) == (2, None)
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "i"
    assert cluster.get("configmaps", "c")["data"] == {"k": "v"}
    assert stack.look() == []


def test_an_update_in_a_rehearsal_reverts_manual_changes_to_kubernetes_objects(
    make: Callable[..., Stack], client: httpx2.Client, tmp_path: Path
):
    from llmd_base.progress import SilentProgress  # noqa: PLC0415 - for this test alone

    stack, cluster = make("rehearsed"), Cluster(client, "rehearsed")
    stack.up()
    cluster.scale(3)
    checkpoint = next(tmp_path.rglob("dev.json"))
    assert read_drift(stack.engine, checkpoint, SilentProgress()) == [
        f"Deployment d: spec.replicas was 2 and is 3, set by kubectl (scale); {TAKEN_BACK}"
    ]
    assert stack.up() == {"same": 4, "update": 1}
    assert cluster.get("deployments", "d")["spec"]["replicas"] == 2
    assert read_drift(stack.engine, checkpoint, SilentProgress()) == []


def test_an_update_keeps_the_fields_that_an_autoscaler_sets(make: Callable[..., Stack], client: httpx2.Client):
    """Neither told, nor taken back by an update that changes the pods, although the provider forces."""
    stack, cluster = make("autoscaled"), Cluster(client, "autoscaled")
    stack.up(autoscaled=True)
    cluster.scale(3, "kube-controller-manager")
    assert stack.look() == []
    assert stack.up(image="j") == {"same": 4, "update": 1}
    assert cluster.get("deployments", "d")["spec"]["replicas"] == 3
    cluster.scale(4, "kube-controller-manager")
    assert stack.up(image="k") == {"same": 4, "update": 1}
    assert cluster.get("deployments", "d")["spec"]["replicas"] == 4
