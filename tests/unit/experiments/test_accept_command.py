"""`llmd-oke accept`: which nodes it tests, what it asks of the cluster, what it shows, and its exit code."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from experiments_for_tests import api_error
from lightkube.codecs import from_dict
from llmd_base.errors import KitError
from llmd_oke.cli.main import app
from llmd_oke.operations import acceptance
from llmd_oke.operations.acceptance import PoolResult
from llmd_oke.operations.jobs import Content
from llmd_pods.acceptance import CheckResult, NodeResult
from stack_files import stack, write
from typer.testing import CliRunner, Result

SOUND = NodeResult("mi300x-0", "1", "passed", "2026-01-02T03:04:05Z", "vllm:1", (CheckResult("gpus", "passed", "8"),))
DEAD = NodeResult("mi300x-1", "2", "failed", "2026-01-02", "vllm:1", (CheckResult("gpus", "failed", "7 of 8 GPUs"),))

Run = Callable[..., Result]


class Cluster:
    """An API server with two nodes, which keeps what is applied and created."""

    def __init__(self, results: list[NodeResult]) -> None:
        self.applied: list[Any] = []
        self.created: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.results = results
        self.deleted: list[tuple[str, str]] = []

    def list(self, kind: type, **_: object) -> list[Any]:
        if kind.__name__ == "Node":
            return [_object("v1", "Node", name) for name in ("mi300x-1", "mi300x-0")]
        rows = [{acceptance.RESULT_KEY: result.to_json()} for result in self.results]
        return [_object("v1", "ConfigMap", f"node-{number}", data=row) for number, row in enumerate(rows)]

    def get(self, kind: type, name: str, namespace: str) -> Any:
        raise api_error(404, f"{kind.__name__} {namespace}/{name} not found")

    def apply(self, manifest: Any, **_: object) -> None:
        self.applied.append(manifest)

    def delete(self, kind: type, name: str, **_: object) -> None:
        self.deleted.append((kind.__name__, name))


def _object(version: str, kind: str, name: str, **fields: object) -> Any:
    return from_dict({"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Instead of the real one; its Jobs end well at once."""
    cluster = Cluster([SOUND])

    class Jobs:
        def __init__(self, *_: object) -> None: ...

        @contextmanager
        def running(self, job: dict[str, Any], others: Callable[[str], list[dict[str, Any]]]) -> Iterator[str]:
            cluster.created.append(job)
            cluster.requests += [json.loads(item["data"]["request.json"]) for item in others("uid")]
            yield "uid"

        def await_end(self, *_: object) -> None: ...

        def config_map(self, *_: object) -> Content:
            return Content({}, {acceptance.REPORT_KEY: json.dumps({"mi300x-1": "it serves"})})

    monkeypatch.setattr(acceptance, "ClusterJobs", Jobs)
    monkeypatch.setattr(acceptance, "ClusterAccess", lambda *_: type("Access", (), {"client": cluster}))
    return cluster


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the command on a stack with one pool."""
    write(tmp_path, "s", stack())
    (tmp_path / "Pulumi.yaml").write_text("name: llmd-oke\nruntime: python\n")
    return lambda *words: CliRunner().invoke(app, ["accept", "-s", "s", "--project", str(tmp_path), *words])


def test_the_accept_command_tests_all_free_nodes_and_prints_their_results(cluster: Cluster, run: Run) -> None:
    ended = run()
    assert ended.exit_code == 0, ended.output
    (asked,) = cluster.requests
    assert (asked["only"], asked["again"], asked["namespace"]) == ([], True, "llmd-oke-acceptance")
    assert "mi300x-0" in ended.output
    assert "passed" in ended.output
    assert "mi300x-1 not tested now: it serves" in ended.output


def test_the_accept_command_tests_the_named_node_alone_and_refuses_an_unknown_one(cluster: Cluster, run: Run) -> None:
    ended = run("--node", "other")
    assert ended.exit_code != 0
    assert "No pool of the stack has a node other" in str(ended.exception)
    assert (cluster.applied, cluster.created) == ([], [])
    assert run("--node", "mi300x-1").exit_code == 0
    assert [asked["only"] for asked in cluster.requests] == [["mi300x-1"]]


def test_the_accept_command_tests_nothing_without_the_secret_for_its_images(
    cluster: Cluster, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "SECRET_LIMIT_S", -1.0)
    write(tmp_path, "s", stack(registryMirror={"prefix": "iad.ocir.io/ns/mirror", "pullSecret": "ocir"}))
    assert "Namespace llmd-oke-acceptance has no Secret ocir" in str(run().exception)
    assert cluster.created == []


def test_an_acceptance_jobs_rights_are_created_before_it_and_deleted_when_it_ends(cluster: Cluster, run: Run):
    run()
    kinds = [type(item).__name__ for item in cluster.applied]
    assert kinds[0] == "Namespace"
    assert {"ServiceAccount", "Role", "ClusterRole", "NetworkPolicy"} <= set(kinds)
    (job,) = cluster.created
    assert job["spec"]["suspend"] is True
    name = job["metadata"]["name"]
    bindings = {type(item).__name__: item.metadata.name for item in cluster.applied if "Binding" in type(item).__name__}
    assert bindings["ClusterRoleBinding"] == f"llmd-oke-{name}"
    rights = [("RoleBinding", name), ("ClusterRoleBinding", f"llmd-oke-{name}"), ("ClusterRole", f"llmd-oke-{name}")]
    assert cluster.deleted == rights


def test_the_accept_command_exits_with_1_and_shows_faults_of_nodes_or_prints_json(cluster: Cluster, run: Run):
    cluster.results = [SOUND, DEAD]
    ended = run()
    assert ended.exit_code == 1
    assert "mi300x-1 gpus: 7 of 8 GPUs" in ended.output
    ended = run("--json")
    assert ended.exit_code == 1
    (pool,) = json.loads(ended.stdout)["pools"]
    assert {result["node"]: result["verdict"] for result in pool["results"]} == {
        "mi300x-0": "passed",
        "mi300x-1": "failed",
    }
    assert pool["untested"] == {"mi300x-1": "it serves"}


def test_a_failed_acceptance_job_is_reported_for_its_pool(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = PoolResult("mi300x", 3, (SOUND,), {}, "Only 1 of 3 nodes passed.")
    monkeypatch.setattr(acceptance, "accept", lambda *_: [outcome])
    ended = run()
    assert ended.exit_code == 1
    assert "Only 1 of 3 nodes passed." in ended.output


def test_the_accept_command_says_that_an_unreachable_clusters_nodes_cannot_be_read(cluster: Cluster, run: Run) -> None:
    def refuse(*_: object, **__: object) -> list[Any]:
        raise httpx2.ConnectError("refused")

    cluster.list = refuse
    ended = run()
    assert isinstance(ended.exception, KitError)
    assert "nodes can't be read" in str(ended.exception)
