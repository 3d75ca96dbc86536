import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubernetes_api import ApiServer, need_definitions
from kubernetes_control_plane import ControlPlane
from kubernetes_engine import attached_engine
from llmd_oke.gitops import rendering
from llmd_oke.gitops.manifests import files, stream
from llmd_oke.program import program as kit_program
from pulumi import automation
from pulumi_engine import new_stack
from stack_files import model, stack, write
from test_engine import player_with_gpus

pytestmark = [pytest.mark.rehearsal, pytest.mark.engine]

Objects = dict[tuple[str, str, str], dict[str, Any]]

CONFIG = stack(
    model("2p-tp1-1d-tp2"),
    model("agg-tp1-2r", name="plain", router={"mode": "none"}),
    nodes=1,
    rdma="none",
    namespace="rendered",
    storage={"modelCache": {"kind": "node-disk"}},
)

_DIGEST = re.compile("-[0-9a-f]{8}$")
_OF_SERVERS = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
_OF_JOBS = ("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name")
_OF_CONTROLLERS = ("pulumi.com/", "deployment.kubernetes.io/", "deprecated.daemonset.", "kubectl.kubernetes.io/")


@pytest.fixture(scope="module")
def api_server(control_plane: ControlPlane) -> Iterator[ApiServer]:
    need_definitions(CONFIG["release"])
    with control_plane.client() as client:
        player_with_gpus(client)
        yield ApiServer(client)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> rendering.Rendering:
    project = tmp_path_factory.mktemp("project")
    write(project, "rendered", CONFIG)
    return rendering.render(project, "rendered")


@pytest.fixture(scope="module")
def deployed(
    control_plane: ControlPlane,
    api_server: ApiServer,
    rendered: rendering.Rendering,
    tmp_path_factory: pytest.TempPathFactory,
) -> Objects:
    """Return what the cluster has after an update by the engine, which is then undone."""
    folder = tmp_path_factory.mktemp("engine")
    with attached_engine(folder), pytest.MonkeyPatch.context() as environment:
        environment.setenv("KUBECONFIG", str(control_plane.kubeconfig))
        engine = new_stack(kit_program, automation.LocalWorkspaceOptions(str(folder)), "rendered")
        engine.set_config("llmd-oke:stack", automation.ConfigValue(json.dumps(CONFIG)))
        engine.set_config("llmd-oke:rehearsed", automation.ConfigValue("true"))
        engine.up()
        objects = dict(_live(api_server, rendered))
        engine.destroy()
    return objects


def _live(api_server: ApiServer, rendered: rendering.Rendering) -> Iterator[tuple[tuple[str, str, str], Any]]:
    """Return what the server has of each rendered object; of a Job the one that has the name without a digest."""
    for item in rendered.objects:
        manifest = dict(item.manifest)
        live = api_server.get(manifest) or (_job(api_server, manifest) if item.kind == "Job" else None)
        if live is not None:
            yield (item.kind, item.namespace or "", item.name), normal(live)


def _job(api_server: ApiServer, manifest: dict[str, Any]) -> dict[str, Any] | None:
    name, folder = _DIGEST.sub("", manifest["metadata"]["name"]), api_server.path(manifest).rpartition("/")[0]
    jobs = api_server.client.get(folder).raise_for_status().json()["items"]
    kind = {"apiVersion": "batch/v1", "kind": "Job"}
    return next(
        ({**kind, **job} for job in jobs if name in {own := job["metadata"]["name"], _DIGEST.sub("", own)}), None
    )


def normal(value: Any) -> Any:
    """An object without what the server, controllers and Pulumi write into it, and without a Job's name."""
    if isinstance(value, list):
        return [normal(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: normal(part)
        for key, part in value.items()
        if key not in {"status", "clusterIP", "clusterIPs", *_OF_SERVERS, *_OF_JOBS}
        and not key.startswith(_OF_CONTROLLERS)
    }
    if kept.get("kind") == "Job":
        kept["metadata"].pop("name")
    if kept.get("annotations") == {}:
        kept.pop("annotations")
    return kept


@pytest.fixture(scope="module")
def applied(api_server: ApiServer, rendered: rendering.Rendering, deployed: Objects) -> Iterator[Objects]:
    """Return what the cluster has after the rendered files were applied one after the other."""
    assert deployed
    documents = list(yaml.safe_load_all(stream(rendered)))
    for document in documents:
        api_server.apply(document)
    yield dict(_live(api_server, rendered))
    for document in (document for document in reversed(documents) if document["kind"] != "CustomResourceDefinition"):
        api_server.client.request("DELETE", api_server.path(document), json={"propagationPolicy": "Background"})


def test_the_api_server_accepts_rendered_gitops_files_in_their_order(
    applied: Objects, rendered: rendering.Rendering
) -> None:
    assert len(applied) == len(rendered.objects) == len(files(rendered)) - 1


def test_gitops_files_create_the_same_objects_as_an_update_by_pulumi(applied: Objects, deployed: Objects) -> None:
    assert deployed.keys() == applied.keys()
    assert [key for key in deployed if deployed[key] != applied[key]] == []


def test_the_comparison_of_gitops_objects_with_pulumis_objects_detects_a_difference(applied: Objects) -> None:
    (key,) = [key for key in applied if key[0] == "Deployment" and key[2].endswith("-prefill")]
    changed = json.loads(json.dumps(applied[key]))
    changed["spec"]["replicas"] += 1
    assert normal(changed) != applied[key]
