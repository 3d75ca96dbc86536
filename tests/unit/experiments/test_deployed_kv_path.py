"""Paths of KV cache as an operation. Not run on hardware."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from lightkube.codecs import from_dict
from llmd_oke import planning
from llmd_oke.cli import main as cli
from llmd_pods.errors import KitError
from llmd_pods.kv_path import SideReport, Timings, TransferTimes, from_json
from llmd_pods.progress import SilentProgress
from llmd_tuner.experiments.deployed import kv_path
from llmd_tuner.experiments.deployed.jobs import Content
from typer.testing import CliRunner

PROJECT = Path(__file__).parents[3]
COMMAND = ["kv-path", "--stack", "guide", "--project", str(PROJECT)]


@pytest.fixture(name="plan", scope="module")
def plan_fixture():
    return planning.plan_stack_file(PROJECT, "guide")


def pod(name, node):
    return from_dict(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [], "nodeName": node}}
    )


class Client:
    """A cluster whose servers are on some nodes."""

    def __init__(self, **nodes):
        self.nodes = nodes

    def list(self, _kind, *, namespace, labels):
        assert namespace == "llm-d"
        return [pod(str(place), node) for place, node in enumerate(self.nodes[labels["llm-d.ai/role"]])]


@pytest.fixture(name="cluster")
def cluster_fixture(monkeypatch):
    def use(client):
        access = type("Access", (), {"client": client})
        monkeypatch.setattr(kv_path, "ClusterAccess", lambda _context: access())

    return use


@pytest.fixture(name="pods")
def pods_fixture(monkeypatch, cluster):
    """Pods that find 40 GB/s, carried by their ports."""
    cluster(None)
    started = []

    def config_map(_jobs, _place, name):
        request = started[-1]
        moved = 23 * sum(item.length_bytes for item in request.transfers)
        timed = tuple(
            TransferTimes(transfer=item, seconds=(item.length_bytes / 40e9,) * request.repeats)
            for item in request.transfers
        )
        side = "decode" if name.endswith("decode") else "prefill"
        report = SideReport(
            side=side,
            node=f"node-{side}",
            package="rixl",
            before={"mlx5_3/1/counters/port_rcv_data": 0},
            after={"mlx5_3/1/counters/port_rcv_data": moved // 4},
            timings=Timings(first_s=4.0, timed=timed) if side == "decode" else None,
        )
        return Content({}, {"json": report.model_dump_json()})

    @contextlib.contextmanager
    def running(_jobs, manifest, others):
        objects = others("uid")
        data = next(item["data"] for item in objects if item["kind"] == "ConfigMap")
        started.append(from_json(data["request.json"]))
        yield "uid"

    monkeypatch.setattr(kv_path.KvPathJobs, "running", running)
    monkeypatch.setattr(kv_path.KvPathJobs, "config_map", config_map)
    for name in ("await_pods", "await_end"):
        monkeypatch.setattr(kv_path.KvPathJobs, name, lambda *_: None)
    return started


def test_each_pair_has_a_job_of_its_own(plan, pods):
    paths = list(kv_path.measure(plan, plan.models[0], [("a", "b"), ("a", "c")], SilentProgress()))
    assert len({request.job for request in pods}) == 2
    assert {round(figure.gb_per_s, 3) for path in paths for figure in path.figures} == {40.0}
    assert {path.verdict for path in paths} == {"carried by RDMA ports"}


def test_pairs_of_servers_are_those_on_different_nodes(plan, cluster):
    cluster(Client(prefill=["a", "a", "b"], decode=["b", "c"]))
    assert kv_path.server_pairs(plan, plan.models[0]) == [("a", "b"), ("a", "c"), ("b", "c")]


def test_servers_of_one_node_have_no_path_over_the_network(plan, cluster):
    cluster(Client(prefill=["a"], decode=["a"]))
    with pytest.raises(KitError, match="no prefill and decode servers on different nodes"):
        kv_path.server_pairs(plan, plan.models[0])


def test_a_stack_without_rdma_is_refused(plan):
    with pytest.raises(KitError, match="no RDMA"):
        kv_path.manifests(replace(plan, rdma=False), plan.models[0], ())


def test_a_dry_run_prints_all_manifests():
    result = CliRunner().invoke(cli.app, [*COMMAND, "--nodes", "a,b", "--dry-run"])
    job, *others = yaml.safe_load_all(result.stdout)
    assert job["kind"] == "Job"
    assert {item["kind"] for item in others} == {"ServiceAccount", "Role", "RoleBinding", "ConfigMap"}


def test_a_dry_run_as_json_is_json():
    result = CliRunner().invoke(cli.app, [*COMMAND, "--nodes", "a,b", "--dry-run", "--json"])
    assert json.loads(result.stdout)[0]["kind"] == "Job"


def test_a_dry_run_of_servers_is_of_their_first_pair(cluster):
    cluster(Client(prefill=["a"], decode=["b", "c"]))
    job, *_ = yaml.safe_load_all(CliRunner().invoke(cli.app, [*COMMAND, "--servers", "--dry-run"]).stdout)
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["a"], ["b"]]


def test_pieces_are_those_of_the_stacks_own_release_and_blocks(plan):
    (_, pieces, *_) = kv_path.request_of(plan, replace(plan.models[0], block_size=64)).transfers
    assert plan.release.name == "llm-d-0.9.0"
    assert pieces.descriptor_bytes == 131_072


def test_a_model_that_the_stack_has_not_is_told_with_the_options_name():
    result = CliRunner().invoke(cli.app, [*COMMAND, "--name", "other"])
    assert "Give --name, one of: " in str(result.exception)


def test_the_command_shows_rates_beside_rccl_and_keeps_them(pods, tmp_path):
    result = CliRunner().invoke(cli.app, [*COMMAND, "--reports", str(tmp_path)], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.exception
    assert "has not been run on hardware yet" in result.stderr.replace("\n", " ")
    assert "carried by RDMA ports" in result.stdout
    assert "44.5 GB/s for each port in a published RCCL all-reduce" in result.stdout
    (file,) = (tmp_path / "guide" / "kv-path").iterdir()
    kept = json.loads(file.read_text())
    assert kept["paths"][0]["figures"][0]["gb_per_s"] == pytest.approx(40.0)
    assert kept["rccl_published"] == {"busbw_gb_per_s": 356.0, "ports": 8}


def test_paths_are_kept_when_a_later_one_fails(pods, tmp_path, monkeypatch):
    def failing(jobs, *arguments):
        if pods:
            raise KitError("Job kv-path-x failed")
        return measured(jobs, *arguments)

    measured = kv_path.KvPathJobs.measure
    monkeypatch.setattr(kv_path.KvPathJobs, "measure", failing)
    options = ["--nodes", "a,b", "--nodes", "a,c", "--reports", str(tmp_path)]
    failed = str(CliRunner().invoke(cli.app, [*COMMAND, *options]).exception)
    assert "kv-path-x failed" in failed
    (file,) = (tmp_path / "guide" / "kv-path").iterdir()
    assert len(json.loads(file.read_text())["paths"]) == 1
    assert f"The paths that were measured before are in {file}." in failed


@pytest.mark.parametrize("nodes", ["a", "a,a", "a,b,c", "a,"])
def test_what_is_no_pair_is_refused(nodes):
    result = CliRunner().invoke(cli.app, [*COMMAND, "--nodes", nodes])
    assert "is no pair of nodes" in str(result.exception)
