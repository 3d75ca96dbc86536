"""One deployment at one load: what it is expected to do, and what it costs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmd_oke.tuning.search.families import Family
from llmd_oke.tuning.search.judging import CONSTRAINTS, FINE, Judged
from llmd_oke.tuning.search.question import Question


@dataclass(frozen=True)
class Deployment:
    """One deployment at one load. Latencies in seconds, rates per second; prices at list price of whole nodes."""

    family: str
    topology: str
    copies: int
    prefill: int
    decode: int
    gpus: int
    gpus_reserved: int
    requests_per_s: float
    capacity_per_s: float
    """The most requests per second within all targets and shares; 0 where there is no such load."""
    prefill_load: float
    decode_load: float
    transfer_load: float
    batch: float
    wait_s: float
    ttft_s: float
    itl_s: float
    e2e_s: float
    output_tokens_per_s: float
    usd_per_million_output_tokens: float | None
    """None where GPUs have no list price."""
    binding: str
    """The constraint that is nearest to its limit, or furthest beyond it."""
    ratio: float
    """What that constraint has over what it allows."""
    max_num_seqs: int
    """The largest batch within the target for ITL, as far as the KV cache holds it."""

    @property
    def feasible(self) -> bool:
        """Whether all targets are met."""
        return self.ratio <= FINE

    @property
    def tpsu(self) -> float:
        """Output tokens per second and user, over everything in flight."""
        return self.output_tokens_per_s / (self.requests_per_s * self.e2e_s)  # 0 under overload: nothing ever ends

    @property
    def tpsg(self) -> float:
        """Output tokens per second and GPU that is used."""
        return self.output_tokens_per_s / self.gpus


def reserved(gpus: "NDArray[np.int64]", gpus_per_node: int) -> "NDArray[np.int64]":
    """GPUs of whole nodes."""
    return -(-gpus // gpus_per_node) * gpus_per_node


def deployment_of(question: Question, judged: Judged, capacity: float, place: int) -> Deployment:
    """One of those that were judged. `capacity` is NaN where nobody asks for it."""
    scores, hardware = judged.scores, question.hardware
    prefill, decode = int(judged.fleet.prefill[place]), int(judged.fleet.decode[place])
    gpus = judged.family.gpus(judged.fleet)[place]
    held = int(reserved(gpus, hardware.gpus_per_node))
    load = float(judged.requests_per_s[place])
    tokens_per_s = load * question.workload.output_tokens
    usd, binding = hardware.price_usd_per_hour, int(judged.ratios[:, place].argmax())
    return Deployment(
        family=judged.family.name,
        topology=judged.family.topology(prefill, decode),
        copies=int(judged.fleet.copies[place]),
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
        ratio=float(judged.ratios[binding, place]),
        max_num_seqs=_max_num_seqs(question, judged.family),
    )


def _max_num_seqs(question: Question, family: Family) -> int:
    server = family.generating
    if question.targets.itl_s is None:
        return int(server.batches[-1])
    return max(1, int(np.count_nonzero(server.itl_s <= question.targets.itl_s)))
