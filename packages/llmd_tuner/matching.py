"""Matching of prefill servers to decode servers that they keep busy, from two benchmarks of single servers, as
published.

Follows j-pareto's `compute_disagg_points`, with what that leaves out: demand is rounded up over all decode servers
together and not for each, a share of prefill's rate can be kept free, and the KV cache must hold what is decoded.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmd_base.errors import KitError
from llmd_base.row import Row
from llmd_bench.deployment import Parallelism, disaggregated_short_form


@dataclass(frozen=True)
class DecodePoint:
    """Measured throughput of one decode server of `gpus` GPUs with `concurrency` requests."""

    gpus: int
    concurrency: float
    tokens_per_s: float


@dataclass(frozen=True)
class MatchingSettings:
    """Workload and limits for which prefill servers are matched to decode servers. `prefill_share` is the usable share
    of the prefill servers' rate, 1 in the published method. `key_value_tokens` is the number of tokens that a decode
    server's KV cache holds, by the server's number of GPUs; servers with other numbers are not checked. `gpus_per_node`
    is the number of GPUs that are reserved at a time, 1 where single GPUs can be had.
    """

    input_tokens: float
    output_tokens: float
    decode_replicas: int = 1
    prefill_share: float = 1.0
    key_value_tokens: Mapping[int, int] | None = None
    gpus_per_node: int = 1


@dataclass(frozen=True)
class Match:
    """Number of decode servers at one load, and the number of prefill servers that keep them busy."""

    decode: DecodePoint
    decode_replicas: int
    prefill_gpus_each: int
    prefill_instances: int
    prompt_tokens_per_s: float
    """Prompt tokens per second that the decode servers need from all prefill servers."""
    gpus_reserved: int
    fits: bool
    """Whether the KV cache of each decode server holds its requests; True where its size is not known."""

    @property
    def prefill_gpus(self) -> int:
        """Number of GPUs of all prefill servers together."""
        return self.prefill_instances * self.prefill_gpus_each

    @property
    def gpus(self) -> int:
        """Number of GPUs of all prefill and decode servers together."""
        return self.prefill_gpus + self.decode_replicas * self.decode.gpus

    @property
    def topology(self) -> str:
        """Topology of the matched servers in short form, such as `8p-tp1-4d-tp2`."""
        return disaggregated_short_form(
            self.prefill_instances,
            Parallelism(self.prefill_gpus_each),
            self.decode_replicas,
            Parallelism(self.decode.gpus),
        )

    @property
    def tpsu(self) -> float:
        """Output tokens per second and user of the decode servers alone, without queueing, prefill and transfer."""
        return self.decode.tokens_per_s / self.decode.concurrency

    @property
    def tpsg(self) -> float:
        """Output tokens per second divided by the number of GPUs of all prefill and decode servers."""
        return self.decode_replicas * self.decode.tokens_per_s / self.gpus


def match(decode: DecodePoint, prefill_tokens_per_s: Mapping[int, float], settings: MatchingSettings) -> Match:
    """Return the prefill servers that keep up with a decode server on the fewest GPUs; of equal matches, that of the
    first server size.

    `prefill_tokens_per_s` is the highest rate of one prefill server in tokens per second, by its number of GPUs. A
    decode server with an output rate of T tokens per second demands T x ISL / OSL prompt tokens per second; y of them
    need ceil(y x demand / rate) prefill servers.

    Raises:
        KitError: there is no prefill server.
    """
    if not prefill_tokens_per_s:
        raise KitError("There is no prefill row to match with.", "Benchmark a prefill server with OSL 1.")
    demand = settings.decode_replicas * decode.tokens_per_s * settings.input_tokens / settings.output_tokens
    prefill_gpus, instances = min(
        ((gpus, _ceil(demand / (rate * settings.prefill_share))) for gpus, rate in prefill_tokens_per_s.items()),
        key=lambda choice: choice[0] * choice[1],
    )
    gpus = prefill_gpus * instances + settings.decode_replicas * decode.gpus
    node = settings.gpus_per_node
    room = None if settings.key_value_tokens is None else settings.key_value_tokens.get(decode.gpus)
    return Match(
        decode=decode,
        decode_replicas=settings.decode_replicas,
        prefill_gpus_each=prefill_gpus,
        prefill_instances=instances,
        prompt_tokens_per_s=demand,
        gpus_reserved=_ceil(gpus / node) * node,
        fits=room is None or decode.concurrency * (settings.input_tokens + settings.output_tokens) <= room,
    )


def matches(rows: Iterable[Row], settings: MatchingSettings) -> list[Match]:
    """Return a match for each decode row, in their order, with the prefill servers of the prefill rows.

    Raises:
        KitError: there is no prefill row.
    """
    rows = list(rows)
    capacity = prefill_capacity(rows)
    return [match(point, capacity, settings) for point in decode_capability(rows)]


def prefill_capacity(rows: Iterable[Row]) -> dict[int, float]:
    """Return the highest token rate of a prefill server over all concurrencies, by its number of GPUs."""
    best: dict[int, float] = {}
    for row in rows:
        if row.subject == "prefill" and row.input_tokens_per_s:
            total = row.input_tokens_per_s + (row.output_tokens_per_s or 0.0)
            best[row.gpus_counted] = max(best.get(row.gpus_counted, 0.0), total)
    return best


def decode_capability(rows: Iterable[Row]) -> Sequence[DecodePoint]:
    """Return a point for each decode row with enough figures; a missing rate is computed from TPOT and concurrency."""
    return [
        DecodePoint(row.gpus_counted, row.concurrency, rate)
        for row in rows
        if row.subject == "decode"
        and row.concurrency
        and (rate := row.output_tokens_per_s or row.concurrency * 1000 / (row.tpot_ms.mean or math.inf))
    ]


def _ceil(number: float) -> int:
    """Round up, but for what is rounding itself."""
    return math.ceil(number - 1e-9)
