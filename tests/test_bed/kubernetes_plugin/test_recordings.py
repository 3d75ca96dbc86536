"""The stand-in answers what the real plug-in answered."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from free_ports import free_port
from kubernetes_control_plane import ControlPlane
from kubernetes_recordings import Action, Replay
from llmd_oke.values import read_yaml
from llmd_rehearsal.kubernetes_plugin.readiness import WaitLimits
from llmd_rehearsal.kubernetes_plugin.server import start

pytestmark = pytest.mark.rehearsal

CASES = [f"{number:02}" for number in range(1, 37) if number != 30]
"""All but 30, Helm releases, which have tests of their own."""

MERGE = {"Content-Type": "application/merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}


@pytest.fixture(scope="module")
def port(control_plane: ControlPlane) -> Iterator[int]:
    server = start(limits=WaitLimits(settle_s=1, missing_kind_s=1, claim_s=2))
    yield server.port
    server.stop()


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[httpx2.Client]:
    with control_plane.client() as client:
        yield client


@pytest.fixture(scope="module")
def differences(
    request: pytest.FixtureRequest, control_plane: ControlPlane, port: int, api: httpx2.Client, recordings: Path
) -> Iterator[dict[str, Future[list[str]]]]:
    """Return results of the chosen cases, which are replayed at the same time as they mostly wait."""
    chosen = [item.callspec.params["case"] for item in request.session.items if _replays(item)]
    with pytest.MonkeyPatch.context() as monkeypatch, ThreadPoolExecutor(6) as pool:
        monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
        yield {case: pool.submit(_replay, case, control_plane, port, api, recordings) for case in chosen}


def _replays(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and item.originalname == test_the_kubernetes_plug_ins_stand_in_answers_as_recorded_from_the_real_one.__name__
    )


def _replay(case: str, plane: ControlPlane, port: int, api: httpx2.Client, recordings: Path) -> list[str]:
    _make_namespace(api, f"c{case}")
    if case == "24":
        _install(api, recordings.parent / "crds" / "gateway.networking.k8s.io_httproutes.yaml")
    [recording] = recordings.glob(f"{case}-*.jsonl")
    return Replay(port, _texts(plane), _actions(api), lambda namespace: _settle(api, namespace)).run(recording)


@pytest.mark.parametrize("case", CASES)
def test_the_kubernetes_plug_ins_stand_in_answers_as_recorded_from_the_real_one(
    case: str, differences: dict[str, Future[list[str]]]
) -> None:
    deviations = differences[case].result()
    assert not deviations, "\n".join(deviations)


def _texts(plane: ControlPlane) -> dict[str, str]:
    dead = f"127.0.0.1:{free_port()}"
    return {
        "<kubeconfig>": plane.kubeconfig_text(),
        "<kubeconfig: other user name>": plane.kubeconfig_text(user="another"),
        "<kubeconfig: other server address>": plane.kubeconfig_text(server=f"https://localhost:{plane.port}"),
        "<kubeconfig: server that refuses connections>": plane.kubeconfig_text(server=f"https://{dead}"),
        "<dead-server>": dead,
    }


def _make_namespace(api: httpx2.Client, name: str) -> None:
    api.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
    _until(lambda: api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default").is_success)


def _install(api: httpx2.Client, definition: Path) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    body = read_yaml(definition)
    answer = api.post(path, json=body)
    if answer.status_code != httpx2.codes.CONFLICT:  # another test of this control plane has installed it
        answer.raise_for_status()
    spec = body["spec"]
    _until(lambda: spec["names"]["plural"] in api.get(f"/apis/{spec['group']}/v1").text)
    _until(lambda: api.get(f"/apis/{spec['group']}/v1/{spec['names']['plural']}").is_success)


def _settle(api: httpx2.Client, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    _until(lambda: all(_is_seen(item) for item in api.get(path).json()["items"]))


def _is_seen(deployment: dict[str, Any]) -> bool:
    """The controller made the pods and says so."""
    status = deployment["status"]
    seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return seen and "updatedReplicas" in status


def _until(condition: Any, limit_s: float = 20) -> None:
    ends_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_at, "the cluster did not get there"
        time.sleep(0.05)


def _actions(api: httpx2.Client) -> dict[str, Action]:
    """Return what was done outside of Pulumi, by the words of the recordings."""

    def config_maps(namespace: str) -> str:
        return f"/api/v1/namespaces/{namespace}/configmaps"

    def web(namespace: str) -> str:
        return f"/apis/apps/v1/namespaces/{namespace}/deployments/web"

    def create(name: str, value: str) -> Action:
        body = {"metadata": {"name": name}, "data": {"k": value}}
        params = {"fieldManager": "kubectl-create"}
        return lambda ns: _done(api.post(config_maps(ns), json=body, params=params))

    def delete(name: str) -> Action:
        return lambda ns: _done(api.delete(f"{config_maps(ns)}/{name}"))

    def patch(path: Any, manager: str, body: Any, headers: dict[str, str] = MERGE, **params: str) -> Action:
        return lambda ns: _done(
            api.patch(path(ns), params={"fieldManager": manager, **params}, content=json.dumps(body), headers=headers)
        )

    def scale(namespace: str, by: Action) -> None:
        by(namespace)
        _until(lambda: _is_rolled_out(api.get(web(namespace)).json(), 3))

    def storage_class(name: str, mode: str) -> None:
        body = {"metadata": {"name": name}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}
        _done(api.post("/apis/storage.k8s.io/v1/storageclasses", json=body))

    taking = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 3}}
    take = patch(web, "other", taking, APPLY, force="true")
    rescale = patch(lambda ns: f"{web(ns)}/scale", "kubectl", {"spec": {"replicas": 3}})
    drift = patch(lambda ns: f"{config_maps(ns)}/cm", "kubectl-patch", {"data": {"k": "drift", "extra": "e"}})
    both = "StorageClass c24-wffc (WaitForFirstConsumer) and c24-imm (Immediate), without a provisioner"

    def remove_web(namespace: str) -> None:
        _done(api.request("DELETE", web(namespace), json={"propagationPolicy": "Background"}))
        _until(lambda: api.get(web(namespace)).status_code == 404)

    def two_classes(_: str) -> None:
        storage_class("c24-wffc", "WaitForFirstConsumer")
        storage_class("c24-imm", "Immediate")

    return {
        "create configmap cm outside Pulumi": create("cm", "other"),
        "create configmap there outside Pulumi": create("there", "v"),
        "delete configmap cm": delete("cm"),
        "delete configmap gone": delete("gone"),
        "delete deployment web": remove_web,
        'manager "other" takes spec.replicas=3 by forced server-side apply': lambda ns: scale(ns, take),
        "patch configmap cm: k=drift, extra=e": drift,
        "scale deployment web to 3": lambda ns: scale(ns, rescale),
        "add label by=hand to deployment web": patch(web, "kubectl-label", {"metadata": {"labels": {"by": "hand"}}}),
        "check that configmaps cm and gone exist": lambda _: None,
        "check that configmap keep is still there": lambda ns: _done(api.get(f"{config_maps(ns)}/keep")),
        both: two_classes,
        "StorageClass c35-imm (Immediate), without a provisioner": lambda _: storage_class("c35-imm", "Immediate"),
    }


def _done(response: httpx2.Response) -> None:
    assert response.is_success, response.text


def _is_rolled_out(deployment: dict[str, Any], replicas: int) -> bool:
    seen = deployment["status"].get("observedGeneration") == deployment["metadata"]["generation"]
    return seen and deployment["status"].get("availableReplicas") == replicas
