"""Scores of many deployments at once: arrays of kinds and numbers of servers in, arrays of latencies out.

All of it is the steady state in closed form, without simulation or iteration. Requests arrive at random (Poisson). A
router spreads requests among the servers of its unit as well as its profile can (`loose`); copies of a unit are
independent. Data parallel ranks of a server are treated as servers, though it is vLLM that chooses among them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, Protocol

import numpy as np
from llmd_bench.deployment import Parallelism, aggregated_short_form, disaggregated_short_form
from numpy.typing import NDArray

from llmd_tuner.search_inputs import SearchInputs
from llmd_tuner.servers import TOKEN_BUDGET, Counts, DecodeServer, PrefillServer, ServerCurves
from llmd_tuner.waits import Looseness, routed_waits_s, waits_s
from llmd_tuner.workload import WorkloadClasses

Array = NDArray[np.float64]

CONSTRAINTS: Final = ("prefill", "decode", "KV transfer", "TTFT", "ITL", "E2E")
"""Constraints on the load of a deployment, in the order of `ScoredFleet.ratios`."""

FINE = 1 + 1e-9
"""Maximum ratio of a latency or load to its limit at which the limit counts as met: 1, with a margin for rounding."""

_HALVINGS = 20
"""Of the range in which a deployment's capacity is looked for: to a millionth of it."""

MAX_COPIES = 64
"""Maximum number of units (copies of a topology, each behind its own router) that a stack file may ask for."""


@dataclass(frozen=True)
class DeploymentCounts:
    """Deployments of one family as parallel arrays: index of the kind of servers, numbers of prefill and decode servers
    in a unit (the servers behind one router), and number of units. Aggregated servers are counted in `decode`, with 0
    in `prefill`.
    """

    kind: Counts
    prefill: Counts
    decode: Counts
    copies: Counts

    def at(self, places: "NDArray[np.int64]") -> "DeploymentCounts":
        """Return the deployments at the given indexes of the arrays."""
        return DeploymentCounts(self.kind[places], self.prefill[places], self.decode[places], self.copies[places])


@dataclass(frozen=True)
class Scores:
    """Steady states of deployments under load, as arrays with one element for each deployment. `prefill_load`,
    `decode_load` and `transfer_load` are shares of the maximum load of prefill servers, decode servers and network
    ports; `batch` is the number of sequences in the batch of a rank; times are means in seconds.
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
    """Deployments in which servers divide the work in the same way, disaggregated or aggregated, with several kinds of
    servers.
    """

    @property
    def kinds(self) -> int:
        """Number of kinds of servers in the family."""
        ...

    def name(self, kind: int) -> str:
        """Return the name of the kind of servers with index `kind`, such as `p-tp1-d-tp2`, `agg-tp4` or
        `agg-tp1dp8ep`.
        """
        ...

    def generating(self, kind: int) -> DecodeServer:
        """Return the servers with index `kind` that generate tokens: decode servers, or aggregated ones."""
        ...

    def spreads(self, kind: int) -> Sequence[Parallelism]:
        """Return the parallelism (tensor and data parallel sizes, nodes) of each server in the kind with index `kind`:
        of prefill and decode server, or of the aggregated one.
        """
        ...

    def gpus(self, fleet: DeploymentCounts) -> Counts:
        """Return the number of GPUs of each deployment: those of all its servers."""
        ...

    def topology(self, kind: int, prefill: int, decode: int) -> str:
        """Return the short form, such as `8p-tp1-4d-tp2`, of a topology with these numbers of prefill and decode
        servers of a kind.
        """
        ...

    def most_requests_per_s(self, fleet: DeploymentCounts) -> Array:
        """Return the maximum load of each deployment, over all its servers, in requests per second."""
        ...

    def score(self, fleet: DeploymentCounts, requests_per_s: Array) -> Scores:
        """Return the steady state of each deployment at its own load in `requests_per_s`; latencies are infinite under
        overload.
        """
        ...


class _PrefillFigures:
    """Figures of several kinds of prefill servers, as arrays."""

    def __init__(self, servers: Sequence[PrefillServer]) -> None:
        self.ranks: Counts = np.array([server.parallelism.data_parallel_size for server in servers], dtype=np.int64)
        self.service_s: Array = np.array([server.service_s for server in servers])
        self.scv: Array = np.array([server.service_scv for server in servers])
        self.overhead_s: Array = np.array([server.overhead_s for server in servers])
        self.transfer_s: Array = np.array([server.transfer_s for server in servers])


@dataclass(frozen=True)
class Disaggregated:
    """Family of deployments whose prefill servers transfer KV cache to decode servers. A kind is a pair of a prefill
    and a decode server.
    """

    pairs: Sequence[tuple[PrefillServer, DecodeServer]]
    workload: WorkloadClasses
    loose: Looseness

    @property
    def kinds(self) -> int:
        """Number of pairs of prefill and decode servers."""
        return len(self.pairs)

    def name(self, kind: int) -> str:
        """Return the name of the pair of servers with index `kind`, such as `p-tp1-d-tp2`."""
        prefill, decode = self.pairs[kind]
        return f"p-{prefill.parallelism}-d-{decode.parallelism}"

    def generating(self, kind: int) -> DecodeServer:
        """Return the decode server of the pair with index `kind`."""
        return self.pairs[kind][1]

    def spreads(self, kind: int) -> Sequence[Parallelism]:
        """Return the parallelism of the prefill and of the decode server in the pair with index `kind`."""
        return [server.parallelism for server in self.pairs[kind]]

    def gpus(self, fleet: DeploymentCounts) -> Counts:
        """Return the number of GPUs of each deployment: those of all its servers."""
        prefill, decode = self._gpus
        return fleet.copies * (fleet.prefill * prefill[fleet.kind] + fleet.decode * decode[fleet.kind])

    def topology(self, kind: int, prefill: int, decode: int) -> str:
        """Return the short form, such as `8p-tp1-4d-tp2`, of a topology with these numbers of prefill and decode
        servers of the pair with index `kind`.
        """
        first, second = self.pairs[kind]
        return disaggregated_short_form(prefill, first.parallelism, decode, second.parallelism)

    @cached_property
    def _gpus(self) -> Counts:
        """GPUs of one prefill and of one decode server of each kind."""
        return np.array([[server.parallelism.gpus for server in pair] for pair in self.pairs], dtype=np.int64).T

    @cached_property
    def _prefill(self) -> _PrefillFigures:
        return _PrefillFigures([prefill for prefill, _ in self.pairs])

    @cached_property
    def _curves(self) -> ServerCurves:
        return ServerCurves([decode for _, decode in self.pairs])

    def most_requests_per_s(self, fleet: DeploymentCounts) -> Array:
        """Return the maximum load of each deployment, over all its servers, in requests per second: what its prefill
        servers or its decode servers sustain, whichever is less.
        """
        kind, prefill, curves = fleet.kind, self._prefill, self._curves
        decoded = fleet.decode * (curves.ranks * curves.most_requests_per_s)[kind]
        prefilled = fleet.prefill * (prefill.ranks / prefill.service_s)[kind]
        slower: Array = np.minimum(prefilled, decoded)
        return slower * fleet.copies

    def score(self, fleet: DeploymentCounts, requests_per_s: Array) -> Scores:
        """Return the steady state of each deployment at its own load in `requests_per_s`. TTFT = overhead + wait +
        prefill + KV transfer + first step; the wait for a network port is that of an M/D/1 queue.
        """
        kind, prefill, curves = fleet.kind, self._prefill, self._curves
        load, ranks = requests_per_s / fleet.copies, fleet.prefill * prefill.ranks[kind]
        service_s, transfer_s = prefill.service_s[kind], prefill.transfer_s[kind]
        utilization, transfer_load = load * service_s / ranks, load * transfer_s / ranks
        rank_load = load / (fleet.decode * curves.ranks[kind])
        batch, itl_s, _ = curves.at(kind, rank_load)
        wait_s = routed_waits_s(ranks, utilization, service_s, prefill.scv[kind], self.loose.disaggregated)
        one_port = np.ones(load.shape, dtype=np.int64)
        hand_over_s = transfer_s + waits_s(one_port, transfer_load, transfer_s, 0.0)
        ttft_s = prefill.overhead_s[kind] + wait_s + service_s + hand_over_s + itl_s
        return Scores(
            prefill_load=utilization,
            decode_load=rank_load / curves.most_requests_per_s[kind],
            transfer_load=transfer_load,
            batch=batch,
            wait_s=wait_s,
            ttft_s=ttft_s,
            itl_s=itl_s,
            e2e_s=ttft_s + (self.workload.output_tokens - 1) * itl_s,
        )


@dataclass(frozen=True)
class Aggregated:
    """Family of deployments whose servers both prefill and decode, with chunked prefill."""

    servers: Sequence[tuple[PrefillServer, DecodeServer]]
    workload: WorkloadClasses
    loose: Looseness

    @property
    def kinds(self) -> int:
        """Number of kinds of aggregated servers."""
        return len(self.servers)

    def name(self, kind: int) -> str:
        """Return the name of the kind of servers with index `kind`, such as `agg-tp1dp8ep`."""
        return f"agg-{self.generating(kind).parallelism}"

    def generating(self, kind: int) -> DecodeServer:
        """Return the aggregated server of the kind with index `kind`."""
        return self.servers[kind][1]

    def spreads(self, kind: int) -> Sequence[Parallelism]:
        """Return the parallelism of the aggregated server of the kind with index `kind`, as the only element."""
        return [self.generating(kind).parallelism]

    def gpus(self, fleet: DeploymentCounts) -> Counts:
        """Return the number of GPUs of each deployment: those of all its servers."""
        return fleet.copies * fleet.decode * self._gpus[fleet.kind]

    def topology(self, kind: int, prefill: int, decode: int) -> str:  # noqa: ARG002 - as all families
        """Return the short form, such as `agg-tp1-16r`, of a topology with `decode` aggregated servers of a kind;
        `prefill` is ignored.
        """
        return aggregated_short_form(self.generating(kind).parallelism, decode)

    @cached_property
    def _gpus(self) -> Counts:
        """GPUs of one server of each kind."""
        return np.array([server.parallelism.gpus for _, server in self.servers], dtype=np.int64)

    @cached_property
    def _prefill(self) -> _PrefillFigures:
        return _PrefillFigures([prefill for prefill, _ in self.servers])

    @cached_property
    def _curves(self) -> ServerCurves:
        return ServerCurves([server for _, server in self.servers])

    def most_requests_per_s(self, fleet: DeploymentCounts) -> Array:
        """Return the maximum load of each deployment, over all its servers, in requests per second: that at which all
        servers run their largest batch.
        """
        each: Array = self._curves.most_requests_per_s * self._curves.ranks
        return each[fleet.kind] * (fleet.copies * fleet.decode)

    def score(self, fleet: DeploymentCounts, requests_per_s: Array) -> Scores:
        """Return the steady state of each deployment at its own load in `requests_per_s`.

        A prompt is computed in steps that it shares with the batch of decoding sequences, after the step that runs when
        it arrives. Its service time is its own prefill and its share of these steps: ISL divided by the tokens of a
        step that the batch leaves free.
        """
        kind, prefill, curves = fleet.kind, self._prefill, self._curves
        ranks = fleet.decode * curves.ranks[kind]
        rank_load = requests_per_s / (fleet.copies * ranks)
        batch, itl_s, step_s = curves.at(kind, rank_load)
        share = self.workload.input_tokens / np.maximum(TOKEN_BUDGET - batch, 1)
        prefill_s = prefill.service_s[kind]
        service_s = prefill_s + step_s * share
        utilization = rank_load * service_s
        loose_share = np.minimum(ranks * self.loose.aggregated_each, self.loose.aggregated_most)
        wait_s = routed_waits_s(ranks, utilization, service_s, prefill.scv[kind], loose_share)
        ttft_s = prefill.overhead_s[kind] + wait_s + step_s / 2 + prefill_s + step_s * np.ceil(share)
        return Scores(
            prefill_load=utilization,
            decode_load=rank_load / curves.most_requests_per_s[kind],
            transfer_load=np.zeros_like(rank_load),
            batch=batch,
            wait_s=wait_s,
            ttft_s=ttft_s,
            itl_s=itl_s,
            e2e_s=ttft_s + (self.workload.output_tokens - 1) * itl_s,
        )


@dataclass(frozen=True)
class ScoredFleet:
    """Deployments of a family, each at one load. `ratios` has, for each constraint (such as TTFT) and deployment, the
    value divided by the allowed maximum.
    """

    family: DeploymentFamily
    fleet: DeploymentCounts
    requests_per_s: Array
    scores: Scores
    ratios: Array

    @cached_property
    def worst(self) -> Array:
        """Largest of each deployment's ratios of a value to its allowed maximum; above 1 the deployment misses a
        target.
        """
        return self.ratios.max(axis=0)


def score_fleet(
    question: SearchInputs, family: DeploymentFamily, fleet: DeploymentCounts, requests_per_s: Array
) -> ScoredFleet:
    """Score each deployment at its own load in requests per second against every constraint, such as the target for
    TTFT.
    """
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
    """Return the highest load of each deployment, over all its servers, in requests per second, at which it meets all
    targets; found by bisection, since every ratio of a value to its limit rises with load.
    """
    most = np.int64(1 + max(fleet.prefill.max(initial=0), fleet.decode.max(initial=0)))
    units = (fleet.kind * most + fleet.prefill) * most + fleet.decode
    _, firsts, places = np.unique(units, return_index=True, return_inverse=True)
    single = replace(fleet.at(firsts), copies=np.ones_like(firsts))
    high = family.most_requests_per_s(single)
    low: Array = np.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fine = score_fleet(question, family, single, middle).worst <= 1
        low, high = np.where(fine, middle, low), np.where(fine, high, middle)
    return low[places] * fleet.copies


def _share(values: Array, limit: float | None) -> Array:
    """Return latencies over their limit, as shares; an infinite one as 0, since the load of a role tells overload
    better.
    """
    return np.zeros_like(values) if limit is None else np.where(np.isfinite(values), values, 0.0) / limit


def fleet_of(family: DeploymentFamily, gpus: int) -> DeploymentCounts:
    """Return all deployments of a family with at most `gpus` GPUs. Aggregated servers are all behind one router, since
    copies with routers of their own would only split the queue.
    """
    if isinstance(family, Aggregated):
        tables = [_alone(server.parallelism.gpus, gpus) for _, server in family.servers]
    else:
        assert isinstance(family, Disaggregated)  # noqa: S101 - there are these two
        tables = [_together(first.parallelism.gpus, second.parallelism.gpus, gpus) for first, second in family.pairs]
    kinds = np.repeat(np.arange(len(tables), dtype=np.int64), [len(table) for table in tables])
    return DeploymentCounts(kinds, *np.concatenate([np.zeros((0, 3), dtype=np.int64), *tables]).T)


@lru_cache(maxsize=64)
def _alone(server_gpus: int, gpus: int) -> Counts:
    """Return the counts of aggregated servers with so many GPUs each: prefill, decode, copies."""
    counts = np.arange(1, gpus // server_gpus + 1, dtype=np.int64)
    return np.stack([np.zeros_like(counts), counts, np.ones_like(counts)], axis=1)


@lru_cache(maxsize=256)
def _together(prefill_gpus: int, decode_gpus: int, gpus: int) -> Counts:
    """Return the counts of prefill and decode servers with so many GPUs each: prefill, decode, copies."""
    counts = [
        (prefill, decode, copies)
        for prefill in range(1, (gpus - decode_gpus) // prefill_gpus + 1)
        for decode in range(1, (gpus - prefill * prefill_gpus) // decode_gpus + 1)
        for copies in range(1, min(gpus // (prefill * prefill_gpus + decode * decode_gpus), MAX_COPIES) + 1)
    ]
    return np.array(counts, dtype=np.int64).reshape(-1, 3)


def fleet_of_counts(counts: Iterable[tuple[int, int, int]], kind: int = 0) -> DeploymentCounts:
    """Return deployments of one kind from triples of prefill servers, decode servers and copies."""
    table = np.array(list(counts), dtype=np.int64).reshape(-1, 3)
    return DeploymentCounts(np.full(len(table), kind, dtype=np.int64), *table.T)
