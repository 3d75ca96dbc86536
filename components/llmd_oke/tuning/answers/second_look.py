"""The event simulation's word on what the closed form found: the first deployments, under random arrivals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmd_oke.catalogue import Model, Node
from llmd_oke.results.row import Row
from llmd_oke.tuning.search.deployments import Deployment
from llmd_oke.tuning.search.question import Question
from llmd_oke.tuning.servers.workload import Lengths, Workload
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
    for each in deployments:
        block_size = question.room.block_size if each.prefill else question.room.aggregated_block_size
        made = simulated_deployment(
            model,
            node,
            each.topology,
            copies=each.copies,
            policy=question.profile,
            max_num_seqs=question.room.max_num_seqs,
            block_size=block_size,
        )
        classes = [_request_class(lengths, question.workload, block_size) for lengths in question.workload.classes]
        arrivals = PoissonRate(each.requests_per_s)
        result = simulate(made, classes, arrivals, question.model, seeds=seeds, duration_s=duration_s)
        yield SecondLook(each, result.row)


def _request_class(lengths: Lengths, workload: Workload, block_size: int) -> RequestClass:
    """Requests of a class. The share that is cached is one of whole blocks, as vLLM counts hits: to the nearest one."""
    cached = round(lengths.input_tokens * workload.prefix_cache_hit_share / block_size) * block_size
    return RequestClass(round(lengths.input_tokens), round(lengths.output_tokens), lengths.weight, cached)
