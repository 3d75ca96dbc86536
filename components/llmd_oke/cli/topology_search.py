"""Search of topologies as the kit's commands meet it: found by an entry point, as the kit doesn't import the tuner."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from llmd_base.errors import KitError
from llmd_base.row import Basis

from llmd_oke.cli.loading import load


@dataclass(frozen=True)
class ServingNeeds:
    """Demand on a model's servers: lengths of requests in tokens, limits of mean latencies in milliseconds, and either
    the requests per second to carry or the GPUs to use.
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
    """One topology and its copies: the GPUs of whole nodes, and the most requests per second within the limits."""

    topology: str
    copies: int
    gpus: int
    requests_per_s: float


@dataclass(frozen=True)
class FoundTopologies:
    """Topologies that meet the needs, best first; `basis` and `sentence` say what their figures rest on."""

    topologies: Sequence[FoundTopology]
    basis: Basis
    sentence: str


class TopologySearch(Protocol):
    """Search of an installation (`llmd_oke.topology_searches`)."""

    def __call__(self, needs: ServingNeeds) -> FoundTopologies:
        """Return the topologies that meet the needs. Raises a KitError where none does, with what would."""
        ...


def topology_search() -> TopologySearch:
    """The search of this installation.

    Raises:
        KitError: it has none, or it needs an extra.
    """
    entry = next(iter(entry_points(group="llmd_oke.topology_searches")), None)
    if entry is None:
        raise KitError("This installation has no search for topologies.", "Give --topology, or install llmd-oke anew.")
    return load(entry, "A topology for a load (without --topology)")
