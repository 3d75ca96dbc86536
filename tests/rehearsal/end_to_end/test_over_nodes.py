"""Servers over nodes: groups of pods by the real controller of LeaderWorkerSets, which the stack installs by its chart,
experts that exchange tokens by MoRI, and a node of a group that dies.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_bench.deployment import Parallelism
from llmd_bench.files import read_rows
from llmd_tuner.measurements import parallelism_of
from test_rollouts import Load
from user_project import TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

HERE = Path(__file__).parent
STACK, DEAD = "groups", "mi300x-3"
ALONE = "alone"
TOGETHER, APART = "1p-tp1dp16ep-1d-tp1dp16ep", "agg-tp1dp16ep-2r"
REHEARSE = ("rehearse", "--stack", STACK, "--json", "--time-scale", TIME_SCALE)
NODE_CONTROL = "http://127.0.0.1:9304/nodes"
LIMIT_S = 300
OWN_IMAGE = "docker.io/rocm/vllm:wide-ep"
MORI = {
    "gpuMemoryUtilization": 0.8,
    "prefill": {"all2AllBackend": "mori_high_throughput"},
    "decode": {"all2AllBackend": "mori_low_latency"},
}
MOST_REFUSED_S = 90
"""Within this, pods of sets are admitted again after the authority of the webhooks was made anew: what kubelets take to
bring a changed Secret to a pod's files.
"""

KNOWN_S = 20
"""Within this, Envoy and the endpoint picker send nothing to the pods of a group any more of which one is gone."""


@pytest.fixture(scope="module")
def rehearsed(project: Project) -> Ended:
    models = [model(topology=APART), model(model="deepseek-r1", topology=TOGETHER, name="deepseek", engine=MORI)]
    pools = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 9}]
    own = {"release": "llm-d-0.10.0", "override": {"vllmImage": OWN_IMAGE}, "leaderWorkerSets": "install"}
    project.write(STACK, models=models, gpuPools=pools, **own)
    return project.command(*REHEARSE)


@pytest.fixture(scope="module")
def smoke(rehearsed: Ended) -> dict[str, dict[str, Any]]:
    """The summary of each model's benchmark, by its topology."""
    assert rehearsed.status == 0, rehearsed.errors
    return {summary["topology"]: summary for summary in rehearsed.document["smoke"]}


def test_servers_that_span_two_nodes_pass_their_benchmarks(smoke: dict[str, dict[str, Any]]):
    assert {name: summary["passed"] for name, summary in smoke.items()} == {APART: True, TOGETHER: True}


def test_prompts_go_from_prefill_to_decode_servers_that_span_nodes(smoke: dict[str, dict[str, Any]]):
    assert smoke[TOGETHER]["remote_prefill"]["share"] == pytest.approx(1.0)


def test_tune_run_measures_a_server_of_two_nodes_and_its_rows_say_two_nodes(project: Project):
    pools = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}]
    project.write(ALONE, models=[model(model="deepseek-v3", topology="agg-tp8ep-1r")], gpuPools=pools)
    words = ("--rehearse", "--size", "tp1dp16ep", "--max-num-seqs", "4", "--workload", "512/8")
    ended = project.command("tune", "run", "--stack", ALONE, *words)
    assert ended.status == 0, ended.errors
    rows = read_rows(project.folder / "reports" / ALONE / "tuning" / "rows.jsonl")
    assert {row.subject for row in rows} == {"prefill", "decode"}
    assert {parallelism_of(row) for row in rows} == {Parallelism(1, 16, expert_parallel=True, nodes=2)}


@dataclass(frozen=True)
class Inside:
    """Commands inside the rehearsal's cluster."""

    project: Project

    def argv(self, *command: str) -> list[str]:
        return [sys.executable, "-m", "llmd_oke", "rehearse", "run", "--stack", STACK, "--", *command]

    def run(self, *command: str) -> str:
        done = self.project.command(*self.argv(*command)[3:])
        assert done.status == 0, done.errors
        return done.output

    def until_ready(self, count: int) -> None:
        """Look at the status of the separate servers, each time for some seconds, until so many are ready."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            done = self.project.command(*self.argv("llmd-oke", "status", "--stack", STACK, "--json")[3:])
            (servers,) = (item for item in json.loads(done.output)["servers"] if item["name"].endswith("-aggregated"))
            if servers["ready"] == count:
                return
            assert time.monotonic() < deadline_s, servers

    def change_node(self, name: str, method: str, change: str = "") -> None:
        self.run("curl", "-sSf", "-X", method, f"{NODE_CONTROL}/{name}{change}")

    @contextmanager
    def load(self, requests_per_s: float, end: Path) -> Iterator[list[dict[str, Any]]]:
        """Requests to the model of separate servers while the block runs; the rows are there after it."""
        rows: list[dict[str, Any]] = []
        address = "http://gpt-oss-120b.llm-d.svc.cluster.local"
        script = (sys.executable, str(HERE / "rollout_load.py"), address, str(requests_per_s), str(end))
        with subprocess.Popen(
            self.argv(*script), env=self.project.environment(), stdout=subprocess.PIPE, text=True
        ) as sending:
            try:
                yield rows
            finally:
                end.touch()
                output, _ = sending.communicate(timeout=300)
        rows += [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_no_request_fails_while_certificates_of_the_controllers_webhooks_are_rotated(
    project: Project, rehearsed: Ended, tmp_path: Path
):
    assert rehearsed.status == 0, rehearsed.errors
    inside = Inside(project)
    with inside.load(4, tmp_path / "end") as rows:
        inside.until_ready(2)
        told = json.loads(inside.run(sys.executable, str(HERE / "webhook_rotation.py"), OWN_IMAGE))
        inside.until_ready(2)
    print(json.dumps(told))
    load = Load(rows)
    print(len(load.rows), len(load.failures), round(load.longest_gap_s, 1))
    assert load.rows
    assert load.failures == []
    assert told["server"]["refused"] == 0
    assert told["server"]["admitted"] > 0
    assert told["authority"]["refused_for_s"] < MOST_REFUSED_S


@dataclass(frozen=True)
class Loss:
    """Outcomes of requests while a node died: moments in seconds since the first of them."""

    rows: list[dict[str, Any]]
    died_s: float
    whole_s: float

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["failure"]]


@pytest.fixture(scope="module")
def loss(project: Project, rehearsed: Ended, tmp_path_factory: pytest.TempPathFactory) -> Loss:
    assert rehearsed.status == 0, rehearsed.errors
    inside = Inside(project)
    started_s = time.monotonic()
    with inside.load(4, tmp_path_factory.mktemp("load") / "end") as rows:
        inside.until_ready(2)
        inside.change_node(DEAD, "POST", "/stop")
        died_s = time.monotonic() - started_s
        inside.until_ready(1)
        inside.change_node(DEAD, "DELETE")  # as the cloud takes a node away whose instance is terminated
        inside.until_ready(2)
        whole_s = time.monotonic() - started_s
        inside.until_ready(2)
    return Loss(rows, died_s, whole_s)


def test_a_server_that_loses_one_of_its_nodes_restarts_on_another_node(loss: Loss):
    print(f"whole again after {loss.whole_s - loss.died_s:.0f} s")
    assert loss.whole_s > loss.died_s


def test_requests_fail_only_until_the_loss_of_a_node_is_detected(loss: Loss):
    late = [row for row in loss.failed if row["sent_s"] > loss.died_s + KNOWN_S]
    print(len(loss.rows), len(loss.failed), [(row["sent_s"], row["ended_s"], row["failure"]) for row in loss.failed])
    assert loss.rows
    assert late == []
