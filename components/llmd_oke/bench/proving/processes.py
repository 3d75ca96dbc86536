"""A program with all that it starts: its processor time and memory, from `/proc`."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from llmd_oke.errors import KitError

LOOK_INTERVAL_S = 0.25

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Ran:
    """A program that has ended; memory is the most that all its processes had resident together."""

    output: str
    wall_s: float
    cpu_s: float
    memory_mib: float


def run_watched(command: Sequence[str], limit_s: float) -> Ran:
    """Run a program to its end.

    Raises:
        KitError: it failed, or did not end in time; with the last lines that it said.
    """
    began_s = time.monotonic()
    cpu_s: dict[int, float] = {}
    memory_mib = 0.0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=output, stderr=errors, stdin=subprocess.DEVNULL) as process:
            while process.poll() is None:
                memory_mib = max(memory_mib, _look(process.pid, cpu_s))
                if time.monotonic() - began_s > limit_s:
                    process.kill()
                time.sleep(LOOK_INTERVAL_S)
        said, complained = _text(output), _text(errors)
    if process.returncode:
        last = "\n".join((said + complained).splitlines()[-5:])
        raise KitError(f"{Path(command[0]).name} ended with code {process.returncode}: {last}")
    return Ran(said, time.monotonic() - began_s, sum(cpu_s.values()), memory_mib)


def _text(file: TextIO) -> str:
    file.seek(0)
    return file.read()


def _look(root: int, cpu_s: dict[int, float]) -> float:
    """Note the processor time of each process; their memory together in MiB."""
    memory_mib = 0.0
    for pid in _family(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        cpu_s[pid] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        memory_mib += pages * _PAGE_MIB
    return memory_mib


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _family(int(child))
