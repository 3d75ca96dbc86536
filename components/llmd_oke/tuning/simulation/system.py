"""All servers of a deployment, and the way of a request through them."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from llmd_oke.config.topology import Role
from llmd_oke.tuning.servers.latency import LatencyModel
from llmd_oke.tuning.simulation.arrivals import RequestClass
from llmd_oke.tuning.simulation.calendar import Calendar
from llmd_oke.tuning.simulation.deployment import Deployment, scorers
from llmd_oke.tuning.simulation.engine import Engine
from llmd_oke.tuning.simulation.gaps import Gaps
from llmd_oke.tuning.simulation.request import Request
from llmd_oke.tuning.simulation.routing import picker


@dataclass(frozen=True)
class Unit:
    """The servers behind one router; `first` are those that see a request first."""

    first: list[Engine]
    decode: list[Engine]


class System:
    """Routers, servers and the network between them.

    `answered` has the requests in the order of their last tokens; `on_answer` is called for each of them.

    Decode and prefill server of a request are picked together when it arrives. Prefill's fixed overhead passes before
    it queues. The KV cache is pulled after the whole prefill, through one port for each GPU of the smaller of both
    servers; the ports of a prefill server send one KV cache after the other. Servers have met before: no handshakes.
    Decode pulls all of a cache, whatever prefix it has: less would be pulled where it had one.
    """

    def __init__(self, calendar: Calendar, deployment: Deployment, latency: LatencyModel, random: Random) -> None:
        self.calendar = calendar
        self.gaps = Gaps()
        self.answered: list[Request] = []
        self.on_answer: Callable[[], None] = lambda: None
        self._deployment = deployment
        self._latency = latency
        self._random = random
        self._delay_s = deployment.router_s + latency.factors.prefill_overhead_s
        self._picks = {
            role: picker(scorers(deployment.policy, role, deployment.picker), random) for role in deployment.limits
        }
        self._rails = min(limits.tensor_parallel_size for limits in deployment.limits.values())
        self._transfer_s: dict[int, float] = {}
        self._units = [self._unit() for _ in range(deployment.copies)]

    def engines(self, role: Role) -> list[Engine]:
        """The servers of a role in all units."""
        return [engine for unit in self._units for engine in (unit.decode if role == "decode" else unit.first)]

    def arrive(self, size: RequestClass) -> None:
        """A request comes to the endpoint now."""
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
        self.calendar.at(now_s + self._delay_s, first.submit, request)

    def _unit(self) -> Unit:
        if "aggregated" in self._deployment.limits:
            return Unit(self._servers("aggregated", self._answered), [])
        return Unit(self._servers("prefill", self._prefilled), self._servers("decode", self._answered))

    def _servers(self, role: Role, ended: Callable[[Request], None]) -> list[Engine]:
        limits = self._deployment.limits[role]
        latency = self._latency.server(limits.tensor_parallel_size)
        return [
            Engine(
                self.calendar,
                latency,
                limits,
                self.gaps,
                ended=ended,
                pull=self._pull,
                prefills_only=role == "prefill",
            )
            for _ in range(self._deployment.topology.servers()[role].replicas)
        ]

    def _prefilled(self, request: Request) -> None:
        request.prefill.assigned -= 1
        request.remote = True
        request.decode.submit(request)

    def _pull(self, request: Request, start_s: float) -> None:
        prefill = request.prefill
        transfer_s = self._transfer_time_s(request.input_tokens, prefill.block_size)
        prefill.port_free_s = max(start_s, prefill.port_free_s) + transfer_s
        self.calendar.at(prefill.port_free_s, self._pulled, request)

    def _pulled(self, request: Request) -> None:
        request.prefill.assigned_tokens -= request.sent_tokens
        request.prefill.release(request)
        request.decode.received(request)

    def _transfer_time_s(self, tokens: int, block_size: int) -> float:
        if tokens not in self._transfer_s:
            self._transfer_s[tokens] = self._latency.key_value_transfer_s(tokens, self._rails, block_size)
        return self._transfer_s[tokens]

    def _answered(self, request: Request) -> None:
        request.decode.assigned -= 1
        self.answered.append(request)
        self.on_answer()
