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
    """Return the scorers of a role's servers with their weights, as a version of the endpoint picker has them; the
    newest release's version where none is named.

    Raises:
        KitError: that version has no such profile.
    """
    if policy in _PLAIN:
        return _PLAIN[policy]
    return getattr(_profile(policy, picker), role)


def filters(policy: Policy, role: Role, picker: str | None = None) -> Mapping[str, Mapping[str, JsonValue]]:
    """Return the filters that narrow the choice of a role's servers before they are scored, with their parameters.

    Raises:
        KitError: that version has no such profile.
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
    """Limits of one server, or of each of its data parallel ranks, in vLLM's words. `key_value_tokens` is the room of
    its KV cache, which sequences take in blocks of `block_size` tokens.
    """

    parallelism: Parallelism
    key_value_tokens: int
    max_num_seqs: int = DEFAULT_ENGINE.max_num_seqs
    max_num_batched_tokens: int = 8192
    block_size: int = DEFAULT_BLOCK_SIZE


@dataclass(frozen=True)
class SimulatedDeployment:
    """`copies` equal units of a model behind one endpoint, which spreads requests over units at random. Routers choose
    among data parallel ranks as among servers, though it is vLLM that does, by the requests of each.

    `router_s` is what gateway and endpoint picker add to each request; `picker` is its version, the newest release's if
    None.
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
        """GPUs of all copies."""
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
    """Return the deployment of a catalogue's model on nodes; `topology` may be a short form such as `8p-tp1-4d-tp2`."""
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
    """Users, `concurrency` of them, each of whom sends the next request when the last one is answered."""

    concurrency: int


@dataclass(frozen=True)
class ConstantArrivals:
    """Requests at even intervals."""

    requests_per_s: float


@dataclass(frozen=True)
class PoissonArrivals:
    """Requests of independent users: exponential gaps."""

    requests_per_s: float


@dataclass(frozen=True)
class RecordedTimes:
    """Requests at recorded moments, ascending, in seconds after the start."""

    times_s: Sequence[float]


Arrivals = ClosedLoopArrivals | ConstantArrivals | PoissonArrivals | RecordedTimes


@dataclass(frozen=True)
class RequestClass:
    """Requests of one size. Of `input_tokens`, `cached_tokens` are found in the prefix cache of any prefill server, as
    far as they fill its blocks; all of them are there where a decode benchmark fills prompts in.
    """

    input_tokens: int
    output_tokens: int
    weight: float = 1.0
    cached_tokens: int = 0
    prefix_tokens: int = 0
    """Tokens that prompts begin with and share with others of one of `prefixes` groups, each as likely. A server has
    them once it has computed such a prompt, and never loses them; `cached_tokens` are on every server."""
    prefixes: int = 0
    host_tokens: int = 0
    """Those of `cached_tokens` that are in the memory of the prefill server's node: the prompt waits until they are
    loaded, one prompt of a server after the other, while others are computed."""


Workload = Sequence[RequestClass]
"""The sizes of requests: drawn by weight, or one after the other where they arrive at recorded moments."""


def arrival_times_s(arrivals: ConstantArrivals | PoissonArrivals | RecordedTimes, random: Random) -> Iterator[float]:
    """Return the moments at which requests of an open loop arrive; without end, unless recorded."""
    if isinstance(arrivals, RecordedTimes):
        return iter(arrivals.times_s)
    if isinstance(arrivals, ConstantArrivals):
        return (count / arrivals.requests_per_s for count in itertools.count())
    return itertools.accumulate(random.expovariate(arrivals.requests_per_s) for _ in itertools.count())


def sizes(workload: Workload, arrivals: Arrivals, random: Random) -> Iterator[RequestClass]:
    """Return the size of each request in the order of arrival, without end."""
    if isinstance(arrivals, RecordedTimes) or len(workload) == 1:
        return itertools.cycle(workload)
    weights = [request_class.weight for request_class in workload]
    return itertools.chain.from_iterable(random.choices(workload, weights, k=1000) for _ in itertools.count())
