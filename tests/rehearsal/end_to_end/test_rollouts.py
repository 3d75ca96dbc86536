"""Other versions and killed servers under a steady load, with servers that take their time to start: what clients see,
and who pairs.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.catalogue.releases import default_release
from llmd_rehearsal.cluster_plan import SIMULATOR_URL
from llmd_rehearsal.programs import locate
from user_project import TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STARTUP_S = 20
SERVERS_WORDS = "KV load failed|Shutting down|startup complete|expired"
"""What the simulated servers say of failures, and when they come and go."""

REQUESTS_PER_S = 2
MAX_ON_THEIR_WAY = 8
LOAD, RESTART = (Path(__file__).with_name(name) for name in ("rollout_load.py", "server_restart.py"))
ADDRESS = "http://gpt-oss-120b.llm-d.svc.cluster.local"
POOLS = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}]
OTHER_BLOCKS = {"topology": "2p-tp1-2d-tp1", "engine": {"blockSize": 64}}
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "image": {"release": "llm-d-0.9.0", "models": [model(topology="2p-tp1-2d-tp1")]},
    "block size": {"release": "llm-d-0.9.0", "models": [model(**OTHER_BLOCKS)]},
    "topology": {"release": "llm-d-0.9.0", "models": [model(engine={"blockSize": 64})]},
    "next release": {"release": "llm-d-0.10.0", "models": [model(topology="2p-tp1-2d-tp1")]},
}

RESIZE = """
import sys, time, lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod
client = lightkube.Client(KubeConfig.from_env(), namespace="llm-d", trust_env=False)
count, limit_s = int(sys.argv[1]), time.monotonic() + 120
role = "llm-d.ai/role"
names = [item.metadata.name for item in client.list(Deployment) if role in (item.metadata.labels or {})]
for name in names:
    client.patch(Deployment, name, {"spec": {"replicas": count}})
def settled():
    pods = [pod for pod in client.list(Pod) if role in (pod.metadata.labels or {})]
    ready = [client.get(Deployment, name).status.readyReplicas == count for name in names]
    return len(pods) == len(names) * count and all(ready)
while not settled():
    assert time.monotonic() < limit_s, "the servers are not as many as asked for"
    time.sleep(0.5)
"""
"""Gives each role another number of servers, as the HPA controller does, and waits until there are so many."""


@dataclass
class Load:
    """Outcomes of the requests during a change."""

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def failures(self) -> list[str]:
        return [row["failure"] for row in self.rows if row["failure"]]

    @property
    def longest_gap_s(self) -> float:
        """The longest time without an answer."""
        ended = sorted(row["ended_s"] for row in self.rows if not row["failure"])
        return max(after - before for before, after in pairwise(ended))


@contextmanager
def loaded(project: Project, stack: str, folder: Path) -> Iterator[Load]:
    """A steady load from inside the local cluster."""
    load, end, output = Load(), folder / "end", folder / "rows"
    own = [sys.executable, str(LOAD), ADDRESS, str(REQUESTS_PER_S), str(end)]
    argv = [sys.executable, "-m", "llmd_oke", "rehearse", "run", "--stack", stack, "--", *own]
    with (
        output.open("w") as rows,
        subprocess.Popen(argv, env=project.environment(), stdout=rows, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield load
        finally:
            end.touch()
            process.wait(180)
    load.rows += map(json.loads, output.read_text().splitlines())
    if load.failures:
        log = project.folder / ".rehearsal" / stack / "logs" / "vllm.log"
        print("\n".join(line for line in log.read_text().splitlines() if re.search(SERVERS_WORDS, line)))


REHEARSE = ("rehearse", "--time-scale", TIME_SCALE, "--no-benchmark", "--json")


def rehearse(project: Project, stack: str, startup_s: int = STARTUP_S) -> Ended:
    return project.command(*REHEARSE, "--startup-seconds", str(startup_s), "--stack", stack)


def pairings(project: Project, stack: str) -> list[dict[str, Any]]:
    """Return which servers paired, with how many pulls."""
    return json.loads(project.inside(stack, "curl", "-s", f"{SIMULATOR_URL}/pairings").output)


def restart(project: Project, stack: str, how: str) -> dict[str, int]:
    """Kill prefill servers, each in turn; return how often containers restarted, by role."""
    return project.inside(stack, sys.executable, str(RESTART), how, SIMULATOR_URL).document


def roll_out(project: Project, change: str, folder: Path) -> Load:
    """Another version, while requests flow."""
    project.write("rollouts", gpuPools=POOLS, **CHANGES[change])
    with loaded(project, "rollouts", folder) as load:
        changed = rehearse(project, "rollouts")
    assert changed.status == 0, changed.errors
    print(f"{change}: {len(load.rows)} requests, {len(load.failures)} failed, gap {load.longest_gap_s:.1f} s")
    return load


def assert_unnoticed(load: Load) -> None:
    """No request failed, and answers did not wait for a start."""
    assert len(load.rows) > STARTUP_S * REQUESTS_PER_S
    assert load.failures == []
    assert load.longest_gap_s < STARTUP_S / 2


def assert_own_pairs(project: Project, versions: int) -> None:
    """Assert that only servers of one version ever paired."""
    paired = pairings(project, "rollouts")
    assert len(paired) == versions
    assert all(pair["prefill"] == pair["decode"] for pair in paired)


@pytest.fixture(scope="module")
def rollouts(project: Project) -> None:
    """A model of an earlier release; two nodes have room for all servers twice."""
    project.write("rollouts", gpuPools=POOLS, **{**CHANGES["image"], "release": "llm-d-0.7.0"})
    created = rehearse(project, "rollouts")
    assert created.status == 0, created.errors


@pytest.mark.usefixtures("rollouts")
@pytest.mark.nightly
@pytest.mark.parametrize(("how", "restarts"), [("container", {"prefill": 2}), ("pod", {})])
def test_a_killed_prefill_server_loses_only_requests_in_flight_to_it(
    project: Project, tmp_path: Path, how: str, restarts: dict[str, int]
) -> None:
    """Each in turn; decode servers run on."""
    with loaded(project, "rollouts", tmp_path) as load:
        counted = restart(project, "rollouts", how)
    failed, gap_s = len(load.failures), load.longest_gap_s
    print(f"{how}: {len(load.rows)} requests, {failed} failed, {gap_s:.1f} s without an answer, {counted}")
    assert len(load.rows) > STARTUP_S * REQUESTS_PER_S
    assert failed <= MAX_ON_THEIR_WAY, load.failures
    assert gap_s < STARTUP_S
    assert counted == restarts


@pytest.mark.usefixtures("rollouts")
def test_no_request_fails_during_an_update_to_another_image(project: Project, tmp_path: Path):
    assert_unnoticed(roll_out(project, "image", tmp_path))
    assert_own_pairs(project, 2)


def resize(project: Project, servers: int) -> None:
    """Give the model as many prefill as decode servers."""
    project.inside("rollouts", sys.executable, "-c", RESIZE, str(servers))


@pytest.mark.nightly
@pytest.mark.usefixtures("rollouts")
def test_no_request_fails_while_servers_are_added_and_removed(project: Project, tmp_path: Path):
    """Prefill and decode servers at once, as scaling by load takes them: they drain before they end."""
    with loaded(project, "rollouts", tmp_path) as load:
        resize(project, 1)
        resize(project, 2)
    print(f"taken away: {len(load.rows)} requests, {len(load.failures)} failed, gap {load.longest_gap_s:.1f} s")
    assert_unnoticed(load)


@pytest.mark.nightly
@pytest.mark.usefixtures("rollouts")
def test_no_request_fails_during_updates_of_block_size_and_topology(project: Project, tmp_path: Path):
    for change in ("block size", "topology"):
        (tmp_path / change).mkdir()
        assert_unnoticed(roll_out(project, change, tmp_path / change))
    assert_own_pairs(project, 2)  # a change of topology is none of version


@pytest.mark.nightly
@pytest.mark.usefixtures("rollouts")
def test_an_interrupted_update_can_be_reverted_without_an_outage(project: Project, tmp_path: Path):
    with loaded(project, "rollouts", tmp_path) as load:
        project.write("rollouts", gpuPools=POOLS, release="llm-d-0.9.0", models=[model(engine={"blockSize": 32})])
        own = (*REHEARSE, "--startup-seconds", str(STARTUP_S), "--stack", "rollouts")
        argv = [sys.executable, "-m", "llmd_oke", *own]
        with subprocess.Popen(argv, env=project.environment(saves_steps=True), stdout=subprocess.DEVNULL) as begun:
            with pytest.raises(subprocess.TimeoutExpired):
                begun.wait(STARTUP_S * 0.7)
            begun.send_signal(signal.SIGINT)
            begun.wait(180)
        project.write("rollouts", gpuPools=POOLS, **CHANGES["image"])
        back = rehearse(project, "rollouts")
    assert back.status == 0, back.errors
    assert load.failures == []
    assert load.longest_gap_s < STARTUP_S / 2
    project.command("rehearse", "down", "--stack", "rollouts")


@pytest.mark.nightly
def test_no_request_fails_during_an_update_to_the_next_llm_d_release(project: Project, tmp_path: Path):
    """Another image, another router and another way of its config; both of a unit of their own."""
    project.write("rollouts", gpuPools=POOLS, **CHANGES["image"])
    created = rehearse(project, "rollouts")
    assert created.status == 0, created.errors
    before = len(pairings(project, "rollouts"))
    assert_unnoticed(roll_out(project, "next release", tmp_path))
    assert_own_pairs(project, before + 1)
    project.command("rehearse", "down", "--stack", "rollouts")


@pytest.mark.nightly
def test_on_full_nodes_two_copies_of_a_model_are_updated_in_turn_without_failures(
    project: Project, tmp_path: Path
) -> None:
    startup_s, full = 16, {"topology": "1p-tp2-1d-tp2", "copies": 2}  # all GPUs of one node
    smoke = {"where": "none"}
    project.write("full", smoke=smoke, models=[model(**full)])
    created = rehearse(project, "full", startup_s)
    assert created.status == 0, created.errors
    assert "takes one of 2 units after the other" in " ".join(
        project.command("check", "--stack", "full").output.split()
    )
    project.write("full", smoke=smoke, models=[model(**full, engine={"blockSize": 64})])
    with loaded(project, "full", tmp_path) as load:
        changed = rehearse(project, "full", startup_s)
    assert changed.status == 0, changed.errors
    paired = pairings(project, "full")
    print(f"one by one: {len(load.rows)}, {len(load.failures)}, {load.longest_gap_s:.1f} s")
    assert len(load.rows) > 2 * startup_s * REQUESTS_PER_S
    assert load.failures == []
    assert load.longest_gap_s < startup_s / 2
    assert len(paired) == 2
    assert all(pair["prefill"] == pair["decode"] for pair in paired)


SYNC = Path(__file__).with_name("gitops_sync.py")
PICKER = default_release().endpoint_picker.program.version


@pytest.mark.nightly
def test_with_gitops_waves_old_servers_serve_until_the_new_ones_are_ready(project: Project, tmp_path: Path):
    """A full node that the engine deployed, and then another version as YAML, wave by wave under load."""
    if locate("epp", PICKER) is None or locate("pd-sidecar", PICKER) is None:
        pytest.skip(f"no endpoint picker and sidecar {PICKER}: a rehearsal would run others, whose flags YAML has not")
    startup_s, full, smoke = 16, {"topology": "2p-tp2-2d-tp2"}, {"where": "none"}
    project.write("gitops", smoke=smoke, models=[model(**full)])
    created = rehearse(project, "gitops", startup_s)
    assert created.status == 0, created.errors
    folder = tmp_path / "yaml"
    project.write("gitops", smoke=smoke, models=[model(**full, engine={"blockSize": 64})])
    rendered = project.command("render", "--stack", "gitops", "--output", str(folder))
    assert "is an outage of a start-up" in rendered.errors
    with loaded(project, "gitops", tmp_path) as load:
        project.inside("gitops", sys.executable, str(SYNC), str(folder), "240")
    answered = sum(not row["failure"] for row in load.rows)
    print(f"GitOps: {len(load.rows)}, {len(load.failures)}, {load.longest_gap_s:.1f} s")
    assert answered > 2 * startup_s * REQUESTS_PER_S
    assert load.longest_gap_s < 2 * startup_s
    assert all(pair["prefill"] == pair["decode"] for pair in pairings(project, "gitops"))
