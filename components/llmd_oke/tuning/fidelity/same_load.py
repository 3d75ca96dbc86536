"""A measured load, sent to simulated servers of the same deployment.

Lengths are the measured means, each request alike, unless the run says how they scatter. A server that was measured by
itself is one that does all: prompts of decode measurements are in its cache, as DecodeBench fills it and as prompts of
two tokens nearly are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.nodes import Node
from llmd_oke.errors import KitError
from llmd_oke.results.row import Basis, Row
from llmd_oke.tuning.servers.conditions import DEFAULT_BLOCK_SIZE
from llmd_oke.tuning.servers.latency import LatencyModel
from llmd_oke.tuning.simulation.arrivals import ClosedLoop, ConstantRate, PoissonRate, RequestClass
from llmd_oke.tuning.simulation.deployment import Deployment, Policy, deployment
from llmd_oke.tuning.simulation.result import TRIMMED_SHARE, Window
from llmd_oke.tuning.simulation.simulation import simulate
from llmd_oke.tuning.simulation.sweeps import concurrency_sweep

TRIMMED_NOTES = ("counted: ", "steady state: ")
"""How notes of this kit's rows begin that say which part of a run was counted."""


ALIKE = (1.0,)
"""Requests of the mean lengths, all of them."""


class Limits(Entry):
    """`values/tuning/fidelity.yaml`: `most_requests` of one simulation, and how long an open loop lasts whose source
    doesn't say.
    """

    most_requests: int
    default_duration_s: float


@cache
def limits() -> Limits:
    """How loads are sent again."""
    return required_entry("tuning", "fidelity", Limits)


@dataclass(frozen=True)
class Simulator:
    """What runs are simulated of: a model on nodes, with a latency model and the basis of its figures.

    `block_size` is in tokens of KV cache.
    """

    model: Model
    node: Node
    latency: LatencyModel
    basis: Basis = Basis.CALIBRATED
    block_size: int = DEFAULT_BLOCK_SIZE


def unsuitable(row: Row, window: Window | None = None) -> str | None:
    """Why a row's load can't be sent again, all of it, or None."""
    return _untold(row) or _too_long(row, window or _window(row))


def _untold(row: Row) -> str | None:
    if row.arrival == "trace":
        return "the times of its trace are not in the row"
    if row.arrival == "closed" and not row.concurrency:
        return "its concurrency is not told"
    if row.arrival != "closed" and not row.offered_requests_per_s:
        return "its rate is not told"
    if row.subject == "end-to-end" and row.topology is None:
        return "its topology is not told"
    if row.subject != "end-to-end" and not row.tensor_parallel_size:
        return "its tensor parallel size is not told"
    return None


def _too_long(row: Row, window: Window) -> str | None:
    """A part of a long run is another load: under overload queues grow as long as it lasts."""
    requests, most = _requests(row, window), limits().most_requests
    if requests <= most or (row.arrival == "closed" and not row.requests):
        return None
    return f"{requests:,} requests would have to be simulated, at most {most:,} are"


def simulated(
    row: Row,
    simulator: Simulator,
    policy: Policy = "queue",
    window: Window | None = None,
    lengths: Sequence[float] = ALIKE,
) -> Row:
    """What simulated servers do under the row's load. The steady part counts where the row's notes say that it did when
    it was measured, else the whole run, unless `window` says otherwise. `lengths` are shares of the mean lengths, each
    as frequent as the others.

    Raises:
        KitError: the deployment or the load can't be simulated.
    """
    servers = _servers(row, simulator, policy)
    workload = _workload(row, lengths)
    if row.arrival == "closed" and not row.requests:
        (found,) = concurrency_sweep(servers, workload, [_users(row)], simulator.latency).rows
        return found.model_copy(update={"basis": simulator.basis})
    counted = window or _window(row)
    return simulate(
        servers,
        workload,
        _arrivals(row),
        simulator.latency,
        requests=_requests(row, counted),
        window=counted,
        basis=simulator.basis,
    ).row


def _window(row: Row) -> Window:
    return "steady" if any(note.startswith(TRIMMED_NOTES) for note in row.notes) else "whole"


def _servers(row: Row, simulator: Simulator, policy: Policy) -> Deployment:
    topology = row.topology if row.subject == "end-to-end" else f"agg-tp{row.tensor_parallel_size}-1r"
    return deployment(
        simulator.model,
        simulator.node,
        topology or "",
        copies=row.copies,
        policy=policy,
        max_num_seqs=row.max_num_seqs or 256,
        block_size=simulator.block_size,
    )


def _workload(row: Row, lengths: Sequence[float]) -> list[RequestClass]:
    """Requests of those lengths; what a prefix cache answered are prompts that are cached whole."""
    cached = 1.0 if row.subject == "decode" else row.prefix_cache_hit_share or 0.0
    return [each for length in lengths for each in _requests_of(row, length, cached)]


def _requests_of(row: Row, length: float, cached: float) -> Iterator[RequestClass]:
    prompt, answer = max(1, round(row.input_tokens * length)), max(1, round(row.output_tokens * length))
    shares = ((1 - cached, 0), (cached, prompt))
    yield from (RequestClass(prompt, answer, share, tokens) for share, tokens in shares if share > 0)


def _users(row: Row) -> int:
    return max(1, round(row.concurrency or 0))


def _arrivals(row: Row) -> ClosedLoop | ConstantRate | PoissonRate:
    if row.arrival == "closed":
        return ClosedLoop(_users(row))
    rate = row.offered_requests_per_s or 0.0
    if row.arrival == "constant":
        return ConstantRate(rate)
    if row.arrival == "poisson":
        return PoissonRate(rate)
    raise KitError("Recorded arrivals can't be sent again: their times are not in the row.")


def _requests(row: Row, window: Window) -> int:
    """As many as were measured, and those that a steady window leaves out beside them."""
    told = row.requests or round(limits().default_duration_s * (row.offered_requests_per_s or 0.0))
    sent = told / (1 - 2 * TRIMMED_SHARE) if window == "steady" else told
    return max(1, round(sent))
