"""The program in pods that limits the KV cache in files on a node's disks."""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from llmd_pods.kv_cache_disk import files
from llmd_pods.kv_cache_disk.files import Space

PROGRAM = Path(files.__file__)
BLOCK = 1000
MODEL = "qwen3-32b"
ROOMY = Space(size=10**15, free=10**15)


@dataclass
class Node:
    """A node's folder of a stack, and the space of its disks."""

    root: Path
    space: Space = ROOMY

    def write(self, name: str, minute: int, size: int = BLOCK, model: str = MODEL) -> Path:
        path = self.root / model / "0123abcd" / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, (minute * 60, minute * 60))
        return path

    def limit(self, blocks: float) -> files.Limit:
        (self.root / MODEL).mkdir(exist_ok=True)
        return files.Limit(self.root, MODEL, int(blocks * BLOCK), 0.12)

    @property
    def kept(self) -> set[str]:
        return {path.stem for path in self.root.rglob("*.bin")}


@pytest.fixture(name="node")
def node_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path)
    monkeypatch.setattr(files, "space", lambda _: node.space)
    return node


def test_files_used_longest_ago_are_deleted_down_to_nine_tenths_of_the_limit(node: Node):
    for i in range(20):
        node.write(f"{i:08x}", minute=1000 + i)
    text = node.limit(10).keep(0.0)
    assert node.kept == {f"{i:08x}" for i in range(11, 20)}
    assert text == "deleted 11 files with 0.0 GiB of 0.0 GiB"


def test_no_more_files_of_one_minute_are_deleted_than_needed(node: Node):
    for i in range(20):
        node.write(f"{i:08x}", minute=1000)
    node.write("ffffffff", minute=999)
    node.limit(10).keep(0.0)
    assert (len(node.kept), "ffffffff" in node.kept) == (9, False)


def test_a_file_that_was_read_lately_is_kept_though_it_was_written_first(node: Node):
    read = node.write("aaaaaaaa", minute=10)
    os.utime(read, (5000, 600))
    node.write("bbbbbbbb", minute=30)
    node.limit(1.2).keep(0.0)
    assert node.kept == {"aaaaaaaa"}


def test_nothing_is_deleted_below_a_models_limit_whatever_other_models_keep(node: Node):
    node.write("aaaaaaaa", minute=10, model="other")
    node.write("bbbbbbbb", minute=20)
    assert node.limit(1).keep(0.0) == ""
    assert node.kept == {"aaaaaaaa", "bbbbbbbb"}


def test_unfinished_files_and_empty_directories_are_removed_and_other_files_never(node: Node):
    block = node.write("aaaaaaaa", minute=10)
    unfinished = block.rename(block.with_name("aaaaaaaa.bin_1234.tmp"))
    config = node.root / MODEL / "config.json"
    config.write_bytes(bytes(5 * BLOCK))
    node.limit(0.5).keep(0.0)
    assert (unfinished.exists(), unfinished.parent.parent.exists(), config.exists()) == (False, False, True)


def test_links_are_neither_followed_nor_deleted(node: Node, tmp_path_factory: pytest.TempPathFactory):
    other = Node(tmp_path_factory.mktemp("other")).write("aaaaaaaa", minute=10)
    node.write("bbbbbbbb", minute=20)
    (node.root / MODEL / "away").symlink_to(other.parent)
    node.limit(0).keep(0.0)
    assert other.exists()


def test_files_of_earlier_models_too_are_deleted_when_little_space_is_left(node: Node):
    node.write("aaaaaaaa", minute=10, model="earlier")
    node.write("bbbbbbbb", minute=20)
    node.space = Space(size=100 * BLOCK, free=12 * BLOCK)
    limit = node.limit(10)
    assert limit.keep(0.0) == ""
    node.space = Space(size=100 * BLOCK, free=11 * BLOCK)
    assert limit.keep(5.0) == "deleted 1 files with 0.0 GiB as 0.0 GiB were free"
    assert node.kept == {"bbbbbbbb"}


@pytest.mark.parametrize(
    ("free_blocks", "readings"),
    [
        ((100, 95, 91), (1, 1, 1)),
        ((100, 95, 89), (1, 1, 2)),
        ((100, 300, 292, 289), (1, 1, 1, 2)),  # others freed space meanwhile
    ],
)
def test_directories_are_read_again_once_enough_may_have_been_written(
    node: Node, monkeypatch: pytest.MonkeyPatch, free_blocks: Sequence[int], readings: Sequence[int]
):
    read: list[Path] = []
    monkeypatch.setattr(files, "sizes_by_minute", lambda folder: read.append(folder) or files.Counter())
    limit = node.limit(10)
    counted: list[int] = []
    for time_s, free in enumerate(free_blocks):
        node.space = Space(10**9 * BLOCK, 10**8 * 5 * BLOCK + free * BLOCK)
        limit.keep(time_s * 5.0)
        counted.append(len(read))
    assert tuple(counted) == tuple(readings)


def test_directories_are_read_again_after_ten_minutes(node: Node):
    limit = node.limit(10)
    limit.keep(0.0)
    for i in range(11):
        node.write(f"{i:08x}", minute=1000 + i)
    assert limit.keep(599.0) == ""
    assert limit.keep(600.0) != ""


class Ended(threading.Event):
    """An event that is set after some waits, before each of which something happens."""

    def __init__(self, *before: Callable[[], object]) -> None:
        super().__init__()
        self._before = list(before)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout == 5
        if not self._before:
            return True
        self._before.pop(0)()
        return False


def test_of_several_programs_on_a_node_one_deletes_files(node: Node, monkeypatch: pytest.MonkeyPatch):
    limit, lock = node.limit(1), node.root / files.LOCK
    kept: list[str] = []
    counts: list[int] = []
    monkeypatch.setattr(files.Limit, "keep", lambda _self, _now_s: kept.append("kept") or "")
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        ended = Ended(
            lambda: None,
            lambda: (counts.append(len(kept)), fcntl.flock(other, fcntl.LOCK_UN)),
            lambda: counts.append(len(kept)),
        )
        files.keep(limit, lock, 5, ended)
    assert counts == [0, 1]


def test_an_error_of_the_disk_is_printed_once_and_the_program_goes_on(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    limit = node.limit(1)
    calls: list[float] = []

    def fail(_self: files.Limit, now_s: float) -> str:
        calls.append(now_s)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.Limit, "keep", fail)
    files.keep(limit, node.root / files.LOCK, 5, Ended(*[lambda: None] * 3))
    assert len(calls) == 3
    assert capsys.readouterr().out == "KV cache on disk isn't limited: [Errno 13] Permission denied\n"


def test_directories_of_kv_cache_are_closed_to_other_users(tmp_path: Path):
    (tmp_path / MODEL / "00000001").mkdir(parents=True)  # as the kubelet makes it
    folder = files.create(tmp_path / MODEL, "00000001", os.getuid())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_pods_that_start_together_create_one_directory(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        roots = [tmp_path / str(i // 8) for i in range(400)]
        made = list(pool.map(lambda root: files.create(root, "00000001", os.getuid()), roots))
    assert len(set(made)) == 50


def run_limit(root: Path, *before: str) -> list[str]:
    """Run the program until it has deleted files, then end it as the kubelet does; return what it said first."""
    words = [sys.executable, "-IB", str(PROGRAM), "limit", f"--root={root}", f"--model={MODEL}"]
    settings = [f"--most-gib={2 * BLOCK / 2**30}", "--least-free-share=0", "--period-s=0.01"]
    with subprocess.Popen([*before, *words, *settings], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    return said.split()[:3]


def test_the_program_reports_what_it_deleted_and_ends_when_its_pod_is_stopped(tmp_path: Path):
    node = Node(tmp_path)
    for i in range(3):
        node.write(f"{i:08x}", minute=1000 + i)
    assert run_limit(tmp_path) == ["deleted", "2", "files"]
    assert node.kept == {"00000002"}


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_the_programs_need_no_more_rights_than_their_containers_have(tmp_path: Path):
    def only(capability: str) -> list[str]:
        return ["setpriv", f"--bounding-set=-all,+{capability}", f"--inh-caps=-all,+{capability}"]

    node, user = Node(tmp_path), 1234
    words = [sys.executable, "-IB", str(PROGRAM), "create", f"--root={tmp_path}", f"--model={MODEL}"]
    for _ in range(2):  # the second time it is the user's
        subprocess.run([*only("chown"), *words, "--key=0123abcd", f"--user={user}"], check=True)
    assert (tmp_path / MODEL / "0123abcd").stat().st_uid == user
    block, *_ = [node.write(f"{i:08x}", minute=1000 + i) for i in range(3)]
    for path in (tmp_path / MODEL / "0123abcd").rglob("*"):
        os.chown(path, user, user)
        path.chmod(0o700)
    assert run_limit(tmp_path, *only("dac_override")) == ["deleted", "2", "files"]
    assert not block.exists()
