"""A deployment of llm-d's guide that a stack takes over while requests flow: beside it, then instead of it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import guide_objects
import pytest
import yaml
from llmd_oke.catalogue.releases import crd_manifests, default_release
from llmd_oke.values import read_yaml
from llmd_rehearsal.inventory import BEHIND_GATEWAY
from llmd_rehearsal.programs import locate
from terraform_states_for_tests import POOL, guide_deployment, objects, state
from test_losses import tell
from test_rollouts import Load
from user_project import ROOT, Project

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "adopted"
BEHIND = "adopted-behind"
NEW = "http://gpt-oss-120b.llmd-oke.svc.cluster.local"
CHART = ROOT / "tests" / "render" / "charts" / "gaie-standalone-v1.4.0.yaml"
"""The chart of the endpoint picker that a rehearsal runs."""
IMAGE, SIDECAR = "ghcr.io/llm-d/llm-d-rocm:v0.6.0", "ghcr.io/llm-d/llm-d-routing-sidecar:v0.7.1"
REQUESTS_PER_S = 3
EACH = 40
"""Requests that an address has answered before the next step."""
MOST_GAP_S = 10.0
LIMIT_S = 240

PODS = """
import json
from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Pod
pods = Client(KubeConfig.from_env(), trust_env=False).list(Pod, namespace="llm-d")
restarts = {pod.metadata.uid: sum(item.restartCount for item in pod.status.containerStatuses) for pod in pods}
print(json.dumps(restarts, sort_keys=True))
"""
DELETE = """
import sys
from lightkube import Client, KubeConfig
from lightkube.resources.apps_v1 import Deployment
for name in sys.argv[1:]:
    Client(KubeConfig.from_env(), trust_env=False).delete(Deployment, name, namespace="llm-d")
"""
GATEWAY = {
    "mode": "existing",
    "provider": "istio",
    "name": "shared",
    "namespace": "gateways",
    "uncheckedRequests": "accepted",
}
SHARED = "http://shared.envoy-gateway-system.svc.cluster.local"
ROUTE = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": {"name": "pd-disaggregation", "namespace": guide_objects.NAMESPACE},
    "spec": {
        "parentRefs": [{"name": "shared", "namespace": "gateways"}],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "backendRefs": [
                    {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "gpt-oss-120b"}
                ],
            }
        ],
    },
}
"""The guide's route (llm-d at 340cdaa0, guides/recipes/gateway): every path, to its InferencePool."""


@dataclass
class Adoption:
    """A stack in a cluster where a guide's deployment serves, and the requests that flow meanwhile."""

    project: Project
    stack: str
    folder: Path
    load: Load = field(default_factory=Load)

    @property
    def servers(self) -> list[dict[str, Any]]:
        """The guide's Deployments."""
        return [guide_deployment(role, 1, 1) for role in ("prefill", "decode")]

    def write(self, name: str, document: object) -> str:
        """Write a file of the test as a whole; return its path."""
        file = self.folder / name
        file.with_suffix(".new").write_text(json.dumps(document))
        return str(file.with_suffix(".new").replace(file))

    def adopt(self, *routes: Mapping[str, Any], **changes: Any) -> list[str]:
        """Have the stack file written, with a shorter benchmark and other changes; return the steps that are shown."""
        state_file = self.write("state.json", state())
        objects_file = self.write("objects.json", objects(*self.servers, *map(dict, routes)))
        adopted = self.project.command("adopt", state_file, "--stack", self.stack, "--objects", objects_file)
        assert adopted.status == 0, adopted.errors
        self.change(smoke={"requests": 8, "concurrency": 2}, **changes)
        return adopted.output.splitlines()

    def change(self, router: Mapping[str, Any] | None = None, **changes: Any) -> None:
        """Change keys of the stack file, and the router of its model."""
        file = self.project.folder / "stacks" / f"Pulumi.{self.stack}.yaml"
        stack = read_yaml(file)["config"]["llmd-oke:stack"]
        if router is not None:
            stack["models"][0]["router"] = dict(router)
        file.write_text(yaml.safe_dump({"config": {"llmd-oke:stack": {**stack, **changes}}}))

    def serve_by_guide(self, address: str, *routes: Mapping[str, Any]) -> None:
        """Start the local cluster with nothing of the stack in it, and deploy what the guide does, until an address
        answers.
        """
        empty = self.project.command("rehearse", "preview", "--stack", self.stack)
        assert empty.status == 0, empty.errors
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": guide_objects.NAMESPACE}}
        whole = [guide_objects.servers(item, IMAGE, SIDECAR) for item in self.servers]
        definitions = crd_manifests(default_release().crds)
        file = self.write("all.json", [*definitions, space, *guide_objects.router(CHART), *routes, *whole])
        self.inside(guide_objects.__file__, file)
        asking = ("--retry", "120", "--retry-delay", "1", "--retry-all-errors", "-sSf", f"{address}/v1/models")
        self.project.inside(self.stack, "curl", *asking)

    def inside(self, *command: str) -> str:
        """Run Python inside of the local cluster; return its output."""
        return self.project.inside(self.stack, sys.executable, *command).output

    def deploy(self) -> None:
        """Deploy the stack; assert that no pod of the guide's has restarted or been replaced."""
        before = self.inside("-c", PODS)
        up = self.project.command("rehearse", "--stack", self.stack, "--json")  # as for the preview: no other cluster
        assert up.status == 0, up.errors
        assert self.inside("-c", PODS) == before

    def delete_guides_servers(self) -> None:
        """Delete the guide's servers, as the last step says."""
        self.inside("-c", DELETE, *(item["metadata"]["name"] for item in self.servers))

    def ask(self, *addresses: str) -> None:
        """Have clients ask these addresses in turn, and wait for answers of the last one."""
        self.write("addresses.json", addresses)
        self.await_answers(addresses[-1])

    def await_answers(self, address: str) -> None:
        """Wait until an address has answered some more requests."""
        wanted, end_s = self.answered(address) + EACH, time.monotonic() + LIMIT_S
        while self.answered(address) < wanted:
            assert time.monotonic() < end_s, f"{address}: {(self.folder / 'rows').read_text()[-2000:]}"
            time.sleep(0.5)

    def answered(self, address: str) -> int:
        """Return how many requests an address has answered so far."""
        lines = (self.folder / "rows").read_text().splitlines()
        known = [json.loads(line) for line in lines if line.endswith("}")]
        return sum(row["address"] == address and row["failure"] is None for row in known)

    @contextmanager
    def flowing(self, drill: str, address: str) -> Iterator[None]:
        """Send requests until the end of the context, and print the row of the drill."""
        self.write("addresses.json", [address])
        rows, end = self.folder / "rows", self.folder / "end"
        words = (str(Path(__file__).with_name("door_load.py")), str(REQUESTS_PER_S))
        files = (str(self.folder / "addresses.json"), str(end))
        own = ("rehearse", "run", "--stack", self.stack, "--", sys.executable, *words, *files)
        argv = [sys.executable, "-m", "llmd_oke", *own]
        with rows.open("w") as output, subprocess.Popen(argv, env=self.project.environment(), stdout=output) as process:
            try:
                self.await_answers(address)
                began_s = time.monotonic()
                yield
            finally:
                end.touch()
                process.wait(180)
        self.load.rows += map(json.loads, rows.read_text().splitlines())
        tell(drill, self.load, began_s)

    def assert_unnoticed(self) -> None:
        """Assert that no request failed and answers never paused for long; end the cluster."""
        assert self.load.failures == []
        assert self.load.longest_gap_s < MOST_GAP_S
        self.project.command("rehearse", "down", "--stack", self.stack)


def test_no_request_fails_while_clients_move_from_a_guides_router_to_a_stack(project: Project, tmp_path: Path):
    adoption = Adoption(project, STACK, tmp_path)
    names = " ".join(item["metadata"]["name"] for item in adoption.servers)
    assert f"kubectl delete deployment {names} --namespace llm-d" in adoption.adopt()[-1]
    adoption.serve_by_guide(guide_objects.ADDRESS)
    with adoption.flowing("a guide's deployment, by clients who change their address", guide_objects.ADDRESS):
        adoption.deploy()
        adoption.ask(guide_objects.ADDRESS, NEW)
        adoption.ask(NEW)
        adoption.delete_guides_servers()
        adoption.await_answers(NEW)
    adoption.assert_unnoticed()


def test_no_request_fails_while_a_gateway_moves_from_a_guides_pool_to_a_stack(project: Project, tmp_path: Path):
    if missing := [name for name in BEHIND_GATEWAY if locate(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: scripts/test builds them")
    adoption = Adoption(project, BEHIND, tmp_path)
    pool = {**POOL, "metadata": {**POOL["metadata"], "name": "gpt-oss-120b"}}
    aside = {"mode": "gateway", "route": {"hosts": ["new.example.com"]}}
    steps = adoption.adopt(pool, ROUTE, router=aside, gateway=GATEWAY)
    assert "2. llm-d/pd-disaggregation: a route of the stack at the same Gateway" in steps[-2]
    adoption.serve_by_guide(SHARED, ROUTE)
    with adoption.flowing("a guide's deployment, by a route of the stack at the same Gateway", SHARED):
        adoption.deploy()
        adoption.await_answers(SHARED)
        adoption.change(router={"mode": "gateway"})
        adoption.deploy()
        adoption.await_answers(SHARED)
        adoption.delete_guides_servers()
        adoption.await_answers(SHARED)
    adoption.assert_unnoticed()
