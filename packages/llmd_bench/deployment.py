"""A deployment that is benchmarked: servers by role and their short forms, the router, addresses and counters."""

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from llmd_base.addresses import HttpEndpoint, PodAddress

Role = Literal["prefill", "decode", "aggregated"]

_COUNT = "([1-9][0-9]{0,3})"
_PARALLELISM = f"tp{_COUNT}(?:dp{_COUNT})?(ep)?"
_DISAGGREGATED = re.compile(f"{_COUNT}p-{_PARALLELISM}-{_COUNT}d-{_PARALLELISM}")
_AGGREGATED = re.compile(f"agg-{_PARALLELISM}-{_COUNT}r")

SHORT_FORMS = (
    "{x}p-tp{p}-{y}d-tp{d} such as 8p-tp1-4d-tp2, or agg-tp{t}-{n}r such as agg-tp1-16r; servers of mixtures of experts"
    " may have data and expert parallelism, such as tp1dp8ep"
)
SHORT_FORM_PATTERN = f"^({_DISAGGREGATED.pattern}|{_AGGREGATED.pattern})$"
"""Short forms of topologies, written and read here alone."""


@dataclass(frozen=True)
class Parallelism:
    """Spread of a model over the GPUs of a server, in vLLM's words.

    Attributes:
        tensor_parallel_size: GPUs that share each layer of attention.
        data_parallel_size: ranks of a server, each with that many GPUs, attention weights, KV cache and requests of its
            own; experts are shared by all ranks.
        expert_parallel: whether GPUs have whole experts, in place of a part of each.
        nodes: nodes that a server spans, each with as many of its ranks; a rank never does.
    """

    tensor_parallel_size: int
    data_parallel_size: int = 1
    expert_parallel: bool = False
    nodes: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of a server."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a server has on each of its nodes, and so of each of its pods."""
        return self.gpus // self.nodes

    def over_nodes(self, gpus: int) -> "Parallelism | None":
        """Return the spread over nodes with that many GPUs each: one, or as many as it fills; None where a rank would
        span nodes, or nodes would have GPUs left.
        """
        if self.gpus <= gpus:
            return replace(self, nodes=1)
        whole = self.gpus % gpus == 0 and gpus % self.tensor_parallel_size == 0
        return replace(self, nodes=self.gpus // gpus) if whole else None

    @property
    def data_parallel_size_local(self) -> int:
        """Ranks that a server has on each of its nodes."""
        return self.data_parallel_size // self.nodes

    @property
    def arguments(self) -> list[str]:
        """Arguments of vLLM for such a server, but for those by which the pods of several nodes find each other."""
        ranks = [f"--data-parallel-size={self.data_parallel_size}"] if self.data_parallel_size > 1 else []
        experts = ["--enable-expert-parallel"] if self.expert_parallel else []
        return [f"--tensor-parallel-size={self.tensor_parallel_size}", *ranks, *experts]

    def __str__(self) -> str:
        """Return the short form, such as `tp8` or `tp1dp8ep`."""
        ranks = f"dp{self.data_parallel_size}" if self.data_parallel_size > 1 else ""
        return f"tp{self.tensor_parallel_size}{ranks}{'ep' if self.expert_parallel else ''}"


@dataclass(frozen=True)
class ReportedServers:
    """Equal model servers of one role. `image` and the native settings go into the report as they are."""

    role: Role
    replicas: int
    parallelism: Parallelism
    image: str = "unknown"
    args: Mapping[str, object] = field(default_factory=dict[str, object])
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.parallelism.gpus


@dataclass(frozen=True)
class RouterPart:
    """A program between the client and the model servers, for example endpoint picker, Envoy or routing sidecar."""

    label: str
    tool: str
    version: str
    config: object = None


@dataclass(frozen=True)
class ReportedTopology:
    """All units of one model.

    `gpus_reserved` counts the GPUs that it keeps from others, where those are more than it uses.
    """

    name: str
    servers: tuple[ReportedServers, ...]
    router: tuple[RouterPart, ...] = ()
    accelerator: str = "AMD-Instinct-MI300X"
    gpus_reserved: int | None = None

    @property
    def gpus(self) -> int:
        """GPUs that its servers use."""
        return sum(servers.gpus for servers in self.servers)

    def of(self, role: Role) -> ReportedServers | None:
        """Return the servers of one role."""
        return next((servers for servers in self.servers if servers.role == role), None)

    @property
    def disaggregated(self) -> bool:
        """True if prefill and decode are separate servers."""
        return self.of("prefill") is not None and self.of("decode") is not None


def disaggregated_short_form(
    prefill: int, prefill_parallelism: Parallelism, decode: int, decode_parallelism: Parallelism
) -> str:
    """Return the short form of so many prefill and decode servers."""
    return f"{prefill}p-{prefill_parallelism}-{decode}d-{decode_parallelism}"


def aggregated_short_form(parallelism: Parallelism, replicas: int) -> str:
    """Return the short form of so many aggregated servers."""
    return f"agg-{parallelism}-{replicas}r"


def parse_short_form(text: str) -> dict[str, dict[str, int | bool]]:
    """Return the long form of a short one.

    Raises:
        ValueError: the text is neither form.
    """
    if match := _DISAGGREGATED.fullmatch(text):
        x, *prefill, y, tensor, data, expert = match.groups()
        return {"prefill": _servers(x, *prefill), "decode": _servers(y, tensor, data, expert)}
    if match := _AGGREGATED.fullmatch(text):
        *parallelism, n = match.groups()
        return {"aggregated": _servers(n, *parallelism)}
    msg = "the text is no topology"
    raise ValueError(msg)


def _servers(replicas: str, tensor: str, data: str | None, expert: str | None) -> dict[str, int | bool]:
    ranks = {"dataParallelSize": int(data)} if data else {}
    experts = {"expertParallel": True} if expert else {}
    return {"replicas": int(replicas), "tensorParallelSize": int(tensor), **ranks, **experts}


EndpointRole = Literal["router"] | Role

STARTED = "process_start_time_seconds"


@dataclass(frozen=True)
class MetricsEndpoint:
    """Address at which one program shows its counters.

    `headers` may carry a bearer token, which the endpoint picker asks for by default.
    """

    role: EndpointRole
    pod: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True


@dataclass(frozen=True)
class Counter:
    """A counter under the names it has had in different versions; the first that a program shows counts.

    Series are added up; of a `share`, which each data parallel rank of a server has for itself, the largest counts.
    With `labels` only those count whose labels have one of the given values.
    """

    names: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    share: bool = False


@dataclass(frozen=True)
class MetricSample:
    """One sample of a scrape."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Reading:
    """Series that one program showed; `error` says why there are none."""

    endpoint: MetricsEndpoint
    series: Mapping[str, tuple[MetricSample, ...]] = field(default_factory=dict[str, tuple[MetricSample, ...]])
    error: str | None = None

    def total(self, counter: Counter) -> float | None:
        """Return the counter's value, or None if the program doesn't show it."""
        name = next((name for name in counter.names if name in self.series), None)
        if name is None:
            return None
        values = (
            sample.value
            for sample in self.series[name]
            if all(sample.labels.get(label) in accepted for label, accepted in counter.labels.items())
        )
        return max(values, default=0.0) if counter.share else sum(values)


@dataclass(frozen=True)
class ServerPod:
    """The pod of a model server with the restarts of its containers; one that is `scaled` may go at any time."""

    role: EndpointRole
    name: str
    restarts: int = 0
    scaled: bool = False


ServerPods = tuple[ServerPod, ...] | None
"""The model servers' pods of one moment; None where nobody told."""


@dataclass(frozen=True)
class Snapshot:
    """All readings of one moment, in the order of the endpoints, and the model servers' pods where they were listed."""

    readings: tuple[Reading, ...]
    servers: ServerPods = None


@dataclass(frozen=True)
class Stability:
    """The model servers that restarted or went during a measurement, in words; None where pods could not be listed."""

    restarted: tuple[str, ...] | None

    def __str__(self) -> str:
        if self.restarted is None:
            return "the model servers' pods could not be listed before or after the run"
        if not self.restarted:
            return "no model server restarted during the run"
        number = len(self.restarted)
        servers = f"{number} model server{'s' if number > 1 else ''}"
        return f"{servers} restarted during the run, which is no clean measurement: {', '.join(self.restarted)}"


def stability(before: ServerPods, after: ServerPods) -> Stability:
    """Return the model servers that did not run on between two moments."""
    if before is None or after is None:
        return Stability(None)
    left = {pod.name: pod.restarts for pod in after}
    words: list[str] = []
    for pod in before:
        if pod.name not in left:
            words += [] if pod.scaled else [f"{pod.role} {pod.name} is gone"]
        elif left[pod.name] > pod.restarts:
            number = left[pod.name] - pod.restarts
            words.append(f"{pod.role} {pod.name} ({number} time{'s' if number > 1 else ''})")
    return Stability(tuple(words))


@dataclass(frozen=True)
class CounterIncrease:
    """Increase of a counter of a role between two snapshots, over all its programs.

    `value` is None when no program of the role shows the counter, or one of them could not be read, since then the
    sum means nothing. Of a program that restarted in between, only what it counted since then is in `value`: a lower
    bound.
    """

    value: float | None
    before: float | None = None
    after: float | None = None
    restarted: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    read: int = 0


def change(before: Snapshot, after: Snapshot, role: EndpointRole, counter: Counter) -> CounterIncrease:
    """Return the increase of `counter` over all programs of `role`."""
    earlier = {reading.endpoint.url: reading for reading in before.readings}
    pairs = [
        (earlier.get(reading.endpoint.url, Reading(reading.endpoint, error="not read")), reading)
        for reading in after.readings
        if reading.endpoint.role == role
    ]
    unread = tuple(new.endpoint.pod for old, new in pairs if old.error or new.error)
    read = [(old, new) for old, new in pairs if not (old.error or new.error)]
    values, restarted = list[tuple[float, float, float]](), list[str]()
    for old, new in read:
        earlier_value, value = old.total(counter) or 0.0, new.total(counter)
        if value is None:
            continue
        moments = [reading.total(Counter((STARTED,))) or 0.0 for reading in (old, new)]
        began_anew = moments[0] != moments[1] or value < earlier_value
        values.append((value if began_anew else value - earlier_value, earlier_value, value))
        restarted += [new.endpoint.pod] if began_anew else []
    increases, befores, afters = zip(*values, strict=True) if values else ((), (), ())
    return CounterIncrease(
        value=sum(increases) if values and not unread else None,
        before=sum(befores) if values else None,
        after=sum(afters) if values else None,
        restarted=tuple(restarted),
        unread=unread,
        read=len(read),
    )


class Directory(Protocol):
    """Directory of Services and pods. Every method raises `KitError` where the cluster doesn't answer."""

    def service(self, namespace: str, name: str) -> HttpEndpoint:
        """Return the way to port 80 of a Service."""
        ...

    def pods(self, namespace: str, labels: Mapping[str, str]) -> Sequence[PodAddress]:
        """Return the pods with these labels that have an address, sorted by name."""
        ...

    def pod(self, namespace: str, pod: PodAddress, port: int) -> HttpEndpoint:
        """Return the way to a port of a pod."""
        ...
