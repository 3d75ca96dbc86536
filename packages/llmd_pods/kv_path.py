"""How fast KV cache goes from node to node: reads through NIXL between two pods, and what their RDMA ports counted.

Not run on hardware yet: it follows NIXL's published API, and tests hold it to a stand-in of that. NIXL's Python API is
that of ai-dynamo/nixl (src/api/python/_api.py, v1.4.0) and of ROCm/RIXL 1.1.0, which agree in all that is used here;
vLLM's ROCm images bring one of them, and PyTorch (vLLM, docker/Dockerfile.rocm). Ports count as Linux documents it
(Documentation/ABI/stable/sysfs-class-infiniband).
"""

import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from llmd_pods.errors import KitError

Side = Literal["prefill", "decode"]
"""The prefill side has the cache, the decode side reads it, as NIXL's connector of vLLM does."""

SIDES: tuple[Side, Side] = ("prefill", "decode")
"""By the index of their pods."""


@dataclass(frozen=True)
class Transfer:
    """The cache of a prompt of `tokens` tokens, in `descriptors` pieces of `descriptor_bytes` each."""

    tokens: int
    descriptor_bytes: int
    descriptors: int

    @property
    def length_bytes(self) -> int:
        """All of it."""
        return self.descriptor_bytes * self.descriptors


@dataclass(frozen=True)
class KvPathRequest:
    """Each transfer is done `warm_ups` times, then `repeats` times by the clock. `limit_s` is for all of it."""

    namespace: str
    job: str
    transfers: tuple[Transfer, ...]
    repeats: int
    warm_ups: int
    limit_s: float

    @property
    def buffer_bytes(self) -> int:
        """What the largest transfer needs."""
        return max(transfer.length_bytes for transfer in self.transfers)

    @property
    def meeting_name(self) -> str:
        """The ConfigMap in which the prefill side says where its buffer is."""
        return f"{self.job}-meeting"

    def report_name(self, side: Side) -> str:
        """The ConfigMap with what a side found."""
        return f"{self.job}-{side}"

    def to_json(self) -> str:
        """As JSON."""
        return _REQUEST.dump_json(self).decode()


def from_json(text: str | bytes) -> KvPathRequest:
    """The request of `to_json`."""
    return _REQUEST.validate_json(text)


_REQUEST = TypeAdapter(KvPathRequest)

FOLDER = Path("/sys/class/infiniband")
GROUPS = ("counters", "hw_counters")

WORD_BYTES = 4
"""`port_xmit_data` and `port_rcv_data` count bytes divided by four."""

_RECEIVED, _SENT = "/counters/port_rcv_data", "/counters/port_xmit_data"

_TROUBLE = re.compile(r"err|retry|retrans|timeout|discard|drop|out_of|nak|link_downed|congest|cnp|ecn")
"""Parts of the names of counters that say that something was lost, repeated or held back; drivers name them freely."""

Counters = Mapping[str, int]
"""By device, port, group and name: `mlx5_0/1/counters/port_rcv_data`."""


def read_counters(folder: Path = FOLDER) -> dict[str, int]:
    """All counters of all ports that this pod sees; empty where it sees none."""
    values: dict[str, int] = {}
    for group in GROUPS:
        for file in sorted(folder.glob(f"*/ports/*/{group}/*")):
            value = _number(file)
            if value is not None:
                device, port = file.parts[-5], file.parts[-3]
                values[f"{device}/{port}/{group}/{file.name}"] = value
    return values


def increase(before: Counters, after: Counters) -> dict[str, int]:
    """What grew; a counter that began anew has no difference."""
    return {name: value - before[name] for name, value in after.items() if name in before and value > before[name]}


def counts_received_bytes(before: Counters, after: Counters) -> bool:
    """Whether a port counted received bytes all the while: it has such a counter, which did not begin anew."""
    return any(name.endswith(_RECEIVED) and value >= before.get(name, value + 1) for name, value in after.items())


def received_bytes(grown: Counters) -> int:
    """Bytes that ports received, of what `increase` found."""
    return WORD_BYTES * sum(value for name, value in grown.items() if name.endswith(_RECEIVED))


def sent_bytes(grown: Counters) -> int:
    """Bytes that ports sent, of what `increase` found."""
    return WORD_BYTES * sum(value for name, value in grown.items() if name.endswith(_SENT))


def trouble(grown: Counters) -> dict[str, int]:
    """Counters that say that something was lost, repeated or held back."""
    return {name: value for name, value in grown.items() if _TROUBLE.search(name.rsplit("/", 1)[-1])}


def _number(file: Path) -> int | None:
    """None for what can't be read: some counters exist in name only."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


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
def nixl_errors(doing: str) -> Generator[None]:
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

    @nixl_errors("its agent and buffer were set up")
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
    @nixl_errors("its metadata were asked for")
    def region(self) -> Region:
        """What another side needs to read the buffer.

        Raises:
            KitError: NIXL doesn't tell.
        """
        length_bytes = int(self._buffer.numel())
        metadata = self._agent.get_agent_metadata().hex()
        return Region(metadata=metadata, address=self._address, length_bytes=length_bytes, device=self._device)

    @nixl_errors("the other side's metadata were loaded")
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

    @nixl_errors("it read")
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


class TransferTimes(BaseModel):
    """One transfer and the seconds of each repetition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transfer: Transfer
    seconds: tuple[float, ...]


class Timings(BaseModel):
    """All transfers. `first_s` is the very first read, in which the agents connect."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_s: float
    timed: tuple[TransferTimes, ...]


def measure(
    endpoint: Endpoint,
    other: Region,
    request: KvPathRequest,
    *,
    clock: Clock = time.perf_counter,
    tell: Callable[[str], None] = print,
) -> Timings:
    """Reads the other side's buffer as asked, and sees to it that its bytes have come.

    Raises:
        KitError: a read fails, takes too long, or other bytes came.
    """
    if other.length_bytes < request.buffer_bytes:
        raise KitError(f"The other side's buffer has {other.length_bytes} bytes, {request.buffer_bytes} are asked for.")
    deadline_s = clock() + request.limit_s
    peer = endpoint.meet(other)
    timed: list[TransferTimes] = []
    every: list[float] = []
    for transfer in request.transfers:
        with endpoint.reading(peer, other, transfer) as read:
            seconds = [read.once(deadline_s - clock(), clock) for _ in range(request.warm_ups + request.repeats)]
        every += seconds
        _check(endpoint, transfer)
        timed.append(TransferTimes(transfer=transfer, seconds=tuple(seconds[request.warm_ups :])))
        tell(f"{transfer.length_bytes} bytes in {transfer.descriptors} pieces: {min(seconds) * 1000:.3f} ms at best")
    return Timings(first_s=every[0], timed=tuple(timed))


def _check(endpoint: Endpoint, transfer: Transfer) -> None:
    ends = endpoint.ends(transfer.length_bytes)
    if ends != (PATTERN, PATTERN):
        raise KitError(f"NIXL says that a read is done, but the bytes at its ends are {ends[0]} and {ends[1]}.")


@dataclass(frozen=True)
class PortShares:
    """What ports count of the bytes that NIXL moved where they alone carried them, as shares: headers only add to it
    (`least_share`), but not everything (`most_share`): more is somebody else's traffic.
    """

    least_share: float
    most_share: float


class SideReport(BaseModel):
    """What one side found; only the decode side has timings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    side: Side
    node: str
    package: str
    before: dict[str, int]
    after: dict[str, int]
    timings: Timings | None = None


@dataclass(frozen=True)
class Figure:
    """One transfer between two nodes, as it was measured. Rates are in GB (10^9 bytes) per second."""

    tokens: int
    descriptor_bytes: int
    descriptors: int
    repeats: int
    gb_per_s: float
    least_gb_per_s: float
    milliseconds: float


@dataclass(frozen=True)
class KvPath:
    """The way from a prefill node to a decode node.

    `carried_share` is what the decode side's ports received of the bytes that NIXL moved, None where no port was
    seen that counts bytes; `carried` is what it is held against.
    """

    prefill_node: str
    decode_node: str
    package: str
    first_ms: float
    figures: tuple[Figure, ...]
    moved_bytes: int
    received_bytes: int
    sent_bytes: int
    carried_share: float | None
    carried: PortShares
    trouble: dict[str, int]

    @property
    def missed(self) -> bool:
        """Whether it is sure that RDMA ports did not carry the cache."""
        return self.carried_share is not None and self.carried_share < self.carried.least_share

    @property
    def verdict(self) -> str:
        """What carried the cache, as far as the ports tell."""
        if self.carried_share is None:
            return "no RDMA port that counts bytes was seen in the pods: what carried it is not known"
        if self.carried_share > self.carried.most_share:
            return f"not known: RDMA ports received {self.carried_share:.1f} times of it, so that others use them too"
        if not self.missed:
            return "carried by RDMA ports"
        return f"NOT carried by RDMA ports: they received {self.carried_share:.0%} of it (TCP?)"


def path_of(request: KvPathRequest, prefill: SideReport, decode: SideReport, carried: PortShares) -> KvPath:
    """The path that both sides tell of.

    Raises:
        ValueError: the decode side has no timings.
    """
    if decode.timings is None:
        raise ValueError("the decode side measured nothing")
    sent, received = (increase(report.before, report.after) for report in (prefill, decode))
    times = request.warm_ups + request.repeats
    moved_bytes = times * sum(transfer.length_bytes for transfer in request.transfers)
    arrived_bytes = received_bytes(received)
    counted = counts_received_bytes(decode.before, decode.after)
    problems = {
        f"{report.side} {name}": value
        for report, grown in ((prefill, sent), (decode, received))
        for name, value in trouble(grown).items()
    }
    return KvPath(
        prefill_node=prefill.node,
        decode_node=decode.node,
        package=decode.package,
        first_ms=1000 * decode.timings.first_s,
        figures=tuple(map(_figure, decode.timings.timed)),
        moved_bytes=moved_bytes,
        received_bytes=arrived_bytes,
        sent_bytes=sent_bytes(sent),
        carried_share=arrived_bytes / moved_bytes if counted else None,
        carried=carried,
        trouble=problems,
    )


def as_json(path: KvPath) -> dict[str, Any]:
    """A path as plain data, with its verdict."""
    return {**asdict(path), "verdict": path.verdict, "basis": "measured"}


def _figure(timed: TransferTimes) -> Figure:
    transfer = timed.transfer
    return Figure(
        tokens=transfer.tokens,
        descriptor_bytes=transfer.descriptor_bytes,
        descriptors=transfer.descriptors,
        repeats=len(timed.seconds),
        gb_per_s=transfer.length_bytes / median(timed.seconds) / 1e9,
        least_gb_per_s=transfer.length_bytes / max(timed.seconds) / 1e9,
        milliseconds=1000 * median(timed.seconds),
    )
