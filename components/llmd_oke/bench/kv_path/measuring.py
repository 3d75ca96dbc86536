"""The reads of a request, by the clock."""

import time
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

from llmd_oke.bench.kv_path.endpoint import PATTERN, Clock, Endpoint, Region
from llmd_oke.bench.kv_path.request import KvPathRequest, Transfer
from llmd_oke.errors import KitError


class Timed(BaseModel):
    """One transfer and the seconds of each repetition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transfer: Transfer
    seconds: tuple[float, ...]


class Timings(BaseModel):
    """All transfers. `first_s` is the very first read, in which the agents connect."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_s: float
    timed: tuple[Timed, ...]


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
    timed: list[Timed] = []
    every: list[float] = []
    for transfer in request.transfers:
        with endpoint.reading(peer, other, transfer) as read:
            seconds = [read.once(deadline_s - clock(), clock) for _ in range(request.warm_ups + request.repeats)]
        every += seconds
        _check(endpoint, transfer)
        timed.append(Timed(transfer=transfer, seconds=tuple(seconds[request.warm_ups :])))
        tell(f"{transfer.length_bytes} bytes in {transfer.descriptors} pieces: {min(seconds) * 1000:.3f} ms at best")
    return Timings(first_s=every[0], timed=tuple(timed))


def _check(endpoint: Endpoint, transfer: Transfer) -> None:
    ends = endpoint.ends(transfer.length_bytes)
    if ends != (PATTERN, PATTERN):
        raise KitError(f"NIXL says that a read is done, but the bytes at its ends are {ends[0]} and {ends[1]}.")
