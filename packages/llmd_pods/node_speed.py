"""Rates of a node by itself: copies within each GPU's memory, matrix products, reads of the local disks.

Not run on hardware yet. Copies count what is read and what is written, as BabelStream's `Copy` does; matrix products
are of BF16, 2 n^3 operations each.
"""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError

Clock = Callable[[], float]

_SECTOR_BYTES = 512
"""Linux, Documentation/ABI/stable/sysfs-block: `size` counts sectors of 512 bytes, whatever the disk's own are."""

_BLOCK_BYTES = 16 * 2**20
_FILE = ".llmd-oke-acceptance"


@dataclass(frozen=True)
class SpeedWork:
    """Work that is measured: copies of `copy_bytes`, products of square matrices with `matrix_size` rows, each
    `repeats` times after `warm_ups`, and a file of `disk_bytes`.
    """

    copy_bytes: int
    matrix_size: int
    repeats: int
    warm_ups: int
    disk_bytes: int


@dataclass(frozen=True)
class GpuSpeed:
    """Rates of one GPU: memory in GB (10^9 bytes) per second, matrix products in 10^12 operations per second."""

    gpu: int
    memory_gb_per_s: float
    matrix_tflops: float


def gpu_speeds(torch: Any, gpus: int, work: SpeedWork) -> Iterator[GpuSpeed]:
    """Measure each GPU by itself, one after the other.

    Args:
        torch: PyTorch, which sees all GPUs.
        gpus: number of GPUs.
        work: what is measured.

    Raises:
        KitError: PyTorch fails on a GPU; says which.
    """
    for gpu in range(gpus):
        try:
            yield GpuSpeed(gpu, _copied_gb_per_s(torch, gpu, work), _product_tflops(torch, gpu, work))
        except RuntimeError as error:
            raise KitError(f"GPU {gpu}: {str(error).strip()[:300]}") from error


def _copied_gb_per_s(torch: Any, gpu: int, work: SpeedWork) -> float:
    source = torch.full((work.copy_bytes,), 1, dtype=torch.uint8, device=f"cuda:{gpu}")
    target = torch.full((work.copy_bytes,), 0, dtype=torch.uint8, device=f"cuda:{gpu}")
    seconds = _seconds_each(torch, gpu, work, lambda: target.copy_(source))
    return 2 * work.copy_bytes / seconds / 1e9


def _product_tflops(torch: Any, gpu: int, work: SpeedWork) -> float:
    shape = (work.matrix_size, work.matrix_size)
    matrix = torch.full(shape, 1, dtype=torch.bfloat16, device=f"cuda:{gpu}")
    product = torch.full(shape, 0, dtype=torch.bfloat16, device=f"cuda:{gpu}")
    seconds = _seconds_each(torch, gpu, work, lambda: torch.mm(matrix, matrix, out=product))
    return 2 * work.matrix_size**3 / seconds / 1e12


def _seconds_each(torch: Any, gpu: int, work: SpeedWork, step: Callable[[], object]) -> float:
    for _ in range(work.warm_ups):
        step()
    torch.cuda.synchronize(gpu)
    started_s = time.perf_counter()
    for _ in range(work.repeats):
        step()
    torch.cuda.synchronize(gpu)
    return (time.perf_counter() - started_s) / work.repeats


def disk_sizes(sysfs: Path) -> dict[str, int]:
    """Return the NVMe disks that the kernel has, in bytes by their names."""
    sizes: dict[str, int] = {}
    for disk in sorted((sysfs / "block").glob("nvme*n*")):
        with suppress(OSError, ValueError):
            sizes[disk.name] = int((disk / "size").read_text()) * _SECTOR_BYTES
    return sizes


def disk_read_gb_per_s(folder: Path, length_bytes: int) -> float:
    """Write a file, read it past the page cache and remove it; return the rate of reading, in GB per second.

    Raises:
        KitError: the folder can't be written to, or a read fails.
    """
    path = folder / _FILE
    try:
        with mmap.mmap(-1, _BLOCK_BYTES) as block:
            _write(path, block, length_bytes)
            started_s = time.perf_counter()
            _read(path, block, length_bytes)
            return length_bytes / (time.perf_counter() - started_s) / 1e9
    except OSError as error:
        raise KitError(f"{folder} can't be measured: {error.strerror}") from error
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _write(path: Path, block: mmap.mmap, length_bytes: int) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for offset in range(0, length_bytes, _BLOCK_BYTES):
            os.pwritev(file, [block], offset)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _read(path: Path, block: mmap.mmap, length_bytes: int) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != EINVAL:  # a file system without direct reads; its cache was let go
            raise
        file = os.open(path, os.O_RDONLY)
    try:
        for offset in range(0, length_bytes, _BLOCK_BYTES):
            if os.preadv(file, [block], offset) == 0:
                raise OSError(0, "the file ends early")
    finally:
        os.close(file)
