"""Rates of a node alone: copies within each GPU's memory, matrix products, reads of the local disks.

Not run on hardware yet. Copies count bytes read and bytes written, as BabelStream's `Copy` does; matrix products are
BF16 with 2 n^3 operations each.
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
"""Bytes per unit of `size` in sysfs, whatever the disk's own sector size is (Linux,
Documentation/ABI/stable/sysfs-block).
"""

_BLOCK_BYTES = 16 * 2**20
_FILE = ".llmd-oke-acceptance"


@dataclass(frozen=True)
class SpeedWork:
    """Sizes and repetitions of the measurements of a node's rates (GPU memory, matrix products, disks).

    Attributes:
        copy_bytes: bytes of one copy within a GPU's memory.
        matrix_size: rows and columns of the multiplied matrices.
        repeats: number of timed repetitions.
        warm_ups: number of repetitions before the timed ones.
        disk_bytes: size of the file that is read.
    """

    copy_bytes: int
    matrix_size: int
    repeats: int
    warm_ups: int
    disk_bytes: int


@dataclass(frozen=True)
class GpuSpeed:
    """Rates of one GPU: memory copies in GB (10^9 bytes) per second, matrix products in 10^12 operations per second."""

    gpu: int
    memory_gb_per_s: float
    matrix_tflops: float


def gpu_speeds(torch: Any, gpus: int, work: SpeedWork) -> Iterator[GpuSpeed]:
    """Measure the GPUs one after the other, and yield their rates.

    Args:
        torch: the PyTorch module.
        gpus: number of GPUs.
        work: sizes of the measurements.

    Raises:
        KitError: PyTorch fails on a GPU; the message names the GPU.
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
    """Return the sizes in bytes of the node's NVMe disks, as the kernel knows them, by name."""
    sizes: dict[str, int] = {}
    for disk in sorted((sysfs / "block").glob("nvme*n*")):
        with suppress(OSError, ValueError):
            sizes[disk.name] = int((disk / "size").read_text()) * _SECTOR_BYTES
    return sizes


def disk_read_gb_per_s(folder: Path, length_bytes: int) -> float:
    """Write a file, read it past the page cache and remove it; return the read rate in GB (10^9 bytes) per second.

    Raises:
        KitError: the directory isn't writable, or a read fails.
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
        if error.errno != EINVAL:  # a file system without O_DIRECT; the pages were dropped from the cache
            raise
        file = os.open(path, os.O_RDONLY)
    try:
        for offset in range(0, length_bytes, _BLOCK_BYTES):
            if os.preadv(file, [block], offset) == 0:
                raise OSError(0, "the file ends early")
    finally:
        os.close(file)
