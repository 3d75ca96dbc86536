import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from llmd_rehearsal import namespaces
from llmd_rehearsal.cluster_spec import FileReady, ProcessSpec
from llmd_rehearsal.local_cluster import LocalCluster


@pytest.fixture(scope="session", autouse=True)
def namespaces_allowed() -> None:
    command = namespaces.create_command(["true"], user_namespace=os.geteuid() != 0)
    tried = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this machine allows no namespaces: {tried.stderr.strip()}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A local cluster that is not started; after the test it is stopped and the machine must be as it was before."""
    before = machine()
    cluster = LocalCluster(tmp_path / "state")
    yield cluster
    members = inhabitants(cluster)
    cluster.stop()
    assert [member for member in members if member.alive()] == []
    assert machine() == before


def inhabitants(cluster: LocalCluster) -> list[namespaces.ProcessIdentity]:
    """Every process in the local cluster, those that entered it included."""
    record = cluster.status()
    pids = [] if record is None or record.phase == "failed" else namespaces.members_of(dict(record.namespaces))
    return [identity for pid in pids if (identity := namespaces.identity_of(pid)) is not None]


def machine() -> dict[str, list[str]]:
    """Return what a local cluster could leave behind."""
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, timeout=10, check=True).stdout
    netns = Path("/run/netns")
    return {
        "mounts": Path("/proc/self/mountinfo").read_text().splitlines(),
        "links": [line.split()[0] for line in links.splitlines()],
        "netns": sorted(path.name for path in netns.iterdir()) if netns.is_dir() else [],
    }


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., ProcessSpec]:
    """Make processes that say in `events` when they start and when they are told to stop, and else do nothing."""
    program = tmp_path / "process.sh"
    program.write_text(
        "trap 'echo stop $1 >> events; kill $!; exit 0' TERM\n"
        "sleep 1000 &\n"
        "echo start $1 >> events; echo hello from $1; echo > ready-$1\n"
        "wait\n"
    )

    def make(name: str, *after: str) -> ProcessSpec:
        ready = FileReady(str(tmp_path / "state" / f"ready-{name}"))
        return ProcessSpec(name, ("sh", str(program), name), after=after, readiness=ready, ready_timeout_s=10)

    return make


@pytest.fixture
def python() -> str:
    return sys.executable
