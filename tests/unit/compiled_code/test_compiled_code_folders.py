import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmd_pods.compiled_code import folders, start

DAYS = folders.DAY_S
KEYS = ("00000001", "00000002", "00000003", "00000004")
USER = 1234


def used(root: Path, key: str, days_ago: float) -> Path:
    folder = folders.prepare(root, key, os.getuid())
    then = time.time() - days_ago * DAYS
    os.utime(folder / folders.USED, (then, then))
    return folder


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_folders_of_compiled_code_are_closed_to_users_outside_of_their_group(tmp_path: Path):
    folder = folders.prepare(tmp_path, KEYS[0], os.getuid())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o770


def test_folders_of_compiled_code_unused_for_long_are_removed(tmp_path: Path):
    for key, days in zip(KEYS, (0, 1, 20, 30), strict=True):
        used(tmp_path, key, days)
    assert set(folders.remove_old(tmp_path, KEYS[0], 14 * DAYS, 8)) == set(KEYS[2:])
    assert names(tmp_path) == set(KEYS[:2])


def test_beyond_a_number_the_longest_unused_folders_of_compiled_code_are_removed(tmp_path: Path):
    for key, days in zip(KEYS, (5, 1, 2, 3), strict=True):
        used(tmp_path, key, days)
    assert folders.remove_old(tmp_path, KEYS[0], 14 * DAYS, 2) == [KEYS[2], KEYS[3]]
    assert names(tmp_path) == {KEYS[0], KEYS[1]}


def test_a_folder_of_compiled_code_in_use_is_kept_however_old_it_is(tmp_path: Path):
    old = used(tmp_path, KEYS[1], 0)
    place = start.claim(old)
    used(tmp_path, KEYS[1], 99)
    folders.prepare(tmp_path, KEYS[0], os.getuid())
    assert folders.remove_old(tmp_path, KEYS[0], 14 * DAYS, 8) == []
    os.close(place.descriptor)
    assert folders.remove_old(tmp_path, KEYS[0], 14 * DAYS, 8) == [KEYS[1]]


def test_only_folders_named_like_those_of_compiled_code_are_removed(tmp_path: Path):
    (tmp_path / "of others").mkdir()
    assert folders.remove_old(tmp_path, KEYS[0], 0, 1) == []
    assert names(tmp_path) == {"of others"}


def test_a_folder_of_compiled_code_that_cannot_be_created_fails_no_server_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "root").write_text("")
    options = [f"--root={tmp_path}/root", f"--key={KEYS[0]}", "--unused-days=1", "--most=1"]
    assert folders.main(options) == 0
    assert "can't be made" in capsys.readouterr().out


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder of root's, as the kubelet makes it, with the programs."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("users are changed by root, with setpriv")
    with tempfile.TemporaryDirectory() as made:
        there = Path(made)
        there.chmod(0o755)
        (there / "compiled").mkdir(0o755)
        for module in (start, folders):
            shutil.copy(module.__file__, there)
        yield there


def as_user(user: int, root: Path, *argv: str, capability: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program of the folder as a user of root's group, with one capability or none."""
    kept = f"-all,+{capability}" if capability else "-all"
    bare = (f"--bounding-set={kept}", f"--inh-caps={kept}", "--no-new-privs")
    who = (f"--reuid={user}", "--regid=0", "--clear-groups")
    command = ["setpriv", *bare, *who, sys.executable, "-IB", *argv]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30, check=False)


def prepared(root: Path, key: str, user: int, days: float = 14) -> str:
    options = ["--root=compiled", f"--key={key}", f"--user={user}", f"--unused-days={days}", "--most=8"]
    return as_user(0, root, "folders.py", *options, capability="chown").stdout


def served(root: Path, key: str, user: int) -> str:
    """Run a server of a user that compiles, and that is never healthy."""
    options = [f"--folder=compiled/{key}", f"--link={root}/links-{user}/vllm"]
    compiles = f"import os; os.mkdir('{root}/links-{user}/vllm/own', 0o700); print('served')"
    (root / f"links-{user}").mkdir(exist_ok=True)
    os.chown(root / f"links-{user}", user, 0)
    health = ("--health=http://127.0.0.1:1/", "--limit-s=1")
    return as_user(user, root, "start.py", *options, *health, "--", sys.executable, "-c", compiles).stdout


@pytest.mark.parametrize("user", [0, USER])
def test_a_server_of_any_user_can_keep_compiled_code_that_root_can_remove(root: Path, user: int):
    for _ in range(2):
        assert "is kept in" in prepared(root, KEYS[0], user)
        assert served(root, KEYS[0], user).startswith("compiled code in compiled/")
    assert (root / "compiled" / KEYS[0]).stat().st_uid == user
    assert f"removed: {KEYS[0]}" in prepared(root, KEYS[1], 0, days=0)
    assert names(root / "compiled") == {KEYS[1]}


def test_another_user_cannot_write_to_a_servers_folder_of_compiled_code(root: Path):
    prepared(root, KEYS[0], USER)
    tried = f"open('compiled/{KEYS[0]}/used', 'w')"
    other = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups", sys.executable, "-c", tried]
    failed = subprocess.run(other, cwd=root, capture_output=True, text=True, timeout=30, check=False)
    assert "PermissionError" in failed.stderr
