"""Waits for a free server, looked up in tables for whole arrays of loads.

`formulas` has the closed forms; a search asks for tens of thousands of waits, so each number of servers gets a table
over the utilization. What is tabulated is wait x (1 - utilization) / service, which is smooth up to the pole.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from llmd_oke.tuning.queues.formulas import mgc_wait_s

Array = NDArray[np.float64]

_STEPS = 100
_UTILIZATIONS = np.linspace(0.0, 1.0, _STEPS + 1)[:-1]
"""Up to just below 1; the last entry holds from there to the pole."""


@dataclass(frozen=True)
class Looseness:
    """How much of rho (1 + rho) service times the choice of a router's profile costs: before prefill servers, and
    before servers that do both, of which more cost more up to a limit.

    Scores of the KV cache in use are never equal, so that all requests of the moment in which a server's metrics don't
    show the last one go to the same server.
    """

    disaggregated: float
    aggregated_each: float
    aggregated_most: float


LOOSENESS = {
    "prefix": Looseness(0.6, 0.4, 4.0),
    "token-load": Looseness(0.2, 0.2, 0.2),
    "running-requests": Looseness(0.75, 0.43, 4.3),
}
"""By profile: fitted to the event simulation for 3 to 16 servers and loads of 0.3 to 0.8."""


def routed_waits_s(
    servers: "NDArray[np.int64]", utilization: Array, service_s: Array | float, scv: float, loose_share: Array | float
) -> Array:
    """Mean wait behind a router that can't quite tell which server is free first.

    Where several servers have none waiting, llm-d's queue-scorer can't tell the idle from the busy, so that a request
    waits for the rest of a service although another server is free: beside the wait in one queue,
    (1 - 1/c) x `loose_share` rho (1 + rho) services.
    """
    loose = (1 - 1 / np.maximum(servers, 1)) * loose_share * utilization * (1 + utilization) * service_s
    return waits_s(servers, utilization, service_s, scv) + loose


def waits_s(servers: "NDArray[np.int64]", utilization: Array, service_s: Array | float, service_scv: float) -> Array:
    """Mean wait in one queue before `servers` servers (M/G/c), in seconds; infinite where they are overloaded."""
    tables = _tables(int(servers.max()))
    place = np.clip(utilization, 0.0, _UTILIZATIONS[-1]) * _STEPS
    low = np.minimum(place.astype(np.int64), _STEPS - 2)
    part = (place - low)[..., None]
    smooth = tables[servers, low] * (1 - part) + tables[servers, low + 1] * part
    mixed = (1 - service_scv) * smooth[..., 0] + service_scv * smooth[..., 1]
    overloaded = utilization >= 1
    return np.where(overloaded, np.inf, mixed * service_s / np.where(overloaded, 1.0, 1 - utilization))


@lru_cache(maxsize=64)
def _tables(most: int) -> Array:
    return np.array([_table(count) for count in range(most + 1)])


@lru_cache(maxsize=1024)
def _table(servers: int) -> Array:
    """For each utilization: the smoothed wait with constant and with exponential service times of one second."""
    count = max(servers, 1)
    return np.array(
        [
            [(1 - rho) * mgc_wait_s(rho * count, 1.0, count, variation) for variation in (0.0, 1.0)]
            for rho in _UTILIZATIONS
        ]
    )
