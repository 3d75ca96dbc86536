"""Simulated NIXL API: a read takes the model time of the slower of two ports, and increases the port's receive
counter.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

PORTS = Path("/sys/class/infiniband")
WORD_BYTES = 4

Piece = tuple[int, int, int]


class nixl_agent_config:  # noqa: N801 - NIXL's name
    """Configuration of a simulated NIXL agent."""

    def __init__(self, backends: Sequence[str] = ("UCX",)) -> None:
        self.backends = list(backends)


class Transfer:
    """Prepared read of another agent's memory: the target buffer, the byte value that fills it, its length in bytes,
    and its duration in seconds on real hardware.
    """

    def __init__(self, target: torch.Tensor, fill: int, length_bytes: int, seconds: float) -> None:
        self.target, self.fill, self.length_bytes, self.seconds = target, fill, length_bytes, seconds


class nixl_agent:  # noqa: N801 - NIXL's name
    """Simulated NIXL agent with its registered buffers."""

    def __init__(self, name: str, config: nixl_agent_config) -> None:
        del config
        self._name = name
        self._buffers: list[torch.Tensor] = []
        self._peers: dict[str, dict[str, list[float]]] = {}

    def get_plugin_list(self) -> list[str]:
        """Return the names of the agent's transports."""
        return ["UCX"]

    def register_memory(self, regions: Sequence[tuple[int, int, int, str]], *, mem_type: str) -> Sequence[object]:
        """Register buffers, each given as address, length in bytes, device number and name."""
        del mem_type
        self._buffers += [torch.Tensor.by_address[address] for address, *_ in regions]
        return regions

    def deregister_memory(self, regions: Sequence[object]) -> None:
        """Do nothing: the simulation keeps registered buffers."""

    def get_agent_metadata(self) -> bytes:
        """Return as JSON what another agent must know of this one: the byte value of each buffer, and the rate of its
        RDMA port in GB/s.
        """
        rates = torch.port_rates()
        buffers = {str(item.data_ptr()): [item.fill, rates[item.get_device()]] for item in self._buffers}
        return json.dumps({"name": self._name, "buffers": buffers}).encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Register another agent by its metadata and return its name."""
        other = json.loads(metadata)
        self._peers[other["name"]] = other["buffers"]
        return other["name"].encode()

    def get_xfer_descs(self, pieces: Sequence[Piece], *, mem_type: str) -> Sequence[Piece]:
        """Return descriptors of pieces of memory for a transfer; in the simulation these are the pieces themselves."""
        del mem_type
        return pieces

    def initialize_xfer(self, operation: str, local: Sequence[Piece], remote: Sequence[Piece], peer: str) -> Transfer:
        """Return a prepared read of the memory of the agent `peer`, with its duration in seconds on real hardware."""
        del operation
        fill, rate = self._peers[peer][str(remote[0][0])]
        target = torch.Tensor.by_address[local[0][0]]
        length_bytes = sum(length for _, length, _ in local)
        slower = min(rate, torch.port_rates()[target.get_device()])
        return Transfer(target, int(fill), length_bytes, length_bytes / (slower * 1e9))

    def transfer(self, handle: Transfer) -> str:
        """Execute a prepared read: fill the target, and advance the simulated clock and the RDMA port's receive
        counter.
        """
        torch.model_time.now_s += handle.seconds
        handle.target.fill = handle.fill
        counter = PORTS / f"mlx5_{handle.target.get_device()}/ports/1/counters/port_rcv_data"
        counter.write_text(f"{int(counter.read_text()) + handle.length_bytes // WORD_BYTES}\n")
        return "DONE"

    def check_xfer_state(self, handle: Transfer) -> str:
        """Return the state of a transfer, which in the simulation is always done."""
        del handle
        return "DONE"

    def release_xfer_handle(self, handle: Transfer) -> None:
        """Do nothing: a transfer holds no resources in the simulation."""
