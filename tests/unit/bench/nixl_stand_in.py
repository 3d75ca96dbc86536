"""A stand-in of NIXL's Python API and of the little of PyTorch that a path's endpoint uses.

Names, parameters and states are those of ai-dynamo/nixl v1.4.0 (src/api/python/_api.py); memory is this process's own.
What NIXL would refuse is refused here, with the exceptions of its bindings (src/bindings/python/nixl_bindings.cpp):
unknown agents, memory that is not registered, pieces that differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TypeAlias

Piece: TypeAlias = tuple[int, int, int]
"""Address, bytes and GPU."""
Region: TypeAlias = tuple[int, int, int, str]
"""The same as it is registered, with a name."""


class nixlError(Exception):  # noqa: N801 - as NIXL names them
    """Base of the bindings' exceptions, which has no other base than Exception."""


nixlNotFoundError = type("nixlNotFoundError", (nixlError,), {})  # noqa: N816 - NIXL's names
nixlInvalidParamError = type("nixlInvalidParamError", (nixlError,), {})  # noqa: N816
nixlMismatchError = type("nixlMismatchError", (nixlError,), {})  # noqa: N816
nixlBackendError = type("nixlBackendError", (nixlError,), {})  # noqa: N816
nixlRemoteDisconnectError = type("nixlRemoteDisconnectError", (nixlError,), {})  # noqa: N816


def _require(there: bool) -> None:
    if not there:
        raise nixlNotFoundError("NIXL_ERR_NOT_FOUND")


class Memory:
    """Buffers by address, and what agents have registered."""

    def __init__(self) -> None:
        self.buffers: dict[int, bytearray] = {}
        self.agents: dict[str, nixl_agent] = {}

    def at(self, address: int, length: int) -> tuple[bytearray, int]:
        for start, buffer in self.buffers.items():
            if start <= address and address + length <= start + len(buffer):
                return buffer, address - start
        raise AssertionError("no such memory")


class Buffer:
    """A tensor of bytes on the first GPU."""

    def __init__(self, memory: Memory, address: int) -> None:
        self._memory, self._address = memory, address

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return len(self._memory.buffers[self._address])

    def get_device(self) -> int:
        return 0

    def __getitem__(self, index: int) -> int:
        return self._memory.buffers[self._address][index]


def torch_of(memory: Memory) -> SimpleNamespace:
    """PyTorch with one GPU."""
    addresses = iter(range(1 << 20, 1 << 40, 1 << 30))

    def full(size: Sequence[int], fill_value: int, *, dtype: str, device: str) -> Buffer:
        assert (dtype, device) == ("uint8", "cuda:0")
        address = next(addresses)
        memory.buffers[address] = bytearray([fill_value]) * size[0]
        return Buffer(memory, address)

    def synchronize(gpu: int) -> None:
        del gpu

    cuda = SimpleNamespace(is_available=lambda: True, synchronize=synchronize)
    return SimpleNamespace(full=full, uint8="uint8", cuda=cuda)


class nixl_agent_config:  # noqa: N801 - NIXL's name
    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = 0,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: Sequence[str] = ("UCX",),
    ) -> None:
        self.backends = list(backends)


@dataclass
class Transfer:
    """A handle: pairs of own and remote pieces, and what is still to be reported."""

    pairs: list[tuple[Piece, Piece]]
    states: Iterator[str | Exception] = field(default_factory=lambda: iter(()))
    state: str = ""


class nixl_agent:  # noqa: N801 - NIXL's name
    """Stand-in for an agent; `states` are what its transfers report, or raise, one after the other, `moves` whether
    they move anything, `most_bytes` what it registers."""

    memory: Memory
    plugins: tuple[str, ...] = ("UCX", "POSIX")
    states: tuple[str | Exception, ...] = ("PROC", "PROC", "DONE")
    moves = True
    most_bytes = 1 << 40

    def __init__(
        self, agent_name: str, nixl_conf: nixl_agent_config | None = None, instantiate_all: bool = False
    ) -> None:
        self.name = agent_name
        self.registered: list[Region] = []
        self.known: set[str] = set()
        self.released: list[Transfer] = []
        self.memory.agents[agent_name] = self

    def get_plugin_list(self) -> list[str]:
        return list(self.plugins)

    def register_memory(
        self, reg_list: Sequence[Region], mem_type: str | None = None, backends: Sequence[str] = ()
    ) -> Sequence[Region]:
        assert mem_type == "VRAM"
        assert all(len(item) == 4 for item in reg_list)
        if any(item[1] > self.most_bytes for item in reg_list):
            raise nixlBackendError("NIXL_ERR_BACKEND")
        self.registered += reg_list
        return reg_list

    def deregister_memory(self, dereg_list: Sequence[Region], backends: Sequence[str] = ()) -> None:
        _require(all(item in self.registered for item in dereg_list))
        self.registered = [item for item in self.registered if item not in dereg_list]

    def get_agent_metadata(self) -> bytes:
        return b"\x00metadata of " + self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        name = metadata.removeprefix(b"\x00metadata of ")
        if name == metadata:
            raise nixlMismatchError("NIXL_ERR_MISMATCH")
        self.known.add(name.decode())
        return name

    def get_xfer_descs(self, descs: Sequence[Piece], mem_type: str | None = None) -> Sequence[Piece]:
        assert mem_type == "VRAM"
        assert all(len(desc) == 3 for desc in descs)
        return descs

    def initialize_xfer(
        self,
        operation: str,
        local_descs: Sequence[Piece],
        remote_descs: Sequence[Piece],
        remote_agent: str,
        notif_msg: bytes = b"",
        backends: Sequence[str] = (),
    ) -> Transfer:
        assert operation == "READ"
        _require(remote_agent in self.known)
        if [item[1] for item in local_descs] != [item[1] for item in remote_descs]:
            raise nixlInvalidParamError("NIXL_ERR_INVALID_PARAM")
        other = self.memory.agents[remote_agent]
        _require(all(self._covers(item) for item in local_descs))
        _require(all(other._covers(item) for item in remote_descs))
        return Transfer(list(zip(local_descs, remote_descs, strict=True)))

    def transfer(self, handle: Transfer, notif_msg: bytes = b"") -> str:
        handle.states = iter(self.states)
        return self._next(handle)

    def check_xfer_state(self, handle: Transfer) -> str:
        return self._next(handle)

    def release_xfer_handle(self, handle: Transfer) -> None:
        if handle.state == "PROC":
            raise nixlBackendError("NIXL_ERR_BACKEND")
        self.released.append(handle)

    def _covers(self, piece: Piece) -> bool:
        return any(start <= piece[0] and piece[0] + piece[1] <= start + size for start, size, *_ in self.registered)

    def _next(self, handle: Transfer) -> str:
        state = next(handle.states)
        if isinstance(state, Exception):
            raise state
        handle.state = state
        for own, remote in handle.pairs if state == "DONE" and self.moves else ():
            target, at = self.memory.at(own[0], own[1])
            source, of = self.memory.at(remote[0], remote[1])
            target[at : at + own[1]] = source[of : of + own[1]]
        return state


def api_of(memory: Memory, **changes: object) -> SimpleNamespace:
    """NIXL's module `_api` over some memory; `changes` are class attributes of its agents."""
    agents = type("nixl_agent", (nixl_agent,), {"memory": memory, **changes})
    return SimpleNamespace(nixl_agent=agents, nixl_agent_config=nixl_agent_config)
