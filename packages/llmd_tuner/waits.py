"""Waiting times of requests for a free server: closed forms of queueing theory, for Poisson arrivals and one queue.

Rates are requests per second, times are seconds. An overloaded queue has no steady state: its wait is infinite. Service
times are constant unless `service_scv` says otherwise: the squared coefficient of variation (variance over squared
mean), 0 for equal prompts, 1 for exponential times, `scv` for weighted classes.

Where a router sends requests to the server with the shortest queue, `servers` share one queue in good approximation;
where it picks at random, each server has a queue of its own: `servers=1` and its share of the arrivals.

A search asks for tens of thousands of waits, so each number of servers gets a table over the utilization (`waits_s`).
What is tabulated is wait x (1 - utilization) / service, which is smooth up to the pole.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_STEPS = 100

_UTILIZATIONS = np.linspace(0.0, 1.0, _STEPS + 1)[:-1]
"""Up to just below 1; the last entry holds from there to the pole."""


def erlang_b(servers: int, offered_load: float) -> float:
    """Return the probability that all servers are busy where no request waits (M/G/c/c). `offered_load` is arrival rate
    x service time.

    Erlang 1917, by the recursion B(n) = a B(n-1) / (n + a B(n-1)), whose terms stay within 0 and 1 at any size.
    """
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered_load * blocked / (count + offered_load * blocked)
    return blocked


def erlang_c(servers: int, offered_load: float) -> float:
    """Return the probability that a request has to wait (M/M/c): C = B / (1 - rho (1 - B)). Erlang 1917."""
    utilization = offered_load / servers
    if utilization >= 1:
        return 1.0
    blocked = erlang_b(servers, offered_load)
    return blocked / (1 - utilization * (1 - blocked))


def mmc_wait_s(arrivals_per_s: float, service_s: float, servers: int = 1) -> float:
    """Return the mean wait in seconds with exponential service times (M/M/c): W = C / (c/s - lambda), where C is
    `erlang_c`. Erlang 1917; exact.
    """
    spare_per_s = servers / service_s - arrivals_per_s
    if spare_per_s <= 0:
        return math.inf
    return erlang_c(servers, arrivals_per_s * service_s) / spare_per_s


def mdc_wait_s(arrivals_per_s: float, service_s: float, servers: int = 1) -> float:
    """Return the mean wait in seconds for several servers with one queue and constant service times (M/D/c).

    Half of M/M/c's wait with the correction of Cosmetatos (INFOR 13, 1975): 1 + (1 - rho) (c - 1) (sqrt(4 + 5c) - 2) /
    (16 rho c). Exact for one server; within 2 % of Crommelin's exact series for up to 16 servers from rho = 0.6 on, too
    high where hardly anybody waits. The correction is limited to 2: M/D/c never waits longer than M/M/c.
    """
    utilization = arrivals_per_s * service_s / servers
    if utilization >= 1:
        return math.inf
    if utilization <= 0:
        return 0.0
    correction = (1 - utilization) * (servers - 1) * (math.sqrt(4 + 5 * servers) - 2) / (16 * utilization * servers)
    return min(2.0, 1 + correction) / 2 * mmc_wait_s(arrivals_per_s, service_s, servers)


def mgc_wait_s(arrivals_per_s: float, service_s: float, servers: int = 1, service_scv: float = 0.0) -> float:
    """Return the mean wait in seconds for service times of any distribution (M/G/c).

    Interpolated between M/D/c and M/M/c by `service_scv`: W = (1 - scv) W(M/D/c) + scv W(M/M/c). Tijms, A First Course
    in Stochastic Models, 2003. Exact for one server.
    """
    constant_s = mdc_wait_s(arrivals_per_s, service_s, servers)
    if math.isinf(constant_s):
        return math.inf
    return (1 - service_scv) * constant_s + service_scv * mmc_wait_s(arrivals_per_s, service_s, servers)


def scv(weighted_times: Iterable[tuple[float, float]]) -> float:
    """Return the squared coefficient of variation of weighted times, given as at least one pair of weight
    and seconds.
    """
    pairs = list(weighted_times)
    total = math.fsum(weight for weight, _ in pairs)
    mean = math.fsum(weight * time for weight, time in pairs) / total
    return math.fsum(weight * (time - mean) ** 2 for weight, time in pairs) / total / mean**2


@dataclass(frozen=True)
class Looseness:
    """Additional wait that a router profile causes by imperfect choices, in units of rho (1 + rho) service times, where
    rho is the utilization: before prefill servers (`disaggregated`), and before aggregated servers, each rank of which
    adds `aggregated_each`, up to `aggregated_most`.

    Scores by used KV cache are never equal: all requests go to the server with the highest score until its metrics show
    the last request.
    """

    disaggregated: float
    aggregated_each: float
    aggregated_most: float


LOOSENESS = {
    "prefix": Looseness(0.6, 0.4, 4.0),
    "token-load": Looseness(0.2, 0.2, 0.2),
    "prefix-affinity": Looseness(0.2, 0.2, 0.2),  # as token-load: without prompts that share a prefix it is the same
    "precise-prefix": Looseness(0.2, 0.2, 0.2),  # likewise
    "session-affinity": Looseness(0.2, 0.2, 0.2),  # as token-load, of requests that are each the first of its session
    "lora-affinity": Looseness(
        0.6, 0.4, 4.0
    ),  # as prefix: what requests without adapters are chosen by is queue-scorer
    "running-requests": Looseness(0.75, 0.43, 4.3),
}
"""Additional wait by router profile, fitted to the event simulation for 3 to 16 servers and utilizations of 0.3 to 0.8.
"""


def routed_waits_s(
    servers: "NDArray[np.int64]",
    utilization: Array,
    service_s: Array | float,
    scv: Array | float,
    loose_share: Array | float,
) -> Array:
    """Return the mean wait in seconds behind a router that doesn't know exactly which server is free first.

    Where several servers have no waiting request, llm-d's queue-scorer can't tell idle from busy ones, so that a
    request may wait for a busy server although another one is free: in addition to the wait in one queue, (1 - 1/c) x
    `loose_share` rho (1 + rho) service times.
    """
    loose = (1 - 1 / np.maximum(servers, 1)) * loose_share * utilization * (1 + utilization) * service_s
    return waits_s(servers, utilization, service_s, scv) + loose


def waits_s(
    servers: "NDArray[np.int64]", utilization: Array, service_s: Array | float, service_scv: Array | float
) -> Array:
    """Return the mean wait in one queue before `servers` servers (M/G/c), in seconds; infinite where they are
    overloaded.
    """
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
    """Return the smoothed wait at each utilization, with constant and with exponential service times of one second."""
    count = max(servers, 1)
    return np.array(
        [
            [(1 - rho) * mgc_wait_s(rho * count, 1.0, count, variation) for variation in (0.0, 1.0)]
            for rho in _UTILIZATIONS
        ]
    )
