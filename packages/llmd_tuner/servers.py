"""Latency curves of one rank of a server under a workload, over its batch size, in which loads are looked up.

A rank is described by what it sustains at each batch, because that needs no iteration: a load is turned into its batch
by looking it up in a rising curve. Requests arrive at random, so a sequence sees itself beside the mean of the others:
in a batch of B, which takes t(B) for a step, the others are the (B - 1) = rate x OSL x t(B) of Little's law. A server
has one rank, or several of data parallelism, among which requests are spread as among servers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue.conditions import DEFAULT_BLOCK_SIZE
from llmd_oke.config.engine import DEFAULT_ENGINE
from llmd_oke.planning import Memory
from numpy.typing import NDArray

from llmd_tuner.latency import LatencyModel, ServerLatency
from llmd_tuner.waits import scv
from llmd_tuner.workload import WorkloadClasses

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

TOKEN_BUDGET = 8192
"""vLLM's default `--max-num-batched-tokens` of a server on GPUs with this much memory: tokens of one step."""


@dataclass(frozen=True)
class Room:
    """Limits on the number of sequences of a rank: vLLM's `--max-num-seqs`, and the block sizes by which the KV cache
    is filled.
    """

    max_num_seqs: int = DEFAULT_ENGINE.max_num_seqs
    """Maximum number of sequences that each rank runs at a time, even if its KV cache holds more."""
    block_size: int = DEFAULT_BLOCK_SIZE
    """Tokens per KV block of servers that transfer KV cache."""
    aggregated_block_size: int = DEFAULT_BLOCK_SIZE
    """Tokens per KV block of servers that both prefill and decode."""

    def sequences(self, memory: Memory, workload: WorkloadClasses, *, aggregated: bool) -> int:
        """Return how many sequences of the workload fit a rank of a server with this memory, each in whole blocks."""
        block_size = self.aggregated_block_size if aggregated else self.block_size
        held = memory.sequences(math.ceil(workload.kept_tokens(block_size))) // memory.ranks
        return min(self.max_num_seqs, held)


@dataclass(frozen=True)
class PrefillServer:
    """Prefill server under a workload. `service_s` is the mean time in seconds that a rank computes for a prompt,
    `service_scv` its squared coefficient of variation, and `overhead_s` a fixed time for each prompt.
    """

    parallelism: Parallelism
    service_s: float
    service_scv: float
    overhead_s: float
    transfer_s: float
    """Seconds to transfer the KV cache of the mean prompt, through one port for each GPU that the ranks of both servers
    have.
    """


@dataclass(frozen=True)
class DecodeServer:
    """Server that generates tokens under a workload: arrays over the number of sequences in a rank's batch, from 1 to
    the maximum.
    """

    parallelism: Parallelism
    batches: Array
    step_s: Array
    """Seconds of a decode step, which yields one token for each sequence, without prefills."""
    itl_s: Array
    """Seconds between two tokens of a sequence: a step, and prefills of other requests where the server does both."""
    requests_per_s: Array

    @property
    def most_requests_per_s(self) -> float:
        """Maximum load of a rank in requests per second, which is that at the largest batch."""
        return float(self.requests_per_s[-1])


class ServerCurves:
    """Latency curves of several kinds of servers in common arrays, so that loads of all kinds are looked up in one
    call. The position of a load in the arrays is twice the kind's index plus the load's share of the kind's highest
    rate; positions thus rise from each element to the next.
    """

    def __init__(self, servers: Sequence[DecodeServer]) -> None:
        self.ranks: Counts = np.array([server.parallelism.data_parallel_size for server in servers], dtype=np.int64)
        self.most_requests_per_s: Array = np.array([server.most_requests_per_s for server in servers])
        lengths = [len(server.batches) for server in servers]
        self._starts: Counts = np.cumsum([0, *lengths])[:-1].astype(np.int64)
        self._lasts: Counts = self._starts + np.array(lengths, dtype=np.int64) - 2
        self._batches = np.concatenate([server.batches for server in servers])
        self._positions = np.concatenate(
            [2 * place + server.requests_per_s / server.most_requests_per_s for place, server in enumerate(servers)]
        )
        self._times_s = np.concatenate([np.stack([server.itl_s, server.step_s]) for server in servers], axis=1)

    def at(self, kind: Counts, requests_per_s: Array) -> tuple[Array, Array, Array]:
        """Return batch, `itl_s` and `step_s` for a rank of each given kind of servers at its own load in
        `requests_per_s`.
        """
        share = np.minimum(requests_per_s / self.most_requests_per_s[kind], 1.0)
        batch = np.interp(2 * kind + share, self._positions, self._batches)
        low = np.minimum(self._starts[kind] + batch.astype(np.int64) - 1, self._lasts[kind])
        part = batch - self._batches[low]
        below, above = self._times_s[:, low], self._times_s[:, low + 1]
        itl_s, step_s = below + part * (above - below)
        return batch, itl_s, step_s


def prefill_server(
    model: LatencyModel,
    workload: WorkloadClasses,
    parallelism: Parallelism,
    rails: int = 1,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> PrefillServer:
    """Return a prefill server under a workload. A cached prefix costs attention but no other computation.

    A prompt waits until its part of the KV cache in the node's memory is loaded, while other prompts are computed: a
    rank does no more prompts per second than can be loaded.
    """
    server = model.server(parallelism)
    times: list[tuple[float, float]] = []
    loads_s: list[float] = []
    for lengths in workload.classes:
        kept = round(lengths.input_tokens * workload.host_hit_share)
        cached = kept + round(lengths.input_tokens * workload.prefix_cache_hit_share)
        loads_s.append(server.host_load_s(kept))
        prefill_s = server.prefill_s(max(1, round(lengths.input_tokens) - cached), cached)
        times.append((lengths.weight, max(prefill_s, loads_s[-1])))
    return PrefillServer(
        parallelism=parallelism,
        service_s=workload.mean(time_s for _, time_s in times),
        service_scv=scv(times),
        overhead_s=model.factors.prefill_overhead_s + workload.mean(loads_s),
        transfer_s=model.key_value_transfer_s(round(workload.input_tokens), rails, block_size),
    )


def decode_server(model: LatencyModel, workload: WorkloadClasses, parallelism: Parallelism, batch: int) -> DecodeServer:
    """Return a decode server under a workload, with room for `batch` sequences in each rank."""
    batches, step_s = _steps(model.server(parallelism), workload.context_tokens, batch)
    return DecodeServer(parallelism, batches, step_s, step_s, _rates(workload, batches, step_s))


def aggregated_server(
    model: LatencyModel, workload: WorkloadClasses, prefill: PrefillServer, batch: int
) -> DecodeServer:
    """Return an aggregated server under a workload, with room for `batch` sequences in each rank: between two tokens of
    a request it also prefills new ones.
    """
    batches, step_s = _steps(model.server(prefill.parallelism), workload.context_tokens, batch)
    itl_s = step_s + (batches - 1) / workload.output_tokens * prefill.service_s
    return DecodeServer(prefill.parallelism, batches, step_s, itl_s, _rates(workload, batches, itl_s))


@lru_cache(maxsize=1024)
def _steps(server: ServerLatency, context_tokens: float, batch: int) -> tuple[Array, Array]:
    """Return the batches of a rank up to `batch`, and the time of a step of each (`ServerLatency.decode_step_s`).

    A search asks for each server beside several others; answers are shared, so that nobody may write to them.
    """
    batches = np.arange(1, batch + 1, dtype=np.float64)
    steps_s = np.array([server.decode_step_s(size, context_tokens) for size in range(1, batch + 1)])
    for answer in (batches, steps_s):
        answer.flags.writeable = False
    return batches, steps_s


def _rates(workload: WorkloadClasses, batches: Array, itl_s: Array) -> Array:
    return (batches - 1) / (workload.output_tokens * itl_s)
