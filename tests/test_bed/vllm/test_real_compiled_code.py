"""The code that vLLM itself compiles on a processor, kept as servers in pods keep it (`scripts/real-vllm`).

On a processor vLLM compiles by TorchInductor, as on a GPU, but to libraries of C++: what is shown is what becomes of
the folder, and no time of a GPU.
"""

import subprocess
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from llmd_pods.compiled_code import start
from llmd_rehearsal.real_vllm.environment import RealVllm
from real_servers import server, wait_for
from real_vllm_for_tests import need_real_vllm

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly, pytest.mark.timeout(1800)]

DAMAGE = b"cos\n_exit\n(I3\ntR."
"""A pickle that ends the process that reads it, which vLLM can't catch."""

READY_S = 480
"""Limit of a start: compiling takes half a minute of two quiet processors, measured."""

CONFIRM_S = 10


OWN = "/mnt"
"""A server's own folder, at the same path for each of them."""

_IN_CONTAINER = 'mount --bind "$0" /mnt && exec "$@"'


@dataclass(frozen=True)
class Node:
    """A node's folder of compiled code, and containers whose servers use it."""

    vllm: RealVllm
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "key"

    def server(self, name: str) -> AbstractContextManager[tuple[str, subprocess.Popen[bytes]]]:
        """A server that starts as one in a pod does, with mounts of its own; its log is `<name>/log`."""
        container = self.root / name
        for folder in (self.folder, container):
            folder.mkdir(exist_ok=True)
        variables = {"VLLM_CACHE_ROOT": f"{OWN}/.cache/vllm", "TRITON_CACHE_DIR": f"{OWN}/.cache/triton"}
        own = [f"--folder={self.folder}", *(f"--link={path}" for path in variables.values()), f"--limit-s={READY_S}"]
        alike = {"TORCH_COMPILE_DISABLE": "0", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"}  # the port is part of vLLM's hash

        def before(url: str) -> list[str]:
            mounted = ["unshare", "--mount", "sh", "-c", _IN_CONTAINER, str(container)]
            return [*mounted, str(self.vllm.python), "-IB", start.__file__, *own, f"--health={url}/health", "--"]

        return server(self.vllm, container, before=before, more={**variables, **alike})

    def log(self, name: str) -> str:
        return (self.root / name / "log").read_text()

    def libraries(self, place: int) -> dict[str, int]:
        """Times at which libraries of a place were compiled, by their paths in it."""
        code = self.folder / str(place) / start.CODE
        return {str(file.relative_to(code)): file.stat().st_mtime_ns for file in code.rglob("*.so")}

    def confirmed(self, place: int) -> bool:
        return not (self.folder / str(place) / start.STARTING).exists()


@dataclass(frozen=True)
class Seen:
    """Libraries after each start in its turn: the first one's, those of two servers at once (place by place), and those
    after damage; and with what the damaged server ended.
    """

    node: Node
    first: dict[str, int]
    at_once: tuple[dict[str, int], dict[str, int]]
    exit_code: int
    after_damage: dict[str, int]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    node = Node(need_real_vllm(), tmp_path_factory.mktemp("node"))
    _serve(node, "first")
    first = node.libraries(0)
    _serve(node, "second", "third")
    at_once = (node.libraries(0), node.libraries(1))
    for compiled in (node.folder / "0" / start.CODE).rglob("rank_0_0/model"):
        compiled.write_bytes(DAMAGE)
    with node.server("damaged") as (_, running):
        exit_code = running.wait(READY_S)
    _serve(node, "last")
    return Seen(node, first, at_once, exit_code, node.libraries(0))


def _serve(node: Node, *names: str) -> None:
    """Run servers at once until each of them is healthy, and has said so of its code."""
    with ExitStack() as exits:
        running = [(name, *exits.enter_context(node.server(name))) for name in names]
        for place, (name, url, process) in enumerate(running):
            wait_for(f"{url}/health", node.root / name / "log", process, READY_S)
            deadline = time.monotonic() + CONFIRM_S
            while not node.confirmed(place):
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_the_first_server_compiles_and_a_second_finds_all_compiled_code(seen: Seen) -> None:
    assert len(seen.first) > 1
    assert seen.at_once[0] == seen.first


def test_the_second_of_two_simultaneous_servers_starts_with_a_copy_of_compiled_code(seen: Seen) -> None:
    assert seen.at_once[1] == seen.first
    states = [seen.node.log(name).splitlines()[0] for name in ("second", "third")]
    assert sorted(state.partition(": ")[2][:6] for state in states) == ["a copy", "as the"]


def test_after_damaged_compiled_code_ended_a_server_the_next_one_compiles_again(seen: Seen) -> None:
    assert seen.exit_code != 0
    assert "removed, because the last server with it did not start" in seen.node.log("last")
    assert set(seen.after_damage) == set(seen.first)
    assert not set(seen.after_damage.values()) & set(seen.first.values())
