from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes_api import ApiServer
from kubernetes_control_plane import ControlPlane
from llmd_oke.cli.main import app
from llmd_oke.operations.locks import until
from typer.testing import CliRunner

pytestmark = pytest.mark.rehearsal

PROJECT = Path(__file__).resolve().parents[3]
Ask = Callable[..., int]
SECRETS, CONFIG_MAPS = "/api/v1/secrets", "/api/v1/namespaces/default/configmaps"
PODS, ROLES = "/api/v1/pods", "/apis/rbac.authorization.k8s.io/v1/clusterroles"


@pytest.fixture
def ask(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """Ask as a member of the group of an identity, whose objects were applied; return the status of the answer."""
    identity = str(request.param)
    group = f"ocid1.group.oc1..{identity}"
    words = ["--stack", "reference", "--project", str(PROJECT), "--group", "ci", "--group-id", group]
    printed = CliRunner().invoke(app, ["pipeline", "rights", identity, *words]).output
    headers = {"Impersonate-User": "ocid1.user.oc1..robot", "Impersonate-Group": group}
    with control_plane.client() as client:
        server = ApiServer(client)
        for manifest in yaml.safe_load_all(printed):
            server.apply(manifest)

        def status(method: str, path: str) -> int:
            body = {"metadata": {"name": "made-by-a-robot"}} if method == "POST" else None
            return client.request(method, path, json=body, headers=headers).status_code

        # The API server goes by new roles as soon as it has read them itself.
        assert until(lambda: status("GET", PODS) == 200, 30)
        yield status


@pytest.mark.parametrize("ask", ["preview"], indirect=True)
def test_the_pipelines_preview_identity_reads_objects_but_no_secret_and_changes_none(ask: Ask):
    assert [ask("GET", path) for path in (CONFIG_MAPS, PODS, ROLES)] == [200, 200, 200]
    assert ask("GET", SECRETS) == 403
    assert [ask("POST", path) for path in (CONFIG_MAPS, SECRETS.replace("v1/", "v1/namespaces/default/"))] == [403, 403]


@pytest.mark.parametrize("ask", ["drift"], indirect=True)
def test_the_pipelines_drift_identity_reads_objects_and_secrets_and_changes_none(ask: Ask):
    assert [ask("GET", path) for path in (CONFIG_MAPS, PODS, ROLES, SECRETS)] == [200, 200, 200, 200]
    assert [ask("POST", CONFIG_MAPS), ask("DELETE", f"{CONFIG_MAPS}/kube-root-ca.crt")] == [403, 403]


@pytest.mark.parametrize("ask", ["drift", "preview"], indirect=True)
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/default/pods/any/exec?command=id",
        "/api/v1/namespaces/default/pods/any/attach",
        "/api/v1/namespaces/default/pods/any/portforward",
        "/api/v1/namespaces/default/pods/any/proxy/",
        "/api/v1/namespaces/default/services/kubernetes/proxy/",
        "/api/v1/nodes/any/proxy/pods",
    ],
)
def test_read_only_identities_may_not_exec_into_pods_or_call_kubelets(ask: Ask, path: str):
    assert ask("GET", path) == 403
