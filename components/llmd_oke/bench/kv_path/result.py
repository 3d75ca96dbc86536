"""What two pods found, and what it says of the path between their nodes."""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

from llmd_oke.bench.kv_path import counters
from llmd_oke.bench.kv_path.measuring import Timed, Timings
from llmd_oke.bench.kv_path.request import KvPathRequest, Side


@dataclass(frozen=True)
class Carried:
    """What ports count of the bytes that NIXL moved where they alone carried them, as shares: headers only add to it
    (`least_share`), but not everything (`most_share`): more is somebody else's traffic.
    """

    least_share: float
    most_share: float


class Report(BaseModel):
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
    carried: Carried
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


def path_of(request: KvPathRequest, prefill: Report, decode: Report, carried: Carried) -> KvPath:
    """The path that both sides tell of.

    Raises:
        ValueError: the decode side has no timings.
    """
    if decode.timings is None:
        raise ValueError("the decode side measured nothing")
    sent, received = (counters.moved(each.before, each.after) for each in (prefill, decode))
    times = request.warm_ups + request.repeats
    moved_bytes = times * sum(transfer.length_bytes for transfer in request.transfers)
    received_bytes = counters.received_bytes(received)
    told = counters.tells_received_bytes(decode.before, decode.after)
    problems = {
        f"{each.side} {name}": value
        for each, grown in ((prefill, sent), (decode, received))
        for name, value in counters.trouble(grown).items()
    }
    return KvPath(
        prefill_node=prefill.node,
        decode_node=decode.node,
        package=decode.package,
        first_ms=1000 * decode.timings.first_s,
        figures=tuple(map(_figure, decode.timings.timed)),
        moved_bytes=moved_bytes,
        received_bytes=received_bytes,
        sent_bytes=counters.sent_bytes(sent),
        carried_share=received_bytes / moved_bytes if told else None,
        carried=carried,
        trouble=problems,
    )


def as_json(path: KvPath) -> dict[str, Any]:
    """A path as plain data, with its verdict."""
    return {**asdict(path), "verdict": path.verdict, "basis": "measured"}


def _figure(timed: Timed) -> Figure:
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
