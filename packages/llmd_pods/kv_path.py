"""NIXL reads between GPUs of two pods, as KV cache is handed over, and the bytes that their RDMA ports counted.

Not run on hardware yet: it follows NIXL's published API, and tests hold it to a stand-in of that. NIXL's Python API is
that of ai-dynamo/nixl (src/api/python/_api.py, v1.4.0) and of ROCm/RIXL 1.1.0, which agree in all that is used here;
vLLM's ROCm images bring one of them, and PyTorch (vLLM, docker/Dockerfile.rocm). Ports count as Linux documents it
(Documentation/ABI/stable/sysfs-class-infiniband).
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError
from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True)
class BufferTransfer:
    """One buffer, in `descriptors` pieces of `descriptor_bytes` each."""

    descriptor_bytes: int
    descriptors: int

    @property
    def length_bytes(self) -> int:
        """Bytes of all pieces together."""
        return self.descriptor_bytes * self.descriptors


@dataclass(frozen=True)
class Reads:
    """Repetitions of a transfer: `warm_ups` times, then `repeats` times by the clock. `limit_s` is for all of them."""

    transfer: BufferTransfer
    repeats: int
    warm_ups: int
    limit_s: float


FOLDER = Path("/sys/class/infiniband")
GROUPS = ("counters", "hw_counters")

WORD_BYTES = 4
"""`port_rcv_data` counts bytes divided by four."""

_RECEIVED = "/counters/port_rcv_data"

Counters = Mapping[str, int]
"""Counters by device, port, group and name: `mlx5_0/1/counters/port_rcv_data`."""


def read_counters(folder: Path = FOLDER) -> dict[str, int]:
    """Read all counters of all ports that this pod sees; empty where it sees none."""
    values: dict[str, int] = {}
    for group in GROUPS:
        for file in sorted(folder.glob(f"*/ports/*/{group}/*")):
            device, port = file.parts[-5], file.parts[-3]
            with suppress(OSError, ValueError):  # some counters exist in name only
                values[f"{device}/{port}/{group}/{file.name}"] = int(file.read_text())
    return values


def increase(before: Counters, after: Counters) -> dict[str, int]:
    """Return what counters grew by; one that began anew has no difference."""
    return {name: value - before[name] for name, value in after.items() if name in before and value > before[name]}


def counts_received_bytes(before: Counters, after: Counters) -> bool:
    """Check that a port counted received bytes all the while: it has such a counter, which did not begin anew."""
    return any(name.endswith(_RECEIVED) and value >= before.get(name, value + 1) for name, value in after.items())


def received_bytes(grown: Counters) -> int:
    """Return the bytes that ports received, of what `increase` found."""
    return WORD_BYTES * sum(value for name, value in grown.items() if name.endswith(_RECEIVED))


PACKAGES = ("nixl_rocm", "rixl", "nixl")
"""Names under which NIXL is installed: by vLLM's newer and older ROCm images (docker/Dockerfile.rocm), elsewhere."""

BACKEND = "UCX"

MEMORY = "VRAM"
"""NIXL's name of GPU memory."""

PATTERN = 0xA5
"""Byte that a buffer that is read is full of, so that a read can be told from none."""

Clock = Callable[[], float]


class MemoryRegion(BaseModel):
    """Registered memory of an agent, and the agent's metadata, which another needs to read it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metadata: str
    """Metadata of the agent, in hexadecimal digits."""
    address: int
    length_bytes: int
    device: int


def nixl() -> tuple[str, Any]:
    """Import the installed NIXL, and return its package and the module with its API.

    Raises:
        KitError: there is none.
    """
    for package in PACKAGES:
        try:
            return package, import_module(f"{package}._api")
        except ModuleNotFoundError as error:
            if error.name not in {package, f"{package}._api"}:
                raise KitError(f"{package} is installed, but {error.name} is not.") from error
        except ImportError as error:
            raise KitError(f"{package} is installed, but can't be loaded: {error}") from error
    raise KitError(f"The image has no NIXL: none of {', '.join(PACKAGES)} is installed.", "Use vLLM's ROCm image.")


def pytorch() -> Any:
    """Import PyTorch.

    Raises:
        KitError: it isn't installed, or sees no GPU.
    """
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise KitError("The image has no PyTorch.", "Use vLLM's ROCm image.") from error
    if not torch.cuda.is_available():
        raise KitError("PyTorch sees no GPU in this pod.")
    return torch


@contextmanager
def nixl_errors(doing: str) -> Generator[None]:
    """Turn what NIXL and PyTorch raise in this block into an error of the kit's; `doing` says what was done.

    NIXL's own exceptions have no base but `Exception` (src/bindings/python/nixl_bindings.cpp), and its Python API
    raises KeyError, RuntimeError and others besides.

    Raises:
        KitError: instead of any of them.
    """
    try:
        yield
    except KitError:
        raise
    except Exception as error:
        raise KitError(f"NIXL or PyTorch failed when {doing}: {type(error).__name__}: {error}") from error


class Endpoint:
    """One side, on one of the pod's GPUs. `fill` is the byte that its buffer is full of at first.

    Raises:
        KitError: NIXL has no UCX, or there is no such buffer, or NIXL refuses it.
    """

    @nixl_errors("its agent and buffer were set up")
    def __init__(self, name: str, length_bytes: int, fill: int, api: Any, torch: Any, gpu: int = 0) -> None:
        self._agent = api.nixl_agent(name, api.nixl_agent_config(backends=[BACKEND]))
        if BACKEND not in self._agent.get_plugin_list():
            raise KitError(f"NIXL has no {BACKEND} here: {', '.join(self._agent.get_plugin_list()) or 'no plug-ins'}.")
        self._buffer = torch.full((length_bytes,), fill, dtype=torch.uint8, device=f"cuda:{gpu}")
        torch.cuda.synchronize(gpu)  # NIXL reads the memory past PyTorch's queue
        self._address, self._device = int(self._buffer.data_ptr()), int(self._buffer.get_device())
        whole = [(self._address, length_bytes, self._device, "")]
        self._registered = self._agent.register_memory(whole, mem_type=MEMORY)

    @property
    @nixl_errors("its metadata were asked for")
    def region(self) -> MemoryRegion:
        """Description of the buffer that another side needs to read it.

        Raises:
            KitError: NIXL doesn't tell.
        """
        length_bytes = int(self._buffer.numel())
        metadata = self._agent.get_agent_metadata().hex()
        return MemoryRegion(metadata=metadata, address=self._address, length_bytes=length_bytes, device=self._device)

    @nixl_errors("the other side's metadata were loaded")
    def meet(self, other: MemoryRegion) -> str:
        """Take another side's metadata, and return the name of its agent.

        Raises:
            KitError: NIXL doesn't take them.
        """
        name = self._agent.add_remote_agent(bytes.fromhex(other.metadata))
        return name.decode() if isinstance(name, bytes) else str(name)

    @contextmanager
    def reading(self, peer: str, other: MemoryRegion, transfer: BufferTransfer) -> Generator["Read"]:
        """A read of another side's buffer into this one's, which can be done again and again.

        Raises:
            KitError: NIXL refuses it.
        """
        with nixl_errors(f"a read of {transfer.length_bytes} bytes was prepared"):
            own = self._descriptors(self._address, self._device, transfer)
            remote = self._descriptors(other.address, other.device, transfer)
            handle = self._agent.initialize_xfer("READ", own, remote, peer)
        try:
            yield Read(self._agent, handle, transfer)
        finally:
            with suppress(Exception):  # NIXL can't cancel every read; what was wrong with it is told already
                self._agent.release_xfer_handle(handle)

    @nixl_errors("the buffer was looked at")
    def ends(self, length_bytes: int) -> tuple[int, int]:
        """Return the first and the last of so many bytes of the buffer.

        Raises:
            KitError: they can't be read.
        """
        return int(self._buffer[0]), int(self._buffer[length_bytes - 1])

    def close(self) -> None:
        """Take the registration back, as far as NIXL does."""
        with suppress(Exception):  # the process ends next, and what went wrong before is told already
            self._agent.deregister_memory(self._registered)

    def _descriptors(self, address: int, device: int, transfer: BufferTransfer) -> Any:
        size = transfer.descriptor_bytes
        pieces = [(address + place * size, size, device) for place in range(transfer.descriptors)]
        return self._agent.get_xfer_descs(pieces, mem_type=MEMORY)


class Read:
    """A prepared read."""

    def __init__(self, agent: Any, handle: Any, transfer: BufferTransfer) -> None:
        self._agent = agent
        self._handle = handle
        self._transfer = transfer

    @nixl_errors("it read")
    def once(self, limit_s: float, clock: Clock = time.perf_counter) -> float:
        """Read once and wait for the end, without sleeping; return the seconds that it took.

        Raises:
            KitError: it fails, or takes longer than `limit_s`.
        """
        started_s = clock()
        state = self._agent.transfer(self._handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(self._handle)
            if state == "PROC" and clock() - started_s > limit_s:
                raise KitError(f"A read of {self._transfer.length_bytes} bytes did not end within {limit_s:.0f} s.")
        if state != "DONE":
            raise KitError(f"NIXL ended a read of {self._transfer.length_bytes} bytes in state {state}.")
        return clock() - started_s


def measure(
    endpoint: Endpoint, other: MemoryRegion, reads: Reads, *, clock: Clock = time.perf_counter
) -> tuple[float, ...]:
    """Read the other side's buffer, and see to it that its bytes have come; return the seconds of each repetition.

    Raises:
        KitError: a read fails, takes too long, or other bytes came.
    """
    transfer = reads.transfer
    if other.length_bytes < transfer.length_bytes:
        raise KitError(
            f"The other side's buffer has {other.length_bytes} bytes, {transfer.length_bytes} are asked for."
        )
    deadline_s = clock() + reads.limit_s
    with endpoint.reading(endpoint.meet(other), other, transfer) as read:
        seconds = [read.once(deadline_s - clock(), clock) for _ in range(reads.warm_ups + reads.repeats)]
    ends = endpoint.ends(transfer.length_bytes)
    if ends != (PATTERN, PATTERN):
        raise KitError(f"NIXL says that a read is done, but the bytes at its ends are {ends[0]} and {ends[1]}.")
    return tuple(seconds[reads.warm_ups :])
