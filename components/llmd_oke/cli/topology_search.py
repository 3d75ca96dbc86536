"""Interface of the topology search for the kit's commands. The implementation is found by an entry point, since
`llmd_oke` doesn't import the tuner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llmd_base.errors import KitError
from llmd_base.row import Basis

from llmd_oke.cli.loading import load_only


@dataclass(frozen=True)
class ServingNeeds:
    """Needs of a model's users, for which a topology is searched: lengths of requests in tokens, limits of mean
    latencies in milliseconds, and either the requests per second to carry or the number of GPUs to use.
    """

    model: str
    shape: str
    input_tokens: int
    output_tokens: int
    ttft_ms: float | None = None
    itl_ms: float | None = None
    requests_per_s: float | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class FoundTopology:
    """Topology found by the search, with the number of copies (each with a router of its own), the GPUs of the whole
    nodes that all copies use, and the highest requests per second of all copies within the latency limits.
    """

    topology: str
    copies: int
    gpus: int
    requests_per_s: float


@dataclass(frozen=True)
class FoundTopologies:
    """Topologies that meet the needs of a model's users, best first, with the basis of their figures (measured,
    calibrated or a bound), and a sentence that explains the basis.
    """

    topologies: Sequence[FoundTopology]
    basis: Basis
    sentence: str


class TopologySearch(Protocol):
    """Protocol of the search for topologies (entry point `llmd_oke.topology_searches`)."""

    def __call__(self, needs: ServingNeeds) -> FoundTopologies:
        """Return the topologies that meet the needs. Raises a KitError if none does; its remedy names needs that can be
        met.
        """
        ...


def topology_search() -> TopologySearch:
    """Return the implementation of the topology search in this installation.

    Raises:
        KitError: the installation has none, or it needs an extra that isn't installed.
    """
    missing = KitError("This installation has no search for topologies.", "Give --topology, or install llmd-oke anew.")
    search: TopologySearch = load_only("llmd_oke.topology_searches", "A topology for a load (no --topology)", missing)
    return search
