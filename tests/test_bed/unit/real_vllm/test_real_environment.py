"""The environment of vLLM itself: what is refused before anything is installed, and an installation that fails."""

import os
import platform
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_rehearsal.real_vllm import environment as real_vllm
from llmd_rehearsal.real_vllm.differences import ChangedLine

GIB = 2**30
VERSION = "0.30.0"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache without vLLM."""
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("machine", "needed_gib", "free_gib", "flags", "reason"),
    [
        ("aarch64", 0, 10, "fpu avx2", "it is built for Linux on x86-64"),
        ("x86_64", 10**6, 10, "fpu avx2", "GiB of memory are available, it needs 1000000"),
        ("x86_64", 0, 2, "fpu avx2", "has 2 GiB left, it needs 9"),
        ("x86_64", 0, 10, "fpu avx avx512f sse4_2", "the processor has no AVX2"),
    ],
)
def test_a_machine_that_cannot_run_vllm_is_refused_before_the_installation(
    monkeypatch, cache, machine, needed_gib, free_gib, flags, reason
):
    (cache / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(real_vllm, "MEMORY_GIB", needed_gib)
    monkeypatch.setattr(real_vllm, "_CPU_FACTS", cache / "cpuinfo")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_gib * GIB))
    for ask in (real_vllm.announce, real_vllm.ensure):
        with pytest.raises(KitError, match=reason):
            ask(VERSION, SilentProgress())
    assert real_vllm.main() == 69
    assert [path for path in cache.rglob("*") if path.is_file()] == [cache / "cpuinfo"]


def test_size_and_duration_of_vllms_installation_are_told_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_vllm, "_obstacle", lambda _: "")
    heard = Listener()
    real_vllm.announce(VERSION, heard)
    assert "3 GiB to download, 9 GiB on disk until it is done (6 stay), two to four minutes" in heard.steps[0]
    monkeypatch.setattr(real_vllm, "installed", lambda _: real_vllm.RealVllm(Path("/vllm")))
    real_vllm.announce(VERSION, heard)
    assert len(heard.steps) == 1


def test_a_failed_installation_of_vllm_reports_its_last_output(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    failing = cache / "python"
    failing.write_text("#!/bin/sh\necho first; echo no room left; exit 1\n")
    failing.chmod(0o700)
    monkeypatch.setattr(real_vllm, "_obstacle", lambda _: "")
    monkeypatch.setattr(real_vllm.sys, "executable", str(failing))
    with pytest.raises(KitError, match=r"python -m venv .* failed: no room left"):
        real_vllm.ensure(VERSION, SilentProgress())
    assert real_vllm.installed(VERSION) is None
    assert not [folder for folder in (cache / "vllm").iterdir() if folder.is_dir()]


def test_installing_vllm_removes_what_nobody_used_for_a_day(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    ages_hours = {f"{VERSION}-old": 25, f"{VERSION}-lately": 23, "0.26.0-old": 25}
    for name, hours in ages_hours.items():
        marker = cache / "vllm" / name / "complete"
        marker.parent.mkdir(parents=True)
        marker.touch()
        os.utime(marker, (time.time() - hours * 3600,) * 2)
    monkeypatch.setattr(real_vllm, "_obstacle", lambda _: "")
    monkeypatch.setattr(real_vllm, "_install", lambda _version, folder, _progress: real_vllm.RealVllm(folder))
    real_vllm.ensure(VERSION, SilentProgress())
    assert {path.name for path in (cache / "vllm").iterdir()} == {f"{VERSION}-lately", "0.26.0-old"}


def test_vllm_counts_as_missing_when_its_python_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(real_vllm, "_folder", lambda _: tmp_path)
    python = tmp_path / "python3.11"
    python.touch()
    (tmp_path / "complete").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(python)
    assert real_vllm.installed(VERSION) is not None
    python.unlink()
    assert real_vllm.installed(VERSION) is None


def test_a_changed_line_keeps_its_indentation_and_must_be_there_once(tmp_path: Path) -> None:
    file = tmp_path / "lib/python3.11/site-packages/a.py"
    file.parent.mkdir(parents=True)
    file.write_text("# spin() yields\nif True:\n    spin()\n")
    change = ChangedLine(file="a.py", line="spin()", value="sleep()", because="r")
    real_vllm._change_line(tmp_path, change)
    assert file.read_text() == "# spin() yields\nif True:\n    sleep()\n"
    with pytest.raises(KitError, match=r"has the line `spin\(\)` 0 times"):
        real_vllm._change_line(tmp_path, change)
