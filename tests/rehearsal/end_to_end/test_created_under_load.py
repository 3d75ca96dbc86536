"""A created cluster whose nodes are launched anew, or which gets another link to the nodes' image or another version of
Kubernetes, while requests flow.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from llmd_rehearsal.engine_project import in_oci, journal_file
from llmd_rehearsal.model_sources import source_hosts
from llmd_rehearsal.source_credentials import FOLDER, LINKS
from test_created_cluster import BASE, CLUSTER, POOL
from test_losses import tell
from test_rollouts import loaded, rehearse
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STARTUP_S = 2
MANAGED = "managed-compute-cluster"
IMAGE = "Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-ORACLE-6.8-DOCA-OFED-3.4.0-AMD-ROCM-724-2026.07.13-0"
IMPORTED = {"import": {"name": IMAGE, "checksum": "md5:" + "a" * 32}}
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
    return project.inside(stack, sys.executable, "-c", NODES).document


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


@pytest.fixture(scope="module")
def importing(project: Project) -> str:
    """The name of a deployed stack whose nodes' image is imported by a link that is a secret."""
    write(project, "importing", MANAGED, image=IMPORTED)
    deploy(project, "importing")
    return "importing"


def test_another_link_to_the_nodes_image_imports_nothing_and_replaces_no_node(
    project: Project, importing: str, tmp_path: Path
) -> None:
    state = project.folder / ".rehearsal" / importing
    secrets_file, before = state / FOLDER / "secrets.json", gpu_nodes(project, importing)
    given = json.loads(secrets_file.read_text())
    with loaded(project, importing, tmp_path) as load:
        began_s = time.monotonic()
        secrets_file.write_text(json.dumps({**given, LINKS: {"mi300x": source_hosts().link("another")}}))
        updated = rehearse(project, importing, STARTUP_S)
    assert updated.status == 0, updated.errors
    tell("another link to the nodes' image", load, began_s)
    assert updated.document["update"]["changes"].keys() <= {"same", "read", "update"}
    assert gpu_nodes(project, importing) == before
    (image,) = (id_ for id_ in in_oci(journal_file(state)) if id_.startswith("ocid1.image."))
    assert "another" not in json.dumps(in_oci(journal_file(state))[image])
    assert load.failures == []


def test_no_request_is_lost_while_kubernetes_is_upgraded(project: Project, importing: str, tmp_path: Path) -> None:
    """Nodes keep their version until they are replaced; what is upgraded serves nobody."""
    write(project, importing, MANAGED, version="v1.35.2", image=IMPORTED)
    with loaded(project, importing, tmp_path) as load:
        upgraded = rehearse(project, importing, STARTUP_S)
    project.command("rehearse", "down", "--stack", importing)
    assert upgraded.status == 0, upgraded.errors
    print(f"upgrade: {len(load.rows)} requests, {len(load.failures)} failed, gap {load.longest_gap_s:.1f} s")
    assert load.failures == []
