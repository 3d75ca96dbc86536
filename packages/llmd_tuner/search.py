"""Search over all deployments for a number of GPUs: scored in closed form and sorted, and their frontier of throughput
against speed.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from llmd_bench.deployment import Parallelism
from llmd_bench.loads import frontier
from llmd_oke.config import Role
from numpy.typing import NDArray

from llmd_tuner.families import (
    CONSTRAINTS,
    FINE,
    Aggregated,
    DeploymentFamily,
    Disaggregated,
    ScoredFleet,
    capacities_of,
    fleet_of,
    fleet_of_counts,
    score_fleet,
)
from llmd_tuner.search_inputs import SearchInputs, Targets
from llmd_tuner.servers import PrefillServer, aggregated_server, decode_server, prefill_server
from llmd_tuner.waits import LOOSENESS

Array = NDArray[np.float64]
Places = NDArray[np.int64]

_IDLE_PER_S = 1e-6

_TOGETHER = 2048
"""Units that are scored together at all loads: as many as a processor's caches hold."""

FEWEST_SEQUENCES = 2
"""Minimum number of the workload's requests that a rank's KV cache must hold; servers with less room are no candidates.
"""

LOADS = np.linspace(0.02, 1.0, 40)
"""Loads at which each deployment is scored, as shares of its capacity."""


@dataclass(frozen=True)
class Candidate:
    """Deployment at a load, with its forecast. Latencies are in seconds, rates per second; prices are list prices of
    whole nodes.
    """

    family: str
    topology: str
    copies: int
    prefill: int
    decode: int
    gpus: int
    gpus_reserved: int
    requests_per_s: float
    capacity_per_s: float
    """Maximum load in requests per second within all latency targets and usable shares of servers; 0 where there is
    none.
    """
    prefill_load: float
    decode_load: float
    transfer_load: float
    batch: float
    """Number of sequences in the batch of each rank."""
    wait_s: float
    ttft_s: float
    itl_s: float
    e2e_s: float
    output_tokens_per_s: float
    usd_per_million_output_tokens: float | None
    """Price of a million output tokens in US dollars at this load; None where GPUs have no list price."""
    binding: str
    """Name of the constraint, such as `TTFT`, that is nearest to its limit, or furthest beyond it."""
    ratio: float
    """Value of the constraint `binding` divided by its limit."""
    max_num_seqs: int
    """Largest batch of a rank that meets the target for ITL and fits the KV cache."""
    bound: bool = False
    """True if the latencies of the servers are only lower bounds, while those of other candidates' servers were
    measured.
    """

    @property
    def feasible(self) -> bool:
        """True if the deployment meets all latency targets and carries the load."""
        return self.ratio <= FINE

    @property
    def tpsu(self) -> float:
        """Output tokens per second and user: the output rate over the number of requests in flight."""
        return self.output_tokens_per_s / (self.requests_per_s * self.e2e_s)  # 0 under overload: nothing ever ends

    @property
    def tpsg(self) -> float:
        """Output tokens per second divided by the number of GPUs that the servers use."""
        return self.output_tokens_per_s / self.gpus


def reserved(gpus: "NDArray[np.int64]", gpus_per_node: int) -> "NDArray[np.int64]":
    """Return the given numbers of GPUs, each rounded up to GPUs of whole nodes."""
    return -(-gpus // gpus_per_node) * gpus_per_node


def deployment_of(question: SearchInputs, scored: ScoredFleet, capacity: float, place: int) -> Candidate:
    """Return the scored deployment at index `place` as a candidate. `capacity` is in requests per second, NaN where it
    was not computed.
    """
    scores, hardware = scored.scores, question.hardware
    prefill, decode = int(scored.fleet.prefill[place]), int(scored.fleet.decode[place])
    (gpus,) = scored.family.gpus(scored.fleet.at(np.array([place])))
    held = int(reserved(gpus, hardware.gpus_per_node))
    load = float(scored.requests_per_s[place])
    tokens_per_s = load * question.workload.output_tokens
    usd, binding = hardware.price_usd_per_hour, int(scored.ratios[:, place].argmax())
    kind = int(scored.fleet.kind[place])
    server, itl_limit_s = scored.family.generating(kind), question.targets.itl_s
    largest = server.batches[-1] if itl_limit_s is None else np.count_nonzero(server.itl_s <= itl_limit_s)
    return Candidate(
        family=scored.family.name(kind),
        topology=scored.family.topology(kind, prefill, decode),
        copies=int(scored.fleet.copies[place]),
        prefill=prefill,
        decode=decode,
        gpus=int(gpus),
        gpus_reserved=held,
        requests_per_s=load,
        capacity_per_s=capacity,
        prefill_load=float(scores.prefill_load[place]),
        decode_load=float(scores.decode_load[place]),
        transfer_load=float(scores.transfer_load[place]),
        batch=float(scores.batch[place]),
        wait_s=float(scores.wait_s[place]),
        ttft_s=float(scores.ttft_s[place]),
        itl_s=float(scores.itl_s[place]),
        e2e_s=float(scores.e2e_s[place]),
        output_tokens_per_s=tokens_per_s,
        usd_per_million_output_tokens=usd and held * usd / (tokens_per_s * 3600) * 1e6,
        binding=CONSTRAINTS[binding],
        ratio=float(scored.ratios[binding, place]),
        max_num_seqs=max(1, int(largest)),
        bound=question.is_bound(*scored.family.spreads(kind)),
    )


@dataclass(frozen=True)
class Search:
    """Result of a search: all scored deployments. `capacities` are computed when they are asked for, NaN until then."""

    question: SearchInputs
    scored: tuple[ScoredFleet, ...]
    capacities: tuple[Array, ...]

    @property
    def size(self) -> int:
        """Number of deployments that the search scored."""
        return sum(len(fleet.worst) for fleet in self.scored)

    @cached_property
    def order(self) -> Places:
        """Indexes of all scored deployments, best first."""
        how_far, bound, price, gpus = self._keys
        self._measure(np.flatnonzero(how_far == 0))  # of what misses a target few are looked at
        capacity = np.where(how_far == 0, _joined(self.capacities), 0.0)
        return np.lexsort((gpus, -np.round(capacity, 6), price, bound, how_far))

    def deployments(self, most: int | None = None) -> Iterator[Candidate]:
        """Yield the deployments, best first; at most `most` of them."""
        return (self.deployment(int(place)) for place in self.order[:most])

    def feasible(self) -> Iterator[Candidate]:
        """Yield the deployments that meet all targets, best first."""
        return itertools.takewhile(lambda deployment: deployment.feasible, self.deployments())

    def best(self, latency: str | None = None) -> Candidate | None:
        """Return the first of the `feasible` deployments, or that with the lowest `latency`, such as `ttft_s`; None if
        no deployment meets all targets. Only the capacities of those on the fewest nodes are computed for it.
        """
        how_far, bound, price, gpus = self._keys
        places = np.flatnonzero(how_far == 0)
        if not places.size:
            return None
        if latency is not None:
            places = _lowest(_joined([getattr(fleet.scores, latency) for fleet in self.scored]), places)
        places = _lowest(price, _lowest(bound, places))
        self._measure(places)
        places = _lowest(gpus, _lowest(-np.round(_joined(self.capacities), 6), places))
        return self.deployment(int(places[0]))

    def best_of_families(self) -> list[Candidate]:
        """Return the best deployment of each kind of servers (such as `p-tp1-d-tp2`), best first."""
        kinds = np.concatenate([np.zeros(0, dtype=np.int64), *(fleet.fleet.kind for fleet in self.scored)])
        starts = np.cumsum([0, *(len(fleet.worst) for fleet in self.scored)])
        for place, start in enumerate(starts[1:-1], 1):  # kinds of a family come after those of the ones before it
            kinds[start:] += self.scored[place - 1].family.kinds
        _, firsts = np.unique(kinds[self.order], return_index=True)
        return [self.deployment(int(self.order[place]), whole=False) for place in sorted(firsts)]

    def deployment(self, place: int, whole: bool = True) -> Candidate:
        """Return the deployment at an index of all scored deployments (`scored`). If not `whole`, its capacity may be
        NaN if it misses a target, which saves computing the capacity.
        """
        if whole:
            self._measure(np.array([place]))
        for fleet, capacity in zip(self.scored, self.capacities, strict=True):
            if place < len(fleet.worst):
                return deployment_of(self.question, fleet, float(capacity[place]), place)
            place -= len(fleet.worst)
        raise IndexError(place)

    @cached_property
    def _keys(self) -> tuple[Array, "NDArray[np.bool_]", Places, Places]:
        """Keys by which all scored deployments are sorted, beside their capacity: how far each misses a target, whether
        it is a bound, the GPUs of its nodes if a load is given, and those of its servers.
        """
        worst = _joined([fleet.worst for fleet in self.scored])
        gpus = np.concatenate([np.zeros(0, dtype=np.int64), *(fleet.family.gpus(fleet.fleet) for fleet in self.scored)])
        kinds = [bounds_of(self.question, fleet.family)[fleet.fleet.kind] for fleet in self.scored]
        misses, nodes = worst > FINE, reserved(gpus, self.question.hardware.gpus_per_node)
        price = np.where(misses, 0, nodes if self.question.targets.requests_per_s is not None else 0)
        return np.where(misses, worst, 0.0), np.concatenate([np.zeros(0, dtype=np.bool_), *kinds]), price, gpus

    def _measure(self, places: Places) -> None:
        """Compute the capacities at these indexes of all scored deployments that nobody asked for yet."""
        for fleet, capacity in zip(self.scored, self.capacities, strict=True):
            own = places[(places >= 0) & (places < len(capacity))]
            unknown = own[np.isnan(capacity[own])]
            if unknown.size:
                capacity[unknown] = capacities_of(self.question, fleet.family, fleet.fleet.at(unknown))
            places = places - len(capacity)


def _joined(parts: Iterable[Array]) -> Array:
    return np.concatenate([np.zeros(0), *parts])


def _lowest(key: "NDArray[np.generic]", places: Places) -> Places:
    """Return those of the places at which the key has its lowest value."""
    own = key[places]
    return places[own == own.min()]


def search(question: SearchInputs) -> Search:
    """Score all deployments at the requested load or, without one, each at its own capacity; the result sorts them.

    With a load, deployments on fewer nodes come first and, among equally many nodes, those with more spare capacity;
    without one, those with the highest rate within the targets. Deployments whose servers nobody has measured come
    after measured ones, because bounds are more optimistic than servers. Those that miss a target come last, by how far
    they miss it.
    """
    scored: list[ScoredFleet] = []
    capacities: list[Array] = []
    for family in families(question):
        fleet = fleet_of(family, question.hardware.gpus)
        if not fleet.copies.size:
            continue
        if rate := question.targets.requests_per_s:
            scored.append(score_fleet(question, family, fleet, np.full(len(fleet.copies), rate)))
            capacities.append(np.full(len(fleet.copies), np.nan))
        else:  # each at the most that it carries within the targets, or nearly idle where it carries nothing
            capacity = capacities_of(question, family, fleet)
            scored.append(score_fleet(question, family, fleet, np.where(capacity > 0, capacity, _IDLE_PER_S)))
            capacities.append(capacity)
    return Search(question, tuple(scored), tuple(capacities))


def families(question: SearchInputs) -> list[DeploymentFamily]:
    """Return the families of deployments (aggregated and disaggregated ones) of all kinds of servers that fit the
    memory of the GPUs.
    """
    loose, choices, gpus = LOOSENESS[question.profile], question.choices, question.hardware.gpus
    shared = _held(question, "aggregated", choices.aggregated)
    apart = _held(question, "decode", (decode for _, decode in choices.disaggregated))
    generating = {
        spread: decode_server(question.model, question.workload, spread, batch) for spread, batch in apart.items()
    }
    pairs = [(first, second) for first, second in choices.disaggregated if first.gpus + second.gpus <= gpus]
    alone = [(prefill_server(question.model, question.workload, spread), batch) for spread, batch in shared.items()]
    both = [
        (server, aggregated_server(question.model, question.workload, server, batch))
        for server, batch in alone
        if server.parallelism.gpus <= gpus
    ]

    @cache  # each prefill server is asked for beside many decode servers
    def handing_over(spread: Parallelism, rails: int) -> PrefillServer:
        return prefill_server(question.model, question.workload, spread, rails, question.room.block_size)

    handing = [
        (handing_over(first, min(first.tensor_parallel_size, second.tensor_parallel_size)), generating[second])
        for first, second in pairs
        if second in generating
    ]
    result: list[DeploymentFamily] = []
    if both:
        result.append(Aggregated(both, question.workload, loose))
    if handing:
        result.append(Disaggregated(handing, question.workload, loose))
    return result


def _held(question: SearchInputs, role: Role, spreads: Iterable[Parallelism]) -> dict[Parallelism, int]:
    """Return the sequences that a rank of each kind of server holds, of those that hold at least two."""
    memory, room = question.choices.memory[role], question.room
    held = {
        spread: room.sequences(memory[spread], question.workload, aggregated=role == "aggregated")
        for spread in dict.fromkeys(spreads)
    }
    return {spread: sequences for spread, sequences in held.items() if sequences >= FEWEST_SEQUENCES}


def kind_named(question: SearchInputs, name: str) -> tuple[DeploymentFamily, int]:
    """Return the family of deployments (aggregated or disaggregated) that contains the kind of servers `name`, such as
    `p-tp1-d-tp2`, and the kind's index in it.
    """
    kinds = ((family, kind) for family in families(question) for kind in range(family.kinds))
    return next((family, kind) for family, kind in kinds if family.name(kind) == name)


def at_loads(question: SearchInputs, deployment: Candidate, loads: Sequence[float]) -> list[Candidate]:
    """Return the forecasts of one deployment at several loads, given in requests per second."""
    family, kind = kind_named(question, deployment.family)
    counts = [(deployment.prefill, deployment.decode, deployment.copies)] * len(loads)
    scored = score_fleet(question, family, fleet_of_counts(counts, kind), np.array(loads))
    return [deployment_of(question, scored, deployment.capacity_per_s, place) for place in range(len(loads))]


def bounds_of(question: SearchInputs, family: DeploymentFamily) -> "NDArray[np.bool_]":
    """Return for each kind of servers whether its latencies are only lower bounds, while those of other kinds were
    measured.
    """
    return np.array([question.is_bound(*family.spreads(kind)) for kind in range(family.kinds)])


def frontier_of(question: SearchInputs) -> list[Candidate]:
    """Return the Pareto frontier: deployments at loads for which no other has both more output tokens per second and
    GPU (TPSG) and more per second and user (TPSU), by descending TPSU.

    All deployments are scored at loads up to the shares of `headroom`. Latency targets are ignored, since the frontier
    shows what they cost.
    """
    free = replace(question, targets=Targets())
    tokens = question.workload.output_tokens
    deployments: list[Candidate] = []
    for scored in _units_at_loads(free):
        tpsu = tokens / scored.scores.e2e_s
        tpsg = scored.requests_per_s * tokens / scored.family.gpus(scored.fleet)
        order = np.lexsort((-tpsg, -tpsu))
        near = np.sort(order[tpsg[order] >= np.maximum.accumulate(tpsg[order])])  # no faster one has more for a GPU
        best = frontier(near, lambda place, x=tpsu: float(x[place]), lambda place, y=tpsg: float(y[place]))
        deployments += (deployment_of(free, scored, np.nan, place) for place in best)
    return frontier(deployments, lambda deployment: deployment.tpsu, lambda deployment: deployment.tpsg)


def curve_of(question: SearchInputs, deployment: Candidate, points: int = 16) -> list[Candidate]:
    """Return the forecasts of one deployment at `points` rising loads, up to the usable share of its servers' maximum
    load.
    """
    free = replace(question, targets=Targets())
    family, kind = kind_named(free, deployment.family)
    fleet = fleet_of_counts([(deployment.prefill, deployment.decode, deployment.copies)], kind)
    most = float(capacities_of(free, family, fleet)[0])
    return at_loads(free, deployment, [most * share for share in np.linspace(0.05, 1.0, points)])


def _units_at_loads(question: SearchInputs) -> Iterator[ScoredFleet]:
    """Yield single units at all loads, some of a family at a time: copies of one are no better for a GPU or a user.
    Kinds of servers that are bounds are left out where others aren't.
    """
    for family in families(question):
        whole, bound = fleet_of(family, question.hardware.gpus), bounds_of(question, family)
        places = np.flatnonzero((whole.copies == 1) & ~bound[whole.kind])
        for start in range(0, places.size, _TOGETHER):
            fleet = whole.at(places[start : start + _TOGETHER])
            repeated = fleet.at(np.repeat(np.arange(fleet.copies.size), LOADS.size))
            loads = (capacities_of(question, family, fleet)[:, None] * LOADS).ravel()
            yield score_fleet(question, family, repeated, loads)
