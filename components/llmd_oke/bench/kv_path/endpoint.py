"""One side of a path: a NIXL agent, and a buffer in GPU memory that is registered with it.

NIXL's Python API is that of ai-dynamo/nixl (src/api/python/_api.py, v1.4.0) and of ROCm/RIXL 1.1.0, which agree in all
that is used here; vLLM's ROCm images bring one of them, and PyTorch (vLLM, docker/Dockerfile.rocm).
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ConfigDict

from llmd_oke.bench.kv_path.request import Transfer
from llmd_oke.errors import KitError

PACKAGES = ("nixl_rocm", "rixl", "nixl")
"""Names under which NIXL is installed: by vLLM's newer and older ROCm images (docker/Dockerfile.rocm), elsewhere."""

BACKEND = "UCX"

MEMORY, DEVICE = "VRAM", "cuda:0"
"""NIXL's name of GPU memory, PyTorch's of the first GPU (for ROCm too)."""

PATTERN = 0xA5
"""What the prefill side's buffer is full of, so that a read can be told from none."""

Clock = Callable[[], float]


class Region(BaseModel):
    """Registered memory of an agent, and the agent's metadata, which another needs to read it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metadata: str
    """In hexadecimal digits."""
    address: int
    length_bytes: int
    device: int


def nixl() -> tuple[str, Any]:
    """The installed NIXL: its package, and the module with its API.

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
    """PyTorch.

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
def explained(doing: str) -> Generator[None]:
    """What NIXL and PyTorch raise while they do something, in the kit's words.

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
    """One side. `fill` is the byte that its buffer is full of at first.

    Raises:
        KitError: NIXL has no UCX, or there is no such buffer, or NIXL refuses it.
    """

    @explained("its agent and buffer were set up")
    def __init__(self, name: str, length_bytes: int, fill: int, api: Any, torch: Any) -> None:
        self._agent = api.nixl_agent(name, api.nixl_agent_config(backends=[BACKEND]))
        if BACKEND not in self._agent.get_plugin_list():
            raise KitError(f"NIXL has no {BACKEND} here: {', '.join(self._agent.get_plugin_list()) or 'no plug-ins'}.")
        self._buffer = torch.full((length_bytes,), fill, dtype=torch.uint8, device=DEVICE)
        torch.cuda.synchronize()  # NIXL reads the memory past PyTorch's queue
        self._address, self._device = int(self._buffer.data_ptr()), int(self._buffer.get_device())
        whole = [(self._address, length_bytes, self._device, "")]
        self._registered = self._agent.register_memory(whole, mem_type=MEMORY)

    @property
    @explained("its metadata were asked for")
    def region(self) -> Region:
        """What another side needs to read the buffer.

        Raises:
            KitError: NIXL doesn't tell.
        """
        length_bytes = int(self._buffer.numel())
        metadata = self._agent.get_agent_metadata().hex()
        return Region(metadata=metadata, address=self._address, length_bytes=length_bytes, device=self._device)

    @explained("the other side's metadata were loaded")
    def meet(self, other: Region) -> str:
        """Takes another side's metadata; gives the name of its agent.

        Raises:
            KitError: NIXL doesn't take them.
        """
        name = self._agent.add_remote_agent(bytes.fromhex(other.metadata))
        return name.decode() if isinstance(name, bytes) else str(name)

    @contextmanager
    def reading(self, peer: str, other: Region, transfer: Transfer) -> Generator["Read"]:
        """A read of another side's buffer into this one's, which can be done again and again.

        Raises:
            KitError: NIXL refuses it.
        """
        with explained(f"a read of {transfer.length_bytes} bytes was prepared"):
            own = self._descriptors(self._address, self._device, transfer)
            remote = self._descriptors(other.address, other.device, transfer)
            handle = self._agent.initialize_xfer("READ", own, remote, peer)
        try:
            yield Read(self._agent, handle, transfer)
        finally:
            with suppress(Exception):  # NIXL can't cancel every read; what was wrong with it is told already
                self._agent.release_xfer_handle(handle)

    @explained("the buffer was looked at")
    def ends(self, length_bytes: int) -> tuple[int, int]:
        """The first and the last of so many bytes of the buffer.

        Raises:
            KitError: they can't be read.
        """
        return int(self._buffer[0]), int(self._buffer[length_bytes - 1])

    def close(self) -> None:
        """Takes the registration back, as far as NIXL does."""
        with suppress(Exception):  # the process ends next, and what went wrong before is told already
            self._agent.deregister_memory(self._registered)

    def _descriptors(self, address: int, device: int, transfer: Transfer) -> Any:
        size = transfer.descriptor_bytes
        pieces = [(address + place * size, size, device) for place in range(transfer.descriptors)]
        return self._agent.get_xfer_descs(pieces, mem_type=MEMORY)


class Read:
    """A prepared read."""

    def __init__(self, agent: Any, handle: Any, transfer: Transfer) -> None:
        self._agent = agent
        self._handle = handle
        self._transfer = transfer

    @explained("it read")
    def once(self, limit_s: float, clock: Clock = time.perf_counter) -> float:
        """Does it and waits for its end, without sleeping; gives the seconds that it took.

        Raises:
            KitError: it fails, or takes longer than `limit_s`.
        """
        began_s = clock()
        state = self._agent.transfer(self._handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(self._handle)
            if state == "PROC" and clock() - began_s > limit_s:
                raise KitError(f"A read of {self._transfer.length_bytes} bytes did not end within {limit_s:.0f} s.")
        if state != "DONE":
            raise KitError(f"NIXL ended a read of {self._transfer.length_bytes} bytes in state {state}.")
        return clock() - began_s
