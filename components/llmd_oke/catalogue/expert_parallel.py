"""Backends by which ranks that share experts exchange tokens (vLLM's `--all2all-backend`), and the memory and settings
that each needs.
"""

from collections.abc import Mapping

from pydantic import Field

from llmd_oke.catalogue.endpoint_pickers import KnownLimit
from llmd_oke.catalogue.models import BYTES_PER_GIB
from llmd_oke.config.base import EnvironmentName
from llmd_oke.values import Entry


class All2AllBackend(Entry):
    """Backend by which ranks that share experts exchange tokens, and what servers get besides vLLM's argument that
    selects it: `arguments`, `environment`, and the variables of `rdma_environment`, each with the value of the RCCL
    variable that it names. The backend takes `heap_gib` of each GPU's memory outside of vLLM's share, set in bytes by
    `heap_variable`, and needs at least `shared_memory_gib` in /dev/shm. `over_nodes` is the reason why servers that
    span nodes need an image of the user's own for it, None where the release's image works. `limits` are its known
    drawbacks.
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
        """Return the environment variables that servers get for the backend; with `rdma` also those of
        `rdma_environment`, whose values come from `rccl`: RCCL's variables for the RDMA network of the servers' nodes.
        """
        heap = {} if self.heap_variable is None else {self.heap_variable: str(self.heap_gib * BYTES_PER_GIB)}
        of_network = {name: rccl[other] for name, other in self.rdma_environment.items() if rdma and other in rccl}
        return {**self.environment, **heap, **of_network}
