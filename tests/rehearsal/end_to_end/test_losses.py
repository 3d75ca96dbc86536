"""Drills under load: the engine's state is lost, restored and moved, and a cluster is lost and rebuilt."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_created_cluster import BASE
from test_rollouts import Load, loaded
from user_project import TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

DELETE_CLUSTER = """
import httpx2
from llmd_rehearsal.cluster_plan import OCI_REST_PORT
clusters = f"http://127.0.0.1:{OCI_REST_PORT}/20180222/clusters"
(cluster,) = httpx2.get(clusters).json()
assert httpx2.delete(f"{clusters}/{cluster['id']}", timeout=60).status_code == 200
print(cluster["id"])
"""


def deploy(project: Project, stack: str) -> Ended:
    return project.command("rehearse", "--stack", stack, "--json", "--time-scale", TIME_SCALE)


def tell(drill: str, load: Load, began_s: float) -> None:
    """Print a row of the table of drills."""
    minutes = (time.monotonic() - began_s) / 60
    failed, gap_s = len(load.failures), load.longest_gap_s
    print(f"| {drill} | {len(load.rows)} | {failed} | {gap_s:.1f} | {minutes:.1f} |")


def test_requests_flow_while_pulumis_state_is_lost_restored_and_moved(project: Project, tmp_path: Path) -> None:
    stack = "state-lost"
    project.write(stack, smoke={"where": "none"})
    assert deploy(project, stack).status == 0
    folder = project.folder / ".rehearsal" / stack
    backend = folder / "backend"

    def state(*words: str, status: int = 0) -> str:
        own = {
            "PATH": f"{os.environ['LLMD_OKE_PROGRAMS']}{os.pathsep}{os.environ['PATH']}",
            "PULUMI_BACKEND_URL": f"file://{backend}",
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(folder / "passphrase"),
            "PULUMI_HOME": str(tmp_path / "home"),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }
        argv = [sys.executable, "-m", "llmd_oke", "state", *words, "--stack", stack]
        argv += ["--project", str(folder / "project")]
        done = subprocess.run(argv, env={**os.environ, **own}, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return " ".join((done.stdout + done.stderr).split())

    lost = tmp_path / "lost"
    lost.mkdir()
    with loaded(project, stack, lost) as load:
        began_s, file = time.monotonic(), str(lost / "backup.tar.gz")
        state("backup", "--output", file)
        shutil.rmtree(backend)
        backend.mkdir()
        state("restore", file, "--yes")
        again = deploy(project, stack)
    assert again.status == 0, again.errors
    assert again.document["update"]["changes"].keys() == {"same"}
    tell("state lost and restored, then an update", load, began_s)
    assert load.failures == []

    moved = tmp_path / "moved"
    other = moved / "backend"
    other.mkdir(parents=True)
    with loaded(project, stack, moved) as load:
        began_s = time.monotonic()
        state("move", "--to", f"file://{other}", "--archive", str(moved / "before.tar.gz"), "--yes")
        assert f"The state backend has no stack {stack}." in state("backup", status=1)
        backend.rename(moved / "old")
        backend.symlink_to(other)  # the one address that a rehearsal's engine knows leads to the new backend
        again = deploy(project, stack)
    assert again.status == 0, again.errors
    assert again.document["update"]["changes"].keys() == {"same"}
    assert list(other.rglob(f"{stack}.json"))
    tell("state moved to another backend by `state move`, then an update", load, began_s)
    assert load.failures == []
    project.command("rehearse", "down", "--stack", stack)


def test_a_lost_cluster_is_rebuilt_by_one_command_and_serves_again(project: Project, tmp_path: Path) -> None:
    stack = "cluster-lost"
    storage = {"modelCache": {"kind": "file-storage"}}
    project.write(stack, **BASE, models=[model(topology="1p-tp1-1d-tp1")], storage=storage)
    created = deploy(project, stack)
    assert created.status == 0, created.errors
    with loaded(project, stack, tmp_path) as load:
        began_s = time.monotonic()
        project.inside(stack, sys.executable, "-c", DELETE_CLUSTER)
        rebuilt = project.command("rebuild", "--rehearse", "--stack", stack)
    assert rebuilt.status == 0, rebuilt.errors
    words = " ".join(rebuilt.output.split())
    assert "gone, made anew: " in words
    assert "Cluster oke-cluster" in words.partition("stays: ")[0]
    assert "Vcn " in words.partition("stays: ")[2]
    assert "FileSystem " in words.partition("stays: ")[2]
    assert "rebuilt in " in words
    tell("cluster deleted and rebuilt", load, began_s)
    journal = [json.loads(line) for line in (project.folder / ".rehearsal" / stack / "oci" / "journal.jsonl").open()]
    ids = {line["id"] for line in journal}
    for kind, count in {"cluster": 2, "vcn": 1, "filesystem": 1}.items():
        assert len([id_ for id_ in ids if id_.startswith(f"ocid1.{kind}.")]) == count, kind
    project.command("rehearse", "down", "--stack", stack)
