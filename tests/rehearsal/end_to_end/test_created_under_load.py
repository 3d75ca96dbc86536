"""A created cluster whose nodes are launched anew, or which gets another version of Kubernetes, while requests flow."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_created_cluster import BASE, CLUSTER, POOL
from test_rollouts import loaded, rehearse
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STARTUP_S = 2
NODES = """
import json, lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.core_v1 import Node
client = lightkube.Client(KubeConfig.from_env(), trust_env=False)
print(json.dumps({n.metadata.name: [n.metadata.uid, n.metadata.labels.get("team"), n.spec.unschedulable]
                  for n in client.list(Node) if n.metadata.name.startswith("mi300x")}))
"""


def write(project: Project, stack: str, launch: str, version: str = "v1.34.2", **changes: Any) -> None:
    """Two GPU nodes, either of which has room for all servers."""
    cluster = {**CLUSTER, "kubernetesVersion": version}
    pool = {**POOL, "size": 2, "launch": launch, **changes}
    servers = [model(topology="2p-tp1-2d-tp1")]
    storage = {"modelCache": {"kind": "node-disk"}}
    base = {**BASE, "cluster": cluster, "gpuPools": [pool]}
    project.write(stack, **base, models=servers, storage=storage, smoke={"where": "none"})


def deploy(project: Project, stack: str) -> None:
    """Deploy the stack, and wait until it answers."""
    created = rehearse(project, stack, STARTUP_S)
    assert created.status == 0, created.errors


def gpu_nodes(project: Project, stack: str) -> dict[str, list[Any]]:
    """The UID of each GPU node, its label, and whether it is cordoned."""
    listed = project.command("rehearse", "run", "--stack", stack, "--", sys.executable, "-c", NODES)
    assert listed.status == 0, listed.errors
    return json.loads(listed.output)


@pytest.mark.parametrize("launch", ["compute-cluster-instances", "cluster-network"])
def test_nodes_are_drained_and_replaced_one_after_the_other_while_requests_flow(
    project: Project, tmp_path: Path, launch: str
) -> None:
    write(project, launch, launch)
    deploy(project, launch)
    before = gpu_nodes(project, launch)
    write(project, launch, launch, labels={"team": "search"})
    changed = rehearse(project, launch, STARTUP_S)
    assert changed.status == 0, changed.errors
    assert gpu_nodes(project, launch) == before
    with loaded(project, launch, tmp_path) as load:
        replaced = project.command("nodes", "replace", "--rehearse", "--stack", launch, "--drain-limit", "2m")
    assert replaced.status == 0, replaced.errors
    print(f"{launch}: {len(load.rows)} requests, {len(load.failures)} failed, gap {load.longest_gap_s:.1f} s")
    after = gpu_nodes(project, launch)
    assert after.keys() == before.keys()
    assert all(after[name][0] != before[name][0] for name in after)
    assert [about[1:] for about in after.values()] == [["search", None]] * 2
    assert replaced.errors.count("draining mi300x-") == 2
    assert load.failures == []
    project.command("rehearse", "down", "--stack", launch)


def test_no_request_is_lost_while_kubernetes_is_upgraded(project: Project, tmp_path: Path) -> None:
    """Nodes keep their version until they are replaced; what is upgraded serves nobody."""
    stack = "upgraded-under-load"
    write(project, stack, "managed-compute-cluster")
    deploy(project, stack)
    write(project, stack, "managed-compute-cluster", version="v1.35.2")
    with loaded(project, stack, tmp_path) as load:
        upgraded = rehearse(project, stack, STARTUP_S)
    project.command("rehearse", "down", "--stack", stack)
    assert upgraded.status == 0, upgraded.errors
    print(f"upgrade: {len(load.rows)} requests, {len(load.failures)} failed, gap {load.longest_gap_s:.1f} s")
    assert load.failures == []
