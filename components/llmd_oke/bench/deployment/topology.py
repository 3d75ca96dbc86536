"""What is being measured: servers by role and what stands in front of them, as far as a report tells it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["prefill", "decode", "aggregated"]


@dataclass(frozen=True)
class Servers:
    """Equal model servers of one role. `image` and the native settings go into the report as they are."""

    role: Role
    replicas: int
    tensor_parallel_size: int
    image: str = "unknown"
    args: Mapping[str, object] = field(default_factory=dict[str, object])
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.tensor_parallel_size


@dataclass(frozen=True)
class RouterPart:
    """A program between the client and the model servers, for example endpoint picker, Envoy or routing sidecar."""

    label: str
    tool: str
    version: str
    config: object = None


@dataclass(frozen=True)
class Topology:
    """All units of one model.

    `gpus_reserved` counts the GPUs that it keeps from others, where those are more than it uses.
    """

    name: str
    servers: tuple[Servers, ...]
    router: tuple[RouterPart, ...] = ()
    accelerator: str = "AMD-Instinct-MI300X"
    gpus_reserved: int | None = None

    @property
    def gpus(self) -> int:
        """GPUs that its servers use."""
        return sum(servers.gpus for servers in self.servers)

    def of(self, role: Role) -> Servers | None:
        """The servers of one role."""
        return next((servers for servers in self.servers if servers.role == role), None)

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode are separate servers."""
        return self.of("prefill") is not None and self.of("decode") is not None
