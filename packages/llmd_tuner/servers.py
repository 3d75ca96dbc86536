"""Curves of one server under a workload, at each batch, in which loads are looked up.

A server is described by what it sustains at a batch, because that needs no iteration: a load is turned into its batch
by looking it up in a rising curve. Requests arrive at random, so a sequence sees itself beside the mean of the others:
in a batch of B, which takes t(B) for a step, the others are the (B - 1) = rate x OSL x t(B) of Little's law.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from llmd_oke.catalogue.conditions import DEFAULT_BLOCK_SIZE
from llmd_oke.config.engine import DEFAULT_ENGINE
from numpy.typing import NDArray

from llmd_tuner.latency import LatencyModel
from llmd_tuner.waits import scv
from llmd_tuner.workload import WorkloadClasses

Array = NDArray[np.float64]

TOKEN_BUDGET = 8192
"""vLLM's default `--max-num-batched-tokens` of a server on GPUs with this much memory: tokens of one step."""


@dataclass(frozen=True)
class Room:
    """Room for sequences on a server. `key_value_tokens` is by tensor parallel size, without sizes that don't fit the
    model's weights.
    """

    key_value_tokens: Mapping[int, int]
    max_num_seqs: int = DEFAULT_ENGINE.max_num_seqs
    block_size: int = DEFAULT_BLOCK_SIZE
    """Tokens of a KV block of servers that hand caches over."""
    aggregated_block_size: int = DEFAULT_BLOCK_SIZE
    """Tokens of a KV block of servers that do both."""
    state_tokens: Mapping[int, int] = field(default_factory=dict[int, int])
    """Tokens whose room the state of a sequence takes, by tensor parallel size, where layers keep one."""

    def sequences(self, tensor_parallel_size: int, workload: WorkloadClasses, *, aggregated: bool) -> int:
        """Return how many sequences of the workload fit a server of that size, each in whole blocks."""
        tokens = self.key_value_tokens.get(tensor_parallel_size, 0)
        block_size = self.aggregated_block_size if aggregated else self.block_size
        kept = workload.kept_tokens(block_size) + self.state_tokens.get(tensor_parallel_size, 0)
        return min(self.max_num_seqs, int(tokens // kept))


@dataclass(frozen=True)
class PrefillServer:
    """A server that prefills: its mean service time and how much that varies."""

    tensor_parallel_size: int
    service_s: float
    service_scv: float
    overhead_s: float
    transfer_s: float
    """Hand-over of the mean prompt's KV cache through one port for each GPU that both servers have."""


@dataclass(frozen=True)
class DecodeServer:
    """A server that generates, at batches of 1, which is idle but for one sequence, to its largest."""

    tensor_parallel_size: int
    batches: Array
    step_s: Array
    """One token for each sequence, without what is not decoding."""
    itl_s: Array
    """Between two tokens of a sequence: a step, and prefills of other requests where the server does both."""
    requests_per_s: Array

    @property
    def most_requests_per_s(self) -> float:
        """Request rate at the largest batch."""
        return float(self.requests_per_s[-1])


def prefill_server(
    model: LatencyModel,
    workload: WorkloadClasses,
    tensor_parallel_size: int,
    rails: int = 1,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> PrefillServer:
    """Return a prefill server under a workload; a cached prefix is context that costs no computing but attention.

    Each prompt waits for what comes from the node's memory, beside which others are computed: the server does no more
    prompts in a second than can be loaded.
    """
    server = model.server(tensor_parallel_size)
    times: list[tuple[float, float]] = []
    loads_s: list[float] = []
    for lengths in workload.classes:
        kept = round(lengths.input_tokens * workload.host_hit_share)
        cached = kept + round(lengths.input_tokens * workload.prefix_cache_hit_share)
        loads_s.append(server.host_load_s(kept))
        prefill_s = server.prefill_s(max(1, round(lengths.input_tokens) - cached), cached)
        times.append((lengths.weight, max(prefill_s, loads_s[-1])))
    return PrefillServer(
        tensor_parallel_size=tensor_parallel_size,
        service_s=workload.mean(time_s for _, time_s in times),
        service_scv=scv(times),
        overhead_s=model.factors.prefill_overhead_s + workload.mean(loads_s),
        transfer_s=model.key_value_transfer_s(round(workload.input_tokens), rails, block_size),
    )


def decode_server(
    model: LatencyModel, workload: WorkloadClasses, tensor_parallel_size: int, batch: int
) -> DecodeServer:
    """Return a decode server with room for `batch` sequences."""
    batches, step_s = _steps(model, workload, tensor_parallel_size, batch)
    return DecodeServer(tensor_parallel_size, batches, step_s, step_s, _rates(workload, batches, step_s))


def aggregated_server(
    model: LatencyModel, workload: WorkloadClasses, prefill: PrefillServer, batch: int
) -> DecodeServer:
    """Return a server that prefills and decodes: between two tokens of a request it also prefills others that begin."""
    size = prefill.tensor_parallel_size
    batches, step_s = _steps(model, workload, size, batch)
    itl_s = step_s + (batches - 1) / workload.output_tokens * prefill.service_s
    return DecodeServer(size, batches, step_s, itl_s, _rates(workload, batches, itl_s))


def _steps(model: LatencyModel, workload: WorkloadClasses, size: int, batch: int) -> tuple[Array, Array]:
    server, context_tokens = model.server(size), workload.context_tokens
    batches = range(1, batch + 1)
    return np.array(batches, dtype=np.float64), np.array([server.decode_step_s(b, context_tokens) for b in batches])


def _rates(workload: WorkloadClasses, batches: Array, itl_s: Array) -> Array:
    return (batches - 1) / (workload.output_tokens * itl_s)
