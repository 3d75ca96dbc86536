"""Backends by which ranks that share experts exchange tokens (vLLM's `--all2all-backend`), and what they take."""

from collections.abc import Mapping

from pydantic import Field

from llmd_oke.catalogue.endpoint_pickers import KnownLimit
from llmd_oke.catalogue.models import BYTES_PER_GIB
from llmd_oke.config.base import EnvironmentName
from llmd_oke.values import Entry


class All2AllBackend(Entry):
    """One backend, and what servers have beside vLLM's argument for it.

    Servers get `arguments` and `environment`, and variables of `rdma_environment` with the values that RCCL's own
    variables have, by the names of these. `heap_variable` says in bytes how much memory of each GPU, `heap_gib`, the
    backend takes outside of vLLM's share. /dev/shm has at least `shared_memory_gib`. `over_nodes` is why servers that
    span nodes have it with images of the user's own alone, None where the release's will do. `limits` is what is known
    against it in any servers.
    """

    arguments: tuple[str, ...] = ()
    environment: dict[EnvironmentName, str] = Field(default={})
    rdma_environment: dict[EnvironmentName, EnvironmentName] = Field(default={})
    heap_variable: EnvironmentName | None = None
    heap_gib: int = 0
    shared_memory_gib: int = 0
    over_nodes: KnownLimit | None = None
    limits: tuple[KnownLimit, ...] = ()

    def variables(self, rccl: Mapping[str, str], *, rdma: bool) -> dict[str, str]:
        """Return the variables of servers, on nodes whose RCCL has those of `rccl` for the RDMA network."""
        heap = {} if self.heap_variable is None else {self.heap_variable: str(self.heap_gib * BYTES_PER_GIB)}
        of_network = {name: rccl[other] for name, other in self.rdma_environment.items() if rdma and other in rccl}
        return {**self.environment, **heap, **of_network}
