"""Simulated deployment: its routers and servers, and the path of a request through them.

A router has the scorers of llm-d's endpoint picker, and picks the server with the highest sum. It sees the current
state of servers, whereas the real one reads their metrics every 50 ms. Formulas: gateway-api-inference-extension v1.5.0
(pkg/epp/framework/plugins/scheduling/scorer), llm-d-router v0.10.0 (its READMEs).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from llmd_oke.catalogue.endpoint_pickers import PEAK_PREFILL_THROUGHPUT, PREFIX_AFFINITY
from llmd_oke.config import Role
from pydantic import JsonValue

from llmd_tuner.latency import LatencyModel
from llmd_tuner.simulation.deployment import RequestClass, SimulatedDeployment, filters, scorers
from llmd_tuner.simulation.engine import Calendar, EngineSimulation, Gaps, Request

Pick = Callable[[Sequence[EngineSimulation], RequestClass, int | None], EngineSimulation]
"""Function that picks one of the servers for a request of a class; the integer identifies the prefix that the request
shares with others.
"""

Scorer = Callable[[Sequence[EngineSimulation], RequestClass, int | None], Sequence[float]]
"""Function that returns a score from 0 to 1 for each server, for a request of a class with a shared prefix."""

Filter = Callable[[Sequence[EngineSimulation], RequestClass, int | None], Sequence[EngineSimulation]]
"""Function that returns those of the servers, at least one, among which a router may pick for a request of a class with
a shared prefix.
"""

_AFFINITY_SHARE, _LONGEST_PENALTY_S, _PEAK_PREFILL_TOKENS_PER_S = 0.8, 18.0, 15928.0
"""`affinityThreshold`, `maxTTFTPenaltyMs`, `peakPrefillThroughput` of the prefix-cache-affinity-filter, by default."""

_QUEUE_THRESHOLD_TOKENS = 4_194_304
"""`queueThresholdTokens` of the token-load-scorer, by default: load in tokens at which a score is 0."""


def picker(
    weights: Mapping[str, float], random: Random, filters: Mapping[str, Mapping[str, JsonValue]] | None = None
) -> Pick:
    """Return the function that picks a server: of those that all filters keep, the one with the highest weighted sum of
    scores, at random among equals. Without scorers all servers are equal.
    """
    scoring = [(_SCORERS[name], weight) for name, weight in weights.items()]
    narrowing = [_FILTERS[name](parameters) for name, parameters in (filters or {}).items()]

    def pick(engines: Sequence[EngineSimulation], size: RequestClass, prefix: int | None) -> EngineSimulation:
        for narrowed in narrowing:
            engines = narrowed(engines, size, prefix)
        if len(engines) == 1:
            return engines[0]
        if not scoring:
            return engines[int(random.random() * len(engines))]
        sums = [0.0] * len(engines)
        for score, weight in scoring:
            sums = [sum_ + weight * own for sum_, own in zip(sums, score(engines, size, prefix), strict=True)]
        highest = max(sums) - 1e-12
        best = [engine for engine, sum_ in zip(engines, sums, strict=True) if sum_ >= highest]
        return best[int(random.random() * len(best))]

    return pick


def _between(counts: Sequence[int]) -> Sequence[float]:
    """Score counts: 1 for the fewest, 0 for the most, in proportion between; 1 for all where they are equal."""
    least, most = min(counts), max(counts)
    if least == most:
        return [1.0] * len(counts)
    return [(most - count) / (most - least) for count in counts]


def _queue(engines: Sequence[EngineSimulation], _size: RequestClass, _prefix: int | None) -> Sequence[float]:
    """Score by waiting requests alone, of which decode servers hardly have any."""
    return _between([engine.waiting for engine in engines])


def _running(engines: Sequence[EngineSimulation], _size: RequestClass, _prefix: int | None) -> Sequence[float]:
    return _between([engine.running for engine in engines])


def _cache_use(engines: Sequence[EngineSimulation], _size: RequestClass, _prefix: int | None) -> Sequence[float]:
    return [1.0 - engine.cache_use for engine in engines]


def _active(engines: Sequence[EngineSimulation], _size: RequestClass, _prefix: int | None) -> Sequence[float]:
    """Score by requests that were sent and are not answered: 1 for an idle server, 0 for the busiest."""
    counts = [engine.assigned for engine in engines]
    most = max(counts)
    return [(most - count) / most if count else 1.0 for count in counts]


def _token_load(engines: Sequence[EngineSimulation], size: RequestClass, prefix: int | None) -> Sequence[float]:
    """Score by prompt tokens that were sent and gave no first token yet, and those of the request that the server
    lacks.
    """
    loads = [engine.assigned_tokens + size.input_tokens - _known(engine, size, prefix) for engine in engines]
    return [1.0 - min(load, _QUEUE_THRESHOLD_TOKENS) / _QUEUE_THRESHOLD_TOKENS for load in loads]


def _prefix(engines: Sequence[EngineSimulation], size: RequestClass, prefix: int | None) -> Sequence[float]:
    """Score by the share of the prompt that the server was sent before."""
    return [_known(engine, size, prefix) / size.input_tokens for engine in engines]


def _adapters(engines: Sequence[EngineSimulation], size: RequestClass, prefix: int | None) -> Sequence[float]:
    """Score all alike: simulated requests are for no adapter."""
    del size, prefix
    return [0.0] * len(engines)


def _known(engine: EngineSimulation, size: RequestClass, prefix: int | None) -> int:
    return size.prefix_tokens if prefix is not None and prefix in engine.sent_prefixes else 0


def _affinity(parameters: Mapping[str, JsonValue]) -> Filter:
    """Return the filter that leaves servers with four fifths of the prompt cached.

    All stay where the tokens under way at the least busy of these take 18 s longer than at the least busy of the others
    (llm-d-router v0.10.0, filter/prefixcacheaffinity).
    """
    tokens_per_s = float(str(parameters.get(PEAK_PREFILL_THROUGHPUT, _PEAK_PREFILL_TOKENS_PER_S)))

    def narrowed(
        engines: Sequence[EngineSimulation], size: RequestClass, prefix: int | None
    ) -> Sequence[EngineSimulation]:
        near = [engine for engine in engines if _known(engine, size, prefix) >= _AFFINITY_SHARE * size.input_tokens]
        if not near or len(near) == len(engines):
            return engines
        others = [engine.assigned_tokens for engine in engines if engine not in near]
        longer_s = (min(engine.assigned_tokens for engine in near) - min(others)) / tokens_per_s
        return engines if longer_s > _LONGEST_PENALTY_S else near

    return narrowed


_FILTERS: Mapping[str, Callable[[Mapping[str, JsonValue]], Filter]] = {PREFIX_AFFINITY: _affinity}
_SCORERS: Mapping[str, Scorer] = {
    "queue-scorer": _queue,
    "running-requests-size-scorer": _running,
    "kv-cache-utilization-scorer": _cache_use,
    "active-request-scorer": _active,
    "token-load-scorer": _token_load,
    "prefix-cache-scorer": _prefix,
    "lora-affinity-scorer": _adapters,
}


@dataclass(frozen=True)
class SimulatedUnit:
    """Servers behind one router; `first` are those that receive a request first: prefill servers, or all without
    disaggregation.
    """

    first: list[EngineSimulation]
    decode: list[EngineSimulation]


class System:
    """Routers and servers of a simulated deployment, and the network between them. `answered` has the requests in the
    order of their last tokens; `on_answer` is called with each of them.

    Decode and prefill server of a request are picked together when it arrives. The fixed overhead of prefill passes
    before it queues. The KV cache is pulled after the whole prefill, through one port for each GPU of the smaller of
    both servers; the ports of a prefill server send one KV cache after the other. There are no handshakes: servers are
    connected from the start. Decode always pulls the whole cache, also where its own prefix cache would spare a part.
    """

    def __init__(
        self, calendar: Calendar, deployment: SimulatedDeployment, latency: LatencyModel, random: Random
    ) -> None:
        self.calendar = calendar
        self.gaps = Gaps()
        self.answered: list[Request] = []
        self.on_answer: Callable[[], None] = lambda: None
        self._deployment = deployment
        self._latency = latency
        self._random = random
        self._delay_s = deployment.router_s + latency.factors.prefill_overhead_s
        self._picks = {
            role: picker(
                scorers(deployment.policy, role, deployment.picker),
                random,
                filters(deployment.policy, role, deployment.picker),
            )
            for role in deployment.limits
        }
        self._rails = min(limits.parallelism.tensor_parallel_size for limits in deployment.limits.values())
        self._transfer_s: dict[int, float] = {}
        self._units = [self._unit() for _ in range(deployment.copies)]

    def engines(self, role: Role) -> list[EngineSimulation]:
        """Return the simulated servers of a role (prefill, decode), behind all routers of the deployment."""
        return [engine for unit in self._units for engine in (unit.decode if role == "decode" else unit.first)]

    def arrive(self, size: RequestClass) -> None:
        """Receive a request of a class at the endpoint at the current simulated time."""
        units = self._units
        unit = units[0] if len(units) == 1 else units[int(self._random.random() * len(units))]
        prefix = int(self._random.random() * size.prefixes) if size.prefixes else None
        decode = self._picks["decode"](unit.decode, size, prefix) if unit.decode else None
        first = self._picks["prefill" if unit.decode else "aggregated"](unit.first, size, prefix)
        sent_tokens = size.input_tokens - (size.prefix_tokens if prefix in first.sent_prefixes else 0)
        for engine in (first,) if decode is None else (first, decode):
            engine.assigned += 1
            if prefix is not None:
                engine.sent_prefixes.add(prefix)
        first.assigned_tokens += sent_tokens
        now_s = self.calendar.now_s
        request = Request(now_s, size, first, decode or first, prefix, sent_tokens)
        if size.host_tokens:
            self.calendar.at(now_s + self._delay_s, self._load, (request, size.host_tokens))
        else:
            self.calendar.at(now_s + self._delay_s, first.submit, request)

    def _load(self, waiting: tuple[Request, int]) -> None:
        """Load what the memory of the prefill server's node has of a prompt, behind what is loaded already."""
        request, tokens = waiting
        engine, now_s = request.prefill, self.calendar.now_s
        loaded_s = max(now_s, engine.link_free_s) + engine.latency.host_load_s(tokens)
        engine.link_free_s = loaded_s
        self.calendar.at(loaded_s, engine.submit, request)

    def _unit(self) -> SimulatedUnit:
        if "aggregated" in self._deployment.limits:
            return SimulatedUnit(self._servers("aggregated", self._answered), [])
        return SimulatedUnit(self._servers("prefill", self._prefilled), self._servers("decode", self._answered))

    def _servers(self, role: Role, ended: Callable[[Request], None]) -> list[EngineSimulation]:
        limits = self._deployment.limits[role]
        latency, servers = self._latency.server(limits.parallelism), self._deployment.topology.servers()[role]
        return [
            EngineSimulation(
                self.calendar,
                latency,
                limits,
                self.gaps,
                ended=ended,
                pull=self._pull,
                prefills_only=role == "prefill",
            )
            for _ in range(servers.replicas * servers.data_parallel_size)
        ]

    def _prefilled(self, request: Request) -> None:
        request.prefill.assigned -= 1
        request.remote = True
        request.decode.submit(request)

    def _pull(self, request: Request, start_s: float) -> None:
        prefill = request.prefill
        tokens = request.input_tokens
        if tokens not in self._transfer_s:
            transfer_s = self._latency.key_value_transfer_s(tokens, self._rails, prefill.block_size)
            self._transfer_s[tokens] = transfer_s
        prefill.port_free_s = max(start_s, prefill.port_free_s) + self._transfer_s[tokens]
        self.calendar.at(prefill.port_free_s, self._pulled, request)

    def _pulled(self, request: Request) -> None:
        request.prefill.assigned_tokens -= request.sent_tokens
        request.prefill.release(request)
        request.decode.received(request)

    def _answered(self, request: Request) -> None:
        request.decode.assigned -= 1
        self.answered.append(request)
        self.on_answer()
