"""A simulated PyTorch: as much of it as an acceptance uses. Buffers have one byte for all of theirs."""

import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

NODE = Path("/opt/simulated-node/node.json")
uint8, float32 = "uint8", "float32"
BYTES = {uint8: 1, float32: 4}


class ModelTime:
    """Seconds of work, by which durations are measured."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The seconds so far."""
        return self.now_s


model_time = ModelTime()
time.perf_counter = model_time


class Tensor:
    """A buffer on a GPU."""

    by_address: ClassVar[dict[int, "Tensor"]] = {}
    _addresses = itertools.count(1 << 20, 1 << 40)

    def __init__(self, count: int, fill: int, dtype: str, device: str) -> None:
        self.fill, self._count, self._gpu = fill, count, int(device.partition(":")[2])
        self.nbytes = count * BYTES[dtype]
        self._address = next(self._addresses)
        self.by_address[self._address] = self

    def data_ptr(self) -> int:
        """Its address."""
        return self._address

    def numel(self) -> int:
        """Its elements."""
        return self._count

    def get_device(self) -> int:
        """Its GPU."""
        return self._gpu

    def __getitem__(self, index: int) -> int:
        return self.fill


def full(size: tuple[int], fill_value: int, *, dtype: str, device: str) -> Tensor:
    """A buffer full of a value."""
    return Tensor(size[0], fill_value, dtype, device)


def ones(count: int, *, dtype: str, device: str) -> Tensor:
    """A buffer of ones."""
    return Tensor(count, 1, dtype, device)


def port_rates() -> list[float]:
    """GB/s of the node's ports."""
    return json.loads(NODE.read_text())["port_gb_per_s"]


def _nothing(gpu: int = 0) -> None:
    del gpu


cuda = SimpleNamespace(
    is_available=lambda: bool(json.loads(NODE.read_text())["gpus"]), synchronize=_nothing, set_device=_nothing
)
