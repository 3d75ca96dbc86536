import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_for_tests import REPOSITORY, Hub
from llmd_oke.serving import bench_program
from llmd_pods.prewarm import owner

USER = 65532
BARE = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
CHOWN = ("--bounding-set=-all,+chown", "--inh-caps=-all,+chown", "--no-new-privs")
FILLS = (*BARE, f"--reuid={USER}", "--regid=0", "--clear-groups")
OWNER = ("-m", "prewarm.owner", "--cache=cache", f"--user={USER}")
PREWARM = ("-m", "prewarm", "--cache=cache", f"--repository={REPOSITORY}")
WRITES = (
    "-c",
    "import pathlib; pathlib.Path('cache/hub/models--other').mkdir(); "
    "print(sum(len(path.read_bytes()) for path in pathlib.Path('cache').rglob('*') if path.is_file()))",
)
"""What a server without a pre-warm does: it reads all, and makes another model's folder."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of root's with the program, and a cache as the kubelet makes it."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("users are changed by root, with setpriv")
    with tempfile.TemporaryDirectory() as made:
        there = Path(made)
        there.chmod(0o755)
        (there / "prewarm").mkdir()
        (there / "cache").mkdir(0o755)
        for name, text in bench_program.files("prewarm").items():
            (there / "prewarm" / name).write_text(text)
        yield there


def run(folder: Path, hub: Hub, rights: tuple[str, ...], program: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    argv = ["setpriv", *rights, os.path.realpath(sys.executable), "-S", "-B", *program]
    environment = {"HF_ENDPOINT": hub.url}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_root_owned_model_cache_is_given_to_the_user_who_can_then_write_to_it(folder, hub):
    assert "1 files and folders were given to user 65532" in run(folder, hub, CHOWN, OWNER).stdout
    filled = run(folder, hub, FILLS, PREWARM)
    assert filled.returncode == 0, filled.stderr
    assert {path.stat().st_uid for path in (folder / "cache").rglob("*")} == {USER}
    read = run(folder, hub, BARE, WRITES)
    assert int(read.stdout) > 0, read.stderr


def test_a_model_cache_that_root_filled_can_be_filled_further_by_another_user(folder, hub):
    assert run(folder, hub, BARE, (*PREWARM, "--revision=pinned")).returncode == 0
    (folder / "outside").write_text("root's")
    (folder / "cache" / "hub" / "link").symlink_to("../../outside")
    assert run(folder, hub, CHOWN, OWNER).returncode == 0
    filled = run(folder, hub, FILLS, PREWARM)
    assert filled.returncode == 0, filled.stderr
    assert (folder / "outside").stat().st_uid == 0


def test_a_model_cache_that_the_user_cannot_write_to_is_reported_with_a_remedy(folder, hub):
    refused = run(folder, hub, FILLS, PREWARM)
    assert refused.returncode == 1
    assert "error user 65532 can't write to cache: its folder has to be this user's, or its export" in refused.stderr


def test_an_owner_that_cannot_be_changed_does_not_stop_pre_warming(folder, hub):
    left = run(folder, hub, BARE, OWNER)
    assert (left.returncode, left.stderr) == (0, "")
    assert "cache stays as it is, because its owner can't be changed" in left.stdout


def test_the_owner_of_files_that_belong_to_the_user_is_not_changed(tmp_path):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "file").write_text("weights")
    assert owner.give(tmp_path, os.getuid()) == 0
