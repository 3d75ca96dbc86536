"""Deployments and loads to simulate: servers, their limits, their router's policy, and the requests that arrive."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from llmd_base.errors import KitError
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue.conditions import DEFAULT_BLOCK_SIZE
from llmd_oke.catalogue.endpoint_pickers import RouterProfile, endpoint_picker
from llmd_oke.catalogue.models import CatalogueModel, key_value_tokens
from llmd_oke.catalogue.releases import default_release
from llmd_oke.catalogue.shapes import NodeHardware
from llmd_oke.config import Role
from llmd_oke.config.engine import DEFAULT_ENGINE
from llmd_oke.config.model import RouterProfileName, Topology
from pydantic import JsonValue

Policy = Literal["random", "queue", "active", RouterProfileName]
"""How a router picks a server.

`random` is a plain Service. `queue` takes the server with the fewest waiting requests, as llm-d's queue-scorer does,
`active` the one with the fewest requests under way, as its active-request-scorer does. The others are the stack file's
`router.profile`: several scorers with weights. Equals are picked at random.
"""

_PLAIN: Mapping[Policy, Mapping[str, float]] = {
    "random": {},
    "queue": {"queue-scorer": 1.0},
    "active": {"active-request-scorer": 1.0},
}


def scorers(policy: Policy, role: Role, picker: str | None = None) -> Mapping[str, float]:
    """Return the scorers, with weights, by which a version of the endpoint picker picks servers of a role; the newest
    release's version if `picker` is None.

    Raises:
        KitError: that version has no profile for the policy.
    """
    if policy in _PLAIN:
        return _PLAIN[policy]
    return getattr(_profile(policy, picker), role)


def filters(policy: Policy, role: Role, picker: str | None = None) -> Mapping[str, Mapping[str, JsonValue]]:
    """Return the filters, with parameters, that a version of the endpoint picker applies to servers of a role before it
    scores them; the newest release's version if `picker` is None.

    Raises:
        KitError: that version has no profile for the policy.
    """
    if policy in _PLAIN or role == "decode":
        return {}
    profile = _profile(policy, picker)
    return {name: profile.parameters.get(name, {}) for name in profile.filters}


def _profile(policy: Policy, picker: str | None) -> RouterProfile:
    version = endpoint_picker(picker or default_release().endpoint_picker.program.version)
    profiles: Mapping[str, RouterProfile] = {name: known for name, known in version.profiles.items()}  # noqa: C416
    profile = profiles.get(policy)
    if profile is None:
        known = ", ".join(version.profiles)
        raise KitError(f"Endpoint picker {version.version} has no profile {policy}.", f"It has: {known}.")
    return profile


@dataclass(frozen=True)
class ServerLimits:
    """Limits of one server, or of each of its data parallel ranks, named as in vLLM. `key_value_tokens` is the number
    of tokens that its KV cache holds, in blocks of `block_size` tokens.
    """

    parallelism: Parallelism
    key_value_tokens: int
    max_num_seqs: int = DEFAULT_ENGINE.max_num_seqs
    max_num_batched_tokens: int = 8192
    block_size: int = DEFAULT_BLOCK_SIZE


@dataclass(frozen=True)
class SimulatedDeployment:
    """Deployment to simulate: `copies` of a model's servers, each with a router of its own, behind one endpoint, which
    spreads requests over the copies at random.

    Routers choose among data parallel ranks as among servers, although in reality vLLM chooses by the number of
    requests of each rank. `router_s` is the time in seconds that gateway and endpoint picker add to each request;
    `picker` is the endpoint picker's version, the newest release's if None.
    """

    model: str
    gpu: str
    topology: Topology
    limits: Mapping[Role, ServerLimits]
    copies: int = 1
    policy: Policy = "queue"
    picker: str | None = None
    router_s: float = 0.0
    price_usd_per_gpu_hour: float | None = None

    @property
    def gpus(self) -> int:
        """Number of GPUs of all servers in all copies of the deployment together."""
        return self.topology.gpus * self.copies


def deployment(
    model: CatalogueModel,
    node: NodeHardware,
    topology: Topology | str,
    *,
    copies: int = 1,
    policy: Policy = "queue",
    picker: str | None = None,
    max_num_seqs: int = DEFAULT_ENGINE.max_num_seqs,
    gpu_memory_utilization: float = DEFAULT_ENGINE.gpu_memory_utilization,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> SimulatedDeployment:
    """Return the deployment to simulate for a catalogue's model on nodes; `topology` may be a short form such as
    `8p-tp1-4d-tp2`.
    """
    chosen = Topology.model_validate(topology)
    limits: dict[Role, ServerLimits] = {}
    for role, servers in chosen.servers().items():
        spread = servers.parallelism(expert_parallel=model.expert_parallel, node_gpus=node.gpus)
        tokens = key_value_tokens(model, node, spread, gpu_memory_utilization) // spread.data_parallel_size
        limits[role] = ServerLimits(spread, tokens, max_num_seqs, block_size=block_size)
    return SimulatedDeployment(
        model.name,
        node.gpu.product,
        chosen,
        limits,
        copies,
        policy,
        picker,
        price_usd_per_gpu_hour=node.price_usd_per_gpu_hour,
    )


@dataclass(frozen=True)
class ClosedLoopArrivals:
    """Arrivals from `concurrency` users, each of whom sends the next request when the last one is answered."""

    concurrency: int


@dataclass(frozen=True)
class ConstantArrivals:
    """Arrivals at a constant rate, with even intervals."""

    requests_per_s: float


@dataclass(frozen=True)
class PoissonArrivals:
    """Arrivals from independent users at a mean rate, with exponentially distributed intervals."""

    requests_per_s: float


@dataclass(frozen=True)
class RecordedTimes:
    """Arrivals at recorded times, ascending, in seconds after the start."""

    times_s: Sequence[float]


Arrivals = ClosedLoopArrivals | ConstantArrivals | PoissonArrivals | RecordedTimes


@dataclass(frozen=True)
class RequestClass:
    """Class of requests of equal size. `cached_tokens` of its `input_tokens` are in the prefix cache of each prefill
    server, in whole blocks; if all are, the class models a decode benchmark whose prompts are put into the cache.
    """

    input_tokens: int
    output_tokens: int
    weight: float = 1.0
    cached_tokens: int = 0
    prefix_tokens: int = 0
    """Number of tokens at the beginning of each prompt that it shares with all prompts of its group; a request belongs
    to any of `prefixes` groups with equal probability. A server that has computed such a beginning keeps it in its
    prefix cache for ever; `cached_tokens`, in contrast, are cached on every server from the start.
    """
    prefixes: int = 0
    host_tokens: int = 0
    """Number of those of `cached_tokens` that are in the memory of the prefill server's node instead of its GPUs: the
    prompt waits until they are loaded. A server loads for one prompt after the other, and computes other prompts
    meanwhile.
    """


Workload = Sequence[RequestClass]
"""Classes of requests: drawn at random by weight, or taken one after the other where requests arrive at recorded
times.
"""


def arrival_times_s(arrivals: ConstantArrivals | PoissonArrivals | RecordedTimes, random: Random) -> Iterator[float]:
    """Yield the arrival times in seconds of the requests of an open loop: endless, unless the times are recorded."""
    if isinstance(arrivals, RecordedTimes):
        return iter(arrivals.times_s)
    if isinstance(arrivals, ConstantArrivals):
        return (count / arrivals.requests_per_s for count in itertools.count())
    return itertools.accumulate(random.expovariate(arrivals.requests_per_s) for _ in itertools.count())


def sizes(workload: Workload, arrivals: Arrivals, random: Random) -> Iterator[RequestClass]:
    """Yield the class of each request in the order of arrival, endlessly: drawn at random by weight, or one class after
    the other if arrivals are recorded.
    """
    if isinstance(arrivals, RecordedTimes) or len(workload) == 1:
        return itertools.cycle(workload)
    weights = [request_class.weight for request_class in workload]
    return itertools.chain.from_iterable(random.choices(workload, weights, k=1000) for _ in itertools.count())
