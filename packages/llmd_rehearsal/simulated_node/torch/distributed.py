"""Simulated `torch.distributed`: ranks connect over TCP like the real ones; the slowest port determines the rate."""

import json
import socket
import time
from datetime import timedelta
from urllib.parse import urlsplit

import torch

ALONE_GB_PER_S = 320.0
"""Bus bandwidth in GB/s of a simulated all-reduce within one node, where no network is used."""

_group = {"ranks": 1, "gb_per_s": ALONE_GB_PER_S}


def init_process_group(backend: str, *, init_method: str, rank: int, world_size: int, timeout: timedelta) -> None:
    """Wait until all ranks have connected, like the real function, and agree on the bandwidth of simulated
    all-reduces.
    """
    del backend
    rates = torch.port_rates()
    slowest = min(rates, default=0.0)
    limit_s = timeout.total_seconds()
    address = urlsplit(init_method)
    leader = (str(address.hostname), int(address.port or 0))
    slowest = _lead(leader, world_size, slowest, limit_s) if rank == 0 else _follow(leader, slowest, limit_s)
    alone = world_size <= len(rates) or not rates
    _group.update(ranks=world_size, gb_per_s=ALONE_GB_PER_S if alone else slowest * len(rates))


def _lead(address: tuple[str, int], ranks: int, slowest: float, limit_s: float) -> float:
    with socket.create_server(address) as server:
        server.settimeout(limit_s)
        others = [server.accept()[0] for _ in range(ranks - 1)]
        rates = [json.loads(other.makefile().readline()) for other in others]
        for other in others:
            other.sendall(f"{min([slowest, *rates])}\n".encode())
            other.close()
        return min([slowest, *rates])


def _follow(address: tuple[str, int], slowest: float, limit_s: float) -> float:
    until_s = time.monotonic() + limit_s
    while True:
        try:
            with socket.create_connection(address, timeout=limit_s) as leader:
                leader.sendall(f"{slowest}\n".encode())
                return float(leader.makefile().readline())
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


def all_reduce(buffer: torch.Tensor) -> None:
    """Advance the simulated clock by the duration of an all-reduce of `buffer` on real hardware; compute nothing."""
    ranks = _group["ranks"]
    torch.model_time.now_s += buffer.nbytes / (_group["gb_per_s"] * 1e9) * 2 * (ranks - 1) / ranks


def destroy_process_group() -> None:
    """Do nothing: the simulation keeps no process group."""
