import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from llmd_oke.rehearsal import host_processes, namespaces
from llmd_oke.rehearsal.processes import FileReady, ProcessSpec
from llmd_oke.rehearsal.world import World


@pytest.fixture(scope="session", autouse=True)
def _namespaces_allowed() -> None:
    command = namespaces.create_command(["true"], user_namespace=os.geteuid() != 0)
    tried = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this machine allows no namespaces: {tried.stderr.strip()}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world that is not started; after the test it is stopped and the machine must be as it was before."""
    before = machine()
    world = World(tmp_path / "state")
    yield world
    members = inhabitants(world)
    world.stop()
    assert [member for member in members if member.alive()] == []
    assert machine() == before


def inhabitants(world: World) -> list[host_processes.Identity]:
    """Every process in the world, those that entered it included."""
    record = world.status()
    pids = [] if record is None or record.phase == "failed" else host_processes.members_of(dict(record.namespaces))
    return [identity for pid in pids if (identity := host_processes.identity_of(pid)) is not None]


def machine() -> dict[str, list[str]]:
    """What a world could leave behind."""
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, timeout=10, check=True).stdout
    netns = Path("/run/netns")
    return {
        "mounts": Path("/proc/self/mountinfo").read_text().splitlines(),
        "links": [line.split()[0] for line in links.splitlines()],
        "netns": sorted(path.name for path in netns.iterdir()) if netns.is_dir() else [],
    }


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., ProcessSpec]:
    """Makes processes that say in `events` when they start and when they are told to stop, and else do nothing."""
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
