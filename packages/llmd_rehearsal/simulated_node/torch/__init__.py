"""Simulated PyTorch with the functions that the acceptance uses. A buffer's bytes all have the same value."""

import itertools
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

NODE = Path("/opt/simulated-node/node.json")
uint8, float32, bfloat16 = "uint8", "float32", "bfloat16"
BYTES = {uint8: 1, float32: 4, bfloat16: 2}


class ModelTime:
    """Clock of the seconds that the work of a program would take on real GPUs; each simulated operation advances it. It
    replaces `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the model time in seconds."""
        return self.now_s


model_time = ModelTime()
time.perf_counter = model_time


class Tensor:
    """Buffer on a simulated GPU, all of whose bytes have the same value."""

    by_address: ClassVar[dict[int, "Tensor"]] = {}
    _addresses = itertools.count(1 << 20, 1 << 40)

    def __init__(self, count: int, fill: int, dtype: str, device: str) -> None:
        self.fill, self._count, self._gpu = fill, count, int(device.partition(":")[2])
        self.nbytes = count * BYTES[dtype]
        self._address = next(self._addresses)
        self.by_address[self._address] = self

    def data_ptr(self) -> int:
        """Return the simulated memory address of the tensor."""
        return self._address

    def numel(self) -> int:
        """Return the number of the tensor's elements."""
        return self._count

    def get_device(self) -> int:
        """Return the number of the simulated GPU on which the tensor is."""
        return self._gpu

    def __getitem__(self, index: int) -> int:
        return self.fill

    def copy_(self, source: "Tensor") -> "Tensor":
        """Advance the simulated clock by the duration of reading and writing both tensors' bytes on a real GPU; copy
        nothing.
        """
        model_time.now_s += (source.nbytes + self.nbytes) / (_node()["memory_gb_per_s"][self._gpu] * 1e9)
        return self


def full(size: tuple[int, ...], fill_value: int, *, dtype: str, device: str) -> Tensor:
    """Return a buffer on a simulated GPU filled with a value."""
    return Tensor(math.prod(size), fill_value, dtype, device)


def ones(count: int, *, dtype: str, device: str) -> Tensor:
    """Return a buffer of ones on a simulated GPU."""
    return Tensor(count, 1, dtype, device)


def mm(first: Tensor, second: Tensor, *, out: Tensor) -> Tensor:
    """Advance the simulated clock by the duration of multiplying two square matrices on a real GPU; compute nothing."""
    del second
    rows = math.isqrt(first.numel())
    model_time.now_s += 2 * rows**3 / (_node()["matrix_tflops"][first.get_device()] * 1e12)
    return out


def _node() -> dict[str, Any]:
    return json.loads(NODE.read_text())


def port_rates() -> list[float]:
    """Return the rates of the simulated node's RDMA ports in GB/s."""
    return _node()["port_gb_per_s"]


def _written(_file: int, buffers: Sequence[bytearray], _offset: int) -> int:
    return len(memoryview(buffers[0]))


def _read(_file: int, buffers: Sequence[bytearray], _offset: int) -> int:
    count = len(memoryview(buffers[0]))
    model_time.now_s += count / (_node()["disk_gb_per_s"] * 1e9)
    return count


os.pwritev, os.preadv = _written, _read  # simulate the node's disks, for which alone the acceptance uses these calls


def _nothing(gpu: int = 0) -> None:
    del gpu


cuda = SimpleNamespace(is_available=lambda: bool(_node()["gpus"]), synchronize=_nothing, set_device=_nothing)
