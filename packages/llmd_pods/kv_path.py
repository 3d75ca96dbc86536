"""NIXL reads between GPUs of two pods, as in the transfer of KV cache, and byte counters of the RDMA ports.

Not run on hardware yet: the code follows NIXL's published API and is tested with a stand-in. The Python APIs of
ai-dynamo/nixl (src/api/python/_api.py, v1.4.0) and ROCm/RIXL 1.1.0 agree in everything used here; vLLM's ROCm images
contain one of them, and PyTorch (vLLM, docker/Dockerfile.rocm). Port counters are documented by Linux
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
    """Transfer of a buffer in `descriptors` pieces of `descriptor_bytes` each."""

    descriptor_bytes: int
    descriptors: int

    @property
    def length_bytes(self) -> int:
        """Total number of bytes of all pieces of the transfer."""
        return self.descriptor_bytes * self.descriptors


@dataclass(frozen=True)
class Reads:
    """Repetitions of a transfer: `warm_ups` without timing, then `repeats` with timing; `limit_s` is the time limit for
    all in seconds.
    """

    transfer: BufferTransfer
    repeats: int
    warm_ups: int
    limit_s: float


FOLDER = Path("/sys/class/infiniband")
GROUPS = ("counters", "hw_counters")

WORD_BYTES = 4
"""Bytes for each count of the RDMA port counter `port_rcv_data`."""

_RECEIVED = "/counters/port_rcv_data"

Counters = Mapping[str, int]
"""Counter values by device, port, group and name, for example `mlx5_0/1/counters/port_rcv_data`."""


def read_counters(folder: Path = FOLDER) -> dict[str, int]:
    """Read all counters of all RDMA ports in this pod; empty without ports."""
    values: dict[str, int] = {}
    for group in GROUPS:
        for file in sorted(folder.glob(f"*/ports/*/{group}/*")):
            device, port = file.parts[-5], file.parts[-3]
            with suppress(OSError, ValueError):  # some counters have a file that can't be read
                values[f"{device}/{port}/{group}/{file.name}"] = int(file.read_text())
    return values


def increase(before: Counters, after: Counters) -> dict[str, int]:
    """Return the increases of the RDMA port counters that grew between two readings; counters that were reset are left
    out.
    """
    return {name: value - before[name] for name, value in after.items() if name in before and value > before[name]}


def counts_received_bytes(before: Counters, after: Counters) -> bool:
    """Return whether a port has a counter of received bytes that wasn't reset between the two readings."""
    return any(name.endswith(_RECEIVED) and value >= before.get(name, value + 1) for name, value in after.items())


def received_bytes(grown: Counters) -> int:
    """Return the bytes that ports received, from the increases of the counters."""
    return WORD_BYTES * sum(value for name, value in grown.items() if name.endswith(_RECEIVED))


PACKAGES = ("nixl_rocm", "rixl", "nixl")
"""Package names of NIXL: in newer and in older ROCm images of vLLM (docker/Dockerfile.rocm), and elsewhere."""

BACKEND = "UCX"

MEMORY = "VRAM"
"""GPU memory in NIXL's terms."""

PATTERN = 0xA5
"""Value of all bytes of a readable buffer, by which the result of a read is verified."""

Clock = Callable[[], float]


class MemoryRegion(BaseModel):
    """Registered memory of a NIXL agent, with the agent's metadata, which a reading agent needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metadata: str
    """Metadata of the NIXL agent as hexadecimal digits."""
    address: int
    length_bytes: int
    device: int


def nixl() -> tuple[str, Any]:
    """Import the installed NIXL, and return the package's name and its API module.

    Raises:
        KitError: NIXL isn't installed or can't be loaded.
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
    """Import PyTorch and return its module.

    Raises:
        KitError: PyTorch isn't installed, or sees no GPU.
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
    """Convert errors of NIXL and PyTorch inside the `with` block into a KitError; `doing` describes the operation.

    NIXL's exceptions have no base class but `Exception` (src/bindings/python/nixl_bindings.cpp), and its Python API
    also raises KeyError, RuntimeError and others.

    Raises:
        KitError: any other exception was raised.
    """
    try:
        yield
    except KitError:
        raise
    except Exception as error:
        raise KitError(f"NIXL or PyTorch failed when {doing}: {type(error).__name__}: {error}") from error


class Endpoint:
    """NIXL agent with a buffer on one of the pod's GPUs; `fill` is the initial value of the buffer's bytes.

    Raises:
        KitError: NIXL lacks UCX, the buffer can't be allocated, or NIXL refuses it.
    """

    @nixl_errors("its agent and buffer were set up")
    def __init__(self, name: str, length_bytes: int, fill: int, api: Any, torch: Any, gpu: int = 0) -> None:
        self._agent = api.nixl_agent(name, api.nixl_agent_config(backends=[BACKEND]))
        if BACKEND not in self._agent.get_plugin_list():
            raise KitError(f"NIXL has no {BACKEND} here: {', '.join(self._agent.get_plugin_list()) or 'no plug-ins'}.")
        self._buffer = torch.full((length_bytes,), fill, dtype=torch.uint8, device=f"cuda:{gpu}")
        torch.cuda.synchronize(gpu)  # NIXL doesn't wait for PyTorch's stream
        self._address, self._device = int(self._buffer.data_ptr()), int(self._buffer.get_device())
        whole = [(self._address, length_bytes, self._device, "")]
        self._registered = self._agent.register_memory(whole, mem_type=MEMORY)

    @property
    @nixl_errors("its metadata were asked for")
    def region(self) -> MemoryRegion:
        """Description of the buffer that another endpoint needs to read it.

        Raises:
            KitError: NIXL doesn't return the agent's metadata.
        """
        length_bytes = int(self._buffer.numel())
        metadata = self._agent.get_agent_metadata().hex()
        return MemoryRegion(metadata=metadata, address=self._address, length_bytes=length_bytes, device=self._device)

    @nixl_errors("the other side's metadata were loaded")
    def meet(self, other: MemoryRegion) -> str:
        """Load the metadata of another pod's endpoint into this agent, and return the name of the other agent.

        Raises:
            KitError: NIXL refuses the metadata.
        """
        name = self._agent.add_remote_agent(bytes.fromhex(other.metadata))
        return name.decode() if isinstance(name, bytes) else str(name)

    @contextmanager
    def reading(self, peer: str, other: MemoryRegion, transfer: BufferTransfer) -> Generator["Read"]:
        """Prepare a repeatable read of another endpoint's buffer into this one's, as a context manager.

        Raises:
            KitError: NIXL refuses the read.
        """
        with nixl_errors(f"a read of {transfer.length_bytes} bytes was prepared"):
            own = self._descriptors(self._address, self._device, transfer)
            remote = self._descriptors(other.address, other.device, transfer)
            handle = self._agent.initialize_xfer("READ", own, remote, peer)
        try:
            yield Read(self._agent, handle, transfer)
        finally:
            with suppress(Exception):  # NIXL can't cancel every read, and its failure is reported already
                self._agent.release_xfer_handle(handle)

    @nixl_errors("the buffer was looked at")
    def ends(self, length_bytes: int) -> tuple[int, int]:
        """Return the first and the last of the buffer's first `length_bytes` bytes.

        Raises:
            KitError: the bytes can't be read.
        """
        return int(self._buffer[0]), int(self._buffer[length_bytes - 1])

    def close(self) -> None:
        """Deregister this endpoint's buffer from NIXL; errors are ignored."""
        with suppress(Exception):  # the process is about to end, and earlier errors are reported already
            self._agent.deregister_memory(self._registered)

    def _descriptors(self, address: int, device: int, transfer: BufferTransfer) -> Any:
        size = transfer.descriptor_bytes
        pieces = [(address + place * size, size, device) for place in range(transfer.descriptors)]
        return self._agent.get_xfer_descs(pieces, mem_type=MEMORY)


class Read:
    """Prepared NIXL read of another pod's GPU buffer into this pod's, which can be repeated."""

    def __init__(self, agent: Any, handle: Any, transfer: BufferTransfer) -> None:
        self._agent = agent
        self._handle = handle
        self._transfer = transfer

    @nixl_errors("it read")
    def once(self, limit_s: float, clock: Clock = time.perf_counter) -> float:
        """Read once, polling without sleep until the end, and return the duration in seconds.

        Raises:
            KitError: the read fails, or takes longer than `limit_s`.
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
    """Read the other endpoint's buffer repeatedly, verify its bytes, and return the duration of each timed repetition
    in seconds.

    Raises:
        KitError: a read fails or takes too long, or the bytes are wrong.
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
