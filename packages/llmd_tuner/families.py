"""All deployments of the same kinds of servers, scored together: arrays of counts in, arrays of latencies out.

All of it is the steady state in closed form; nothing is simulated and nothing iterates. Requests arrive at random
(Poisson); a router spreads those of a unit, as well as its profile can (`loose`), copies are separate.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from llmd_tuner.search_inputs import SearchInputs
from llmd_tuner.servers import TOKEN_BUDGET, DecodeServer, PrefillServer
from llmd_tuner.waits import Looseness, routed_waits_s, waits_s
from llmd_tuner.workload import WorkloadClasses

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

CONSTRAINTS: Final = ("prefill", "decode", "KV transfer", "TTFT", "ITL", "E2E")
"""What can bind, in the order of `ScoredFleet.ratios`."""

FINE = 1 + 1e-9
"""A ratio up to which a target is met."""

_HALVINGS = 20
"""Of the range in which a deployment's capacity is looked for: to a millionth of it."""

MAX_COPIES = 64
"""The most units that a stack file may ask for."""


@dataclass(frozen=True)
class DeploymentCounts:
    """Counts of deployments: servers of each role in a unit, and units.

    Aggregated servers stand under `decode`, with no `prefill`.
    """

    prefill: Counts
    decode: Counts
    copies: Counts

    def at(self, places: "NDArray[np.int64]") -> "DeploymentCounts":
        """Return the deployments at some places."""
        return DeploymentCounts(self.prefill[places], self.decode[places], self.copies[places])


@dataclass(frozen=True)
class Scores:
    """Steady states of deployments under loads.

    Loads of roles are shares of what they sustain; latencies are means, in seconds.
    """

    prefill_load: Array
    decode_load: Array
    transfer_load: Array
    batch: Array
    wait_s: Array
    ttft_s: Array
    itl_s: Array
    e2e_s: Array


class DeploymentFamily(Protocol):
    """Deployments that differ in counts only."""

    @property
    def name(self) -> str:
        """Kinds of servers: `p-tp1-d-tp2`, `agg-tp4`."""
        ...

    @property
    def generating(self) -> DecodeServer:
        """Servers that generate tokens."""
        ...

    def gpus(self, fleet: DeploymentCounts) -> Counts:
        """Return the GPUs of all servers."""
        ...

    def topology(self, prefill: int, decode: int) -> str:
        """Return the topology of a unit in short form."""
        ...

    def most_requests_per_s(self, fleet: DeploymentCounts) -> Array:
        """Return the request rate that the slower role sustains."""
        ...

    def score(self, fleet: DeploymentCounts, requests_per_s: Array) -> Scores:
        """Return the steady state under loads; latencies are infinite under overload."""
        ...


@dataclass(frozen=True)
class Disaggregated:
    """Prefill servers that hand over to decode servers."""

    prefill: PrefillServer
    decode: DecodeServer
    workload: WorkloadClasses
    loose: Looseness

    @property
    def name(self) -> str:
        """Kinds of servers."""
        return f"p-tp{self.prefill.tensor_parallel_size}-d-tp{self.decode.tensor_parallel_size}"

    @property
    def generating(self) -> DecodeServer:
        """Decode servers."""
        return self.decode

    def gpus(self, fleet: DeploymentCounts) -> Counts:
        """Return the GPUs of all servers."""
        unit = fleet.prefill * self.prefill.tensor_parallel_size + fleet.decode * self.decode.tensor_parallel_size
        return fleet.copies * unit

    def topology(self, prefill: int, decode: int) -> str:
        """Return the topology of a unit in short form."""
        sizes = self.prefill.tensor_parallel_size, self.decode.tensor_parallel_size
        return f"{prefill}p-tp{sizes[0]}-{decode}d-tp{sizes[1]}"

    def most_requests_per_s(self, fleet: DeploymentCounts) -> Array:
        """Return the request rate that the slower role sustains."""
        decode = fleet.decode * self.decode.most_requests_per_s
        slower: Array = np.minimum(fleet.prefill / self.prefill.service_s, decode)
        return fleet.copies * slower

    def score(self, fleet: DeploymentCounts, requests_per_s: Array) -> Scores:
        """Return the steady state under loads.

        TTFT = overhead + wait + prefill + hand-over + first step; the wait for a port is that of M/D/1.
        """
        load = requests_per_s / fleet.copies
        utilization = load * self.prefill.service_s / fleet.prefill
        server_load = load / fleet.decode
        batch = np.interp(server_load, self.decode.requests_per_s, self.decode.batches)
        itl_s = np.interp(batch, self.decode.batches, self.decode.itl_s)
        wait_s = routed_waits_s(
            fleet.prefill, utilization, self.prefill.service_s, self.prefill.service_scv, self.loose.disaggregated
        )
        transfer_load = load * self.prefill.transfer_s / fleet.prefill
        one_port = np.ones(load.shape, dtype=np.int64)
        hand_over_s = self.prefill.transfer_s + waits_s(one_port, transfer_load, self.prefill.transfer_s, 0.0)
        ttft_s = self.prefill.overhead_s + wait_s + self.prefill.service_s + hand_over_s + itl_s
        return Scores(
            prefill_load=utilization,
            decode_load=server_load / self.decode.most_requests_per_s,
            transfer_load=transfer_load,
            batch=batch,
            wait_s=wait_s,
            ttft_s=ttft_s,
            itl_s=itl_s,
            e2e_s=ttft_s + (self.workload.output_tokens - 1) * itl_s,
        )


@dataclass(frozen=True)
class Aggregated:
    """Servers that prefill and decode, with chunked prefill."""

    prefill: PrefillServer
    server: DecodeServer
    workload: WorkloadClasses
    loose: Looseness

    @property
    def name(self) -> str:
        """Kind of server."""
        return f"agg-tp{self.server.tensor_parallel_size}"

    @property
    def generating(self) -> DecodeServer:
        """All servers of the deployment."""
        return self.server

    def gpus(self, fleet: DeploymentCounts) -> Counts:
        """Return the GPUs of all servers."""
        return fleet.copies * fleet.decode * self.server.tensor_parallel_size

    def topology(self, prefill: int, decode: int) -> str:  # noqa: ARG002 - as all families
        """Return the topology of a unit in short form."""
        return f"agg-tp{self.server.tensor_parallel_size}-{decode}r"

    def most_requests_per_s(self, fleet: DeploymentCounts) -> Array:
        """Return the request rate at the largest batch."""
        most: Array = fleet.copies * fleet.decode * np.float64(self.server.most_requests_per_s)
        return most

    def score(self, fleet: DeploymentCounts, requests_per_s: Array) -> Scores:
        """Return the steady state under loads.

        A prompt is served in steps that it shares with the batch, after the step that runs when it comes. Its service
        is its prefill and its share of such steps: ISL of the tokens of a step that the batch leaves.
        """
        server_load = requests_per_s / (fleet.copies * fleet.decode)
        batch = np.interp(server_load, self.server.requests_per_s, self.server.batches)
        step_s = np.interp(batch, self.server.batches, self.server.step_s)
        itl_s = np.interp(batch, self.server.batches, self.server.itl_s)
        share = self.workload.input_tokens / np.maximum(TOKEN_BUDGET - batch, 1)
        service_s = self.prefill.service_s + step_s * share
        utilization = server_load * service_s
        loose_share = np.minimum(fleet.decode * self.loose.aggregated_each, self.loose.aggregated_most)
        wait_s = routed_waits_s(fleet.decode, utilization, service_s, self.prefill.service_scv, loose_share)
        ttft_s = self.prefill.overhead_s + wait_s + step_s / 2 + self.prefill.service_s + step_s * np.ceil(share)
        return Scores(
            prefill_load=utilization,
            decode_load=server_load / self.server.most_requests_per_s,
            transfer_load=np.zeros_like(server_load),
            batch=batch,
            wait_s=wait_s,
            ttft_s=ttft_s,
            itl_s=itl_s,
            e2e_s=ttft_s + (self.workload.output_tokens - 1) * itl_s,
        )


@dataclass(frozen=True)
class ScoredFleet:
    """The deployments of a family at one load each: `ratios` is what each constraint has over what it allows."""

    family: DeploymentFamily
    fleet: DeploymentCounts
    requests_per_s: Array
    scores: Scores
    ratios: Array

    @cached_property
    def worst(self) -> Array:
        """The largest ratio of each deployment; above 1 a target is missed."""
        return self.ratios.max(axis=0)


def score_fleet(
    question: SearchInputs, family: DeploymentFamily, fleet: DeploymentCounts, requests_per_s: Array
) -> ScoredFleet:
    """Score deployments at loads against every constraint."""
    scores = family.score(fleet, requests_per_s)
    targets = question.targets
    ratios = np.stack(
        [
            scores.prefill_load / question.headroom.prefill_share,
            scores.decode_load / question.headroom.decode_share,
            scores.transfer_load / question.headroom.prefill_share,
            _share(scores.ttft_s, targets.ttft_s),
            _share(scores.itl_s, targets.itl_s),
            _share(scores.e2e_s, targets.e2e_s),
        ]
    )
    return ScoredFleet(family, fleet, requests_per_s, scores, ratios)


def capacities_of(question: SearchInputs, family: DeploymentFamily, fleet: DeploymentCounts) -> Array:
    """Return the most requests per second within all targets, by halving: every ratio rises with load."""
    high = family.most_requests_per_s(fleet)
    low = np.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fine = score_fleet(question, family, fleet, middle).worst <= 1
        low, high = np.where(fine, middle, low), np.where(fine, high, middle)
    return low


def _share(values: Array, limit: float | None) -> Array:
    """Return latencies over their limit, as shares; an infinite one as 0, since the load of a role tells overload
    better.
    """
    return np.zeros_like(values) if limit is None else np.where(np.isfinite(values), values, 0.0) / limit


def fleet_of(family: DeploymentFamily, gpus: int) -> DeploymentCounts:
    """Return all deployments of a family that fit that many GPUs.

    Aggregated servers have one unit: copies of them would only split their queue.
    """
    if isinstance(family, Aggregated):
        return fleet_of_counts((0, count, 1) for count in range(1, gpus // family.server.tensor_parallel_size + 1))
    assert isinstance(family, Disaggregated)  # noqa: S101 - there are these two
    prefill_size, decode_size = family.prefill.tensor_parallel_size, family.decode.tensor_parallel_size
    return fleet_of_counts(
        (prefill, decode, copies)
        for prefill in range(1, (gpus - decode_size) // prefill_size + 1)
        for decode in range(1, (gpus - prefill * prefill_size) // decode_size + 1)
        for copies in range(1, min(gpus // (prefill * prefill_size + decode * decode_size), MAX_COPIES) + 1)
    )


def fleet_of_counts(counts: Iterable[tuple[int, int, int]]) -> DeploymentCounts:
    """Return deployments from their prefill servers, decode servers and copies."""
    table = np.array(list(counts), dtype=np.int64).reshape(-1, 3)
    return DeploymentCounts(table[:, 0], table[:, 1], table[:, 2])
