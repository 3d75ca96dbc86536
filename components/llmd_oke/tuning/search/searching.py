"""All deployments for some GPUs, scored in closed form and put in order."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmd_oke.tuning.queues.waits import LOOSENESS
from llmd_oke.tuning.search.deployments import Deployment, deployment_of, reserved
from llmd_oke.tuning.search.families import Aggregated, Disaggregated, Family, Fleet
from llmd_oke.tuning.search.judging import FINE, Judged, capacities_of, judge
from llmd_oke.tuning.search.question import Question
from llmd_oke.tuning.search.space import fleet_of, fleet_of_counts
from llmd_oke.tuning.servers.curves import aggregated_server, decode_server, prefill_server

Array = NDArray[np.float64]

_IDLE_PER_S = 1e-6


@dataclass(frozen=True)
class Search:
    """Everything that was scored. `order` lists places in the flat sequence of all deployments, best first."""

    question: Question
    judged: tuple[Judged, ...]
    capacities: tuple[Array, ...]
    order: "NDArray[np.int64]"

    @property
    def size(self) -> int:
        """How many deployments were scored."""
        return len(self.order)

    def deployments(self, most: int | None = None) -> Iterator[Deployment]:
        """Deployments in order, best first."""
        return (self.deployment(int(place)) for place in self.order[:most])

    def feasible(self) -> Iterator[Deployment]:
        """Those that meet all targets, best first."""
        return itertools.takewhile(lambda each: each.feasible, self.deployments())

    def best(self) -> Deployment | None:
        """The first, where it meets all targets."""
        return next(self.feasible(), None)

    def best_of_families(self) -> list[Deployment]:
        """The first of each family, in order."""
        starts = np.cumsum([0, *(len(each.worst) for each in self.judged)])
        families = np.searchsorted(starts, self.order, side="right") - 1
        _, firsts = np.unique(families, return_index=True)
        return [self.deployment(int(self.order[place]), whole=False) for place in sorted(firsts)]

    def deployment(self, place: int, whole: bool = True) -> Deployment:
        """One of the flat sequence. Unless `whole`, the capacity of what misses a target may be left open (NaN)."""
        for judged, capacity in zip(self.judged, self.capacities, strict=True):
            if place < len(judged.worst):
                found = self._capacity(judged, capacity, place) if whole else float(capacity[place])
                return deployment_of(self.question, judged, found, place)
            place -= len(judged.worst)
        raise IndexError(place)

    def _capacity(self, judged: Judged, capacity: Array, place: int) -> float:
        if np.isnan(capacity[place]):
            capacity[place] = capacities_of(self.question, judged.family, judged.fleet.at(np.array([place])))[0]
        return float(capacity[place])


def search(question: Question) -> Search:
    """Scores all deployments at the load that is asked for, or each at its own capacity where none is.

    With a load, the fewest nodes come first and, of equally many, what has the most room left; without one, what
    carries the most within the targets. What misses a target comes after all that meet them, by how far it misses.
    """
    judged: list[Judged] = []
    capacities: list[Array] = []
    for family in families(question):
        fleet = fleet_of(family, question.hardware.gpus)
        if not fleet.copies.size:
            continue
        own = (
            _at_load(question, family, fleet)
            if question.targets.requests_per_s
            else _at_capacity(question, family, fleet)
        )
        judged.append(own[0])
        capacities.append(own[1])
    return Search(question, tuple(judged), tuple(capacities), _order(question, judged, capacities))


def _at_load(question: Question, family: Family, fleet: Fleet) -> tuple[Judged, Array]:
    """At the load that is asked for. The capacity of what misses a target is left open: few are looked at."""
    judged = judge(question, family, fleet, np.full(len(fleet.copies), question.targets.requests_per_s))
    capacity = np.full(len(fleet.copies), np.nan)
    fine = np.flatnonzero(judged.worst <= FINE)
    if fine.size:
        capacity[fine] = capacities_of(question, family, fleet.at(fine))
    return judged, capacity


def _at_capacity(question: Question, family: Family, fleet: Fleet) -> tuple[Judged, Array]:
    """Each at the most that it carries within the targets, or nearly idle where it carries nothing."""
    capacity = capacities_of(question, family, fleet)
    return judge(question, family, fleet, np.where(capacity > 0, capacity, _IDLE_PER_S)), capacity


def families(question: Question) -> list[Family]:
    """All kinds of deployments that fit the GPUs' memory."""
    model, workload, room = question.model, question.workload, question.room
    shared = {size: room.sequences(size, workload, aggregated=True) for size in question.sizes}
    apart = {size: room.sequences(size, workload, aggregated=False) for size in question.sizes}
    decode = {size: decode_server(model, workload, size, batch) for size, batch in apart.items() if batch >= 2}
    loose = LOOSENESS[question.profile]
    found: list[Family] = []
    for prefill_size in question.sizes:
        if shared[prefill_size] >= 2:
            prefill = prefill_server(model, workload, prefill_size)
            server = aggregated_server(model, workload, prefill, shared[prefill_size])
            found.append(Aggregated(prefill, server, workload, loose))
        for decode_size in decode if prefill_size in decode else ():
            rails = min(prefill_size, decode_size)
            prefill = prefill_server(model, workload, prefill_size, rails, room.block_size)
            found.append(Disaggregated(prefill, decode[decode_size], workload, loose))
    return found


def at_loads(question: Question, deployment: Deployment, loads: Sequence[float]) -> list[Deployment]:
    """One deployment at several loads."""
    family = next(each for each in families(question) if each.name == deployment.family)
    counts = [(deployment.prefill, deployment.decode, deployment.copies)] * len(loads)
    judged = judge(question, family, fleet_of_counts(counts), np.array(loads))
    return [deployment_of(question, judged, deployment.capacity_per_s, place) for place in range(len(loads))]


def _order(question: Question, judged: Sequence[Judged], capacities: Sequence[Array]) -> "NDArray[np.int64]":
    if not judged:
        return np.zeros(0, dtype=np.int64)
    worst = np.concatenate([each.worst for each in judged])
    capacity = np.nan_to_num(np.concatenate(capacities), nan=0.0)
    gpus = np.concatenate([each.family.gpus(each.fleet) for each in judged])
    misses = worst > FINE
    nodes = reserved(gpus, question.hardware.gpus_per_node)
    price = nodes if question.targets.requests_per_s is not None else np.zeros_like(gpus)
    how_far = np.where(misses, worst, 0.0)
    return np.lexsort((gpus, -np.round(capacity, 6), np.where(misses, 0, price), how_far))
