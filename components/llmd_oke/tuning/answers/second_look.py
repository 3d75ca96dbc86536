"""The event simulation's word on what the closed form found: the first deployments, under random arrivals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmd_oke.catalogue import Model, Node
from llmd_oke.results.row import Row
from llmd_oke.tuning.search.deployments import Deployment
from llmd_oke.tuning.search.question import Question
from llmd_oke.tuning.simulation.arrivals import PoissonRate, RequestClass
from llmd_oke.tuning.simulation.deployment import deployment as simulated_deployment
from llmd_oke.tuning.simulation.simulation import simulate

DURATION_S = 120.0
SEEDS = (0,)


@dataclass(frozen=True)
class SecondLook:
    """A deployment and what the simulation saw it do at the same load. Ratios are simulated over closed form."""

    deployment: Deployment
    row: Row

    @property
    def ttft_ratio(self) -> float | None:
        """Of mean TTFT."""
        mean_ms = self.row.ttft_ms.mean
        return None if mean_ms is None else mean_ms / 1000 / self.deployment.ttft_s

    @property
    def itl_ratio(self) -> float | None:
        """Of mean TPOT, which is the mean ITL of a request."""
        mean_ms = self.row.tpot_ms.mean
        return None if mean_ms is None else mean_ms / 1000 / self.deployment.itl_s


def look_again(
    question: Question,
    model: Model,
    node: Node,
    deployments: Sequence[Deployment],
    seeds: Sequence[int] = SEEDS,
    duration_s: float = DURATION_S,
) -> Iterator[SecondLook]:
    """Simulates deployments one by one, each with `duration_s` seconds of requests."""
    share = question.workload.prefix_cache_hit_share
    classes = [
        RequestClass(round(each.input_tokens), round(each.output_tokens), each.weight, round(each.input_tokens * share))
        for each in question.workload.classes
    ]
    for each in deployments:
        made = simulated_deployment(
            model, node, each.topology, copies=each.copies, max_num_seqs=question.room.max_num_seqs
        )
        arrivals = PoissonRate(each.requests_per_s)
        result = simulate(made, classes, arrivals, question.model, seeds=seeds, duration_s=duration_s)
        yield SecondLook(each, result.row)
