"""How long requests wait for a free server: closed forms of queueing theory, for Poisson arrivals and one queue.

Rates are requests per second, times are seconds. An overloaded queue has no steady state: its wait is infinite. Service
times are constant unless `service_scv` says otherwise: the squared coefficient of variation (variance over squared
mean), 0 for equal prompts, 1 for exponential times, `scv` for weighted classes.

Where a router sends requests to the server with the shortest queue, `servers` share one queue in good approximation;
where it picks at random, each server has a queue of its own: `servers=1` and its share of the arrivals.
"""

import math
from collections.abc import Iterable


def erlang_b(servers: int, offered_load: float) -> float:
    """The chance that all servers are busy where nobody waits (M/G/c/c).

    `offered_load` is arrivals x service time, in servers. Erlang 1917, by the recursion
    B(n) = a B(n-1) / (n + a B(n-1)), whose terms stay within 0 and 1 at any size.
    """
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered_load * blocked / (count + offered_load * blocked)
    return blocked


def erlang_c(servers: int, offered_load: float) -> float:
    """The chance that a request has to wait (M/M/c): C = B / (1 - rho (1 - B)). Erlang 1917."""
    utilization = offered_load / servers
    if utilization >= 1:
        return 1.0
    blocked = erlang_b(servers, offered_load)
    return blocked / (1 - utilization * (1 - blocked))


def mmc_wait_s(arrivals_per_s: float, service_s: float, servers: int = 1) -> float:
    """Mean wait with exponential service times (M/M/c): W = C / (c/s - lambda). Erlang 1917; exact."""
    spare_per_s = servers / service_s - arrivals_per_s
    if spare_per_s <= 0:
        return math.inf
    return erlang_c(servers, arrivals_per_s * service_s) / spare_per_s


def md1_wait_s(arrivals_per_s: float, service_s: float) -> float:
    """Mean wait for one server (M/D/1): W = rho s / (2 (1 - rho)). Pollaczek 1930, Khinchine 1932; exact."""
    utilization = arrivals_per_s * service_s
    if utilization >= 1:
        return math.inf
    return utilization * service_s / (2 * (1 - utilization))


def mdc_wait_s(arrivals_per_s: float, service_s: float, servers: int = 1) -> float:
    """Mean wait for several servers with one queue (M/D/c).

    Half of M/M/c's wait with the correction of Cosmetatos (INFOR 13, 1975):
    1 + (1 - rho) (c - 1) (sqrt(4 + 5c) - 2) / (16 rho c). Exact for one server; within 2 % of Crommelin's exact series
    for up to 16 servers from rho = 0.6 on, too high where hardly anybody waits. It is held at 2: M/D/c never waits
    longer than M/M/c.
    """
    utilization = arrivals_per_s * service_s / servers
    if utilization >= 1:
        return math.inf
    if utilization <= 0:
        return 0.0
    correction = (1 - utilization) * (servers - 1) * (math.sqrt(4 + 5 * servers) - 2) / (16 * utilization * servers)
    return min(2.0, 1 + correction) / 2 * mmc_wait_s(arrivals_per_s, service_s, servers)


def mgc_wait_s(arrivals_per_s: float, service_s: float, servers: int = 1, service_scv: float = 0.0) -> float:
    """Mean wait for service times of any distribution (M/G/c): between M/D/c and M/M/c in proportion to `service_scv`.

    W = (1 - scv) W(M/D/c) + scv W(M/M/c): Tijms, A First Course in Stochastic Models, 2003. Exact for one server.
    """
    constant_s = mdc_wait_s(arrivals_per_s, service_s, servers)
    if math.isinf(constant_s):
        return math.inf
    return (1 - service_scv) * constant_s + service_scv * mmc_wait_s(arrivals_per_s, service_s, servers)


def mdc_wait_percentile_s(arrivals_per_s: float, service_s: float, servers: int, percent: float) -> float:
    """The wait that `percent` of the requests don't exceed (M/D/c), by an approximation.

    P(W > t) = W_q eta exp(-eta t): the tail decays at its exact rate, the root of exp(eta s/c) = 1 + eta/lambda (Tijms
    2003), and has the mean wait W_q. Within 3 % of the exact distribution of one server from the 90th percentile and
    rho = 0.6 on.
    """
    mean_s = mdc_wait_s(arrivals_per_s, service_s, servers)
    if math.isinf(mean_s):
        return math.inf
    if erlang_c(servers, arrivals_per_s * service_s) <= 1 - percent / 100:
        return 0.0
    decay_per_s = _tail_decay_per_s(arrivals_per_s, service_s, servers)
    return max(0.0, math.log(mean_s * decay_per_s / (1 - percent / 100)) / decay_per_s)


def ttft_with_speed_up_s(arrivals_per_s: float, service_s: float, speed_up: float = 1.0) -> float:
    """Mean time to first token of one prefill server whose parallelism speeds it up by K: D/K + R D^2 / (2K (K - RD)).

    DistServe (Zhong and others, OSDI 2024), section 3.1. That is M/D/1 with a service time of D/K.
    """
    return service_s / speed_up + md1_wait_s(arrivals_per_s, service_s / speed_up)


def little_in_flight(arrivals_per_s: float, time_in_system_s: float) -> float:
    """Requests in a system on average: L = lambda W. Little, Operations Research 9, 1961."""
    return arrivals_per_s * time_in_system_s


def scv(weighted_times: Iterable[tuple[float, float]]) -> float:
    """The squared coefficient of variation of times with weights: (weight, time in seconds) pairs, at least one."""
    pairs = list(weighted_times)
    total = math.fsum(weight for weight, _ in pairs)
    mean = math.fsum(weight * time for weight, time in pairs) / total
    return math.fsum(weight * (time - mean) ** 2 for weight, time in pairs) / total / mean**2


def _tail_decay_per_s(arrivals_per_s: float, service_s: float, servers: int) -> float:
    """The positive root eta. With y = eta s/c and u = lambda s/c: y = ln(1 + y/u), by Newton from above.

    ln(1 + y/u) - y is concave and 2 (1/u - 1) lies beyond the root, so that the steps never cross it.
    """
    utilization = arrivals_per_s * service_s / servers
    root = 2 * (1 / utilization - 1)
    for _ in range(50):
        slope = 1 / (utilization + root) - 1
        step = (math.log1p(root / utilization) - root) / slope
        root -= step
        if abs(step) <= 1e-12 * root:
            break
    return root * servers / service_s
