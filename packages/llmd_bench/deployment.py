"""A deployment under benchmark: servers by role, short forms of topologies, router, addresses and counters."""

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
_SERVER_KIND = re.compile(f"{_PARALLELISM}(?:-{_COUNT}n)?")

SHORT_FORMS = (
    "{x}p-tp{p}-{y}d-tp{d} such as 8p-tp1-4d-tp2, or agg-tp{t}-{n}r such as agg-tp1-16r; servers of mixtures of experts"
    " may have data and expert parallelism, such as tp1dp8ep"
)
SHORT_FORM_PATTERN = f"^({_DISAGGREGATED.pattern}|{_AGGREGATED.pattern})$"
"""Regular expression of the short forms of topologies, such as `8p-tp1-4d-tp2`; no other module writes or parses short
forms.
"""


@dataclass(frozen=True)
class Parallelism:
    """Parallelism of a model over the GPUs of a server, in vLLM's terms.

    Attributes:
        tensor_parallel_size: number of GPUs of a data parallel rank, over which each layer is split.
        data_parallel_size: number of data parallel ranks of a server. Each rank has its own GPUs, attention weights, KV
            cache and requests; the ranks share the experts.
        expert_parallel: whether each GPU holds whole experts instead of a part of each expert.
        nodes: number of nodes that a server spans, with equally many ranks on each; a rank never spans nodes.
    """

    tensor_parallel_size: int
    data_parallel_size: int = 1
    expert_parallel: bool = False
    nodes: int = 1

    @property
    def gpus(self) -> int:
        """Number of GPUs of a server with this parallelism."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs of a server on each of its nodes, which is the number of GPUs of each pod."""
        return self.gpus // self.nodes

    def over_nodes(self, gpus: int) -> "Parallelism | None":
        """Return this parallelism with `nodes` set for nodes with `gpus` GPUs each: one node if the server fits, else
        as many as the server fills; None if a rank would span nodes or a node would keep unused GPUs.
        """
        if self.gpus <= gpus:
            return replace(self, nodes=1)
        whole = self.gpus % gpus == 0 and gpus % self.tensor_parallel_size == 0
        return replace(self, nodes=self.gpus // gpus) if whole else None

    @property
    def data_parallel_size_local(self) -> int:
        """Number of data parallel ranks of a server on each of its nodes."""
        return self.data_parallel_size // self.nodes

    @property
    def arguments(self) -> list[str]:
        """Command-line arguments of vLLM for this parallelism, without the arguments that connect the pods of several
        nodes.
        """
        ranks = [f"--data-parallel-size={self.data_parallel_size}"] if self.data_parallel_size > 1 else []
        experts = ["--enable-expert-parallel"] if self.expert_parallel else []
        return [f"--tensor-parallel-size={self.tensor_parallel_size}", *ranks, *experts]

    @property
    def kind(self) -> str:
        """Short form of this parallelism, with the number of nodes if a server spans several, such as
        `tp1dp16ep-2n`.
        """
        return f"{self}-{self.nodes}n" if self.nodes > 1 else str(self)

    def __str__(self) -> str:
        """Return the short form, such as `tp8` or `tp1dp8ep`."""
        ranks = f"dp{self.data_parallel_size}" if self.data_parallel_size > 1 else ""
        return f"tp{self.tensor_parallel_size}{ranks}{'ep' if self.expert_parallel else ''}"


@dataclass(frozen=True)
class ReportedServers:
    """Identical model servers of one role in a report; `image`, `args` and `env` are written to it unchanged."""

    role: Role
    replicas: int
    parallelism: Parallelism
    image: str = "unknown"
    args: Mapping[str, object] = field(default_factory=dict[str, object])
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def gpus(self) -> int:
        """Number of GPUs of all these servers (replicas) together."""
        return self.replicas * self.parallelism.gpus


@dataclass(frozen=True)
class RouterPart:
    """Program between the client and the model servers, for example endpoint picker, Envoy or routing sidecar."""

    label: str
    tool: str
    version: str
    config: object = None


@dataclass(frozen=True)
class ReportedTopology:
    """Servers and routers of all units of one model (a unit is the servers behind one router).

    `gpus_reserved` is the number of GPUs that the units occupy, if larger than the number that the servers use; else
    None.
    """

    name: str
    servers: tuple[ReportedServers, ...]
    router: tuple[RouterPart, ...] = ()
    accelerator: str = "AMD-Instinct-MI300X"
    gpus_reserved: int | None = None

    @property
    def gpus(self) -> int:
        """Number of GPUs that all servers of the model use together."""
        return sum(servers.gpus for servers in self.servers)

    def of(self, role: Role) -> ReportedServers | None:
        """Return the servers of one role; None if the topology has none."""
        return next((servers for servers in self.servers if servers.role == role), None)

    @property
    def disaggregated(self) -> bool:
        """True if the model has prefill servers and decode servers instead of aggregated ones."""
        return self.of("prefill") is not None and self.of("decode") is not None


def disaggregated_short_form(
    prefill: int, prefill_parallelism: Parallelism, decode: int, decode_parallelism: Parallelism
) -> str:
    """Return the short form, such as `8p-tp1-4d-tp2`, of a topology of `prefill` prefill servers and `decode` decode
    servers.
    """
    return f"{prefill}p-{prefill_parallelism}-{decode}d-{decode_parallelism}"


def aggregated_short_form(parallelism: Parallelism, replicas: int) -> str:
    """Return the short form, such as `agg-tp1-16r`, of a topology of `replicas` aggregated servers."""
    return f"agg-{parallelism}-{replicas}r"


def parse_server_kind(text: str) -> Parallelism:
    """Parse the notation of `Parallelism.kind`, such as `tp1dp16ep-2n`, into the parallelism of a server.

    Raises:
        ValueError: the text has another form.
    """
    match = _SERVER_KIND.fullmatch(text)
    if match is None:
        msg = f"{text!r} is no kind of server, such as tp8, tp1dp8ep or tp1dp16ep-2n"
        raise ValueError(msg)
    tensor, data, expert, nodes = match.groups()
    return Parallelism(int(tensor), int(data or 1), expert is not None, int(nodes or 1))


def parse_short_form(text: str) -> dict[str, dict[str, int | bool]]:
    """Return the long form, as in stack files, of a topology in short form such as `8p-tp1-4d-tp2`: replicas and
    parallelism by role.

    Raises:
        ValueError: the text is no short form.
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
    """URL of a program's Prometheus metrics.

    `headers` may contain a bearer token, which the endpoint picker requires by default.
    """

    role: EndpointRole
    pod: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True


@dataclass(frozen=True)
class Counter:
    """Definition of a Prometheus counter, or of a gauge that is a share.

    Attributes:
        names: names of the metric in different versions; the first that a program exposes is used.
        labels: accepted values by label name; series with other values are ignored.
        share: whether the metric is a share from 0 to 1 for each data parallel rank, such as its KV cache usage, so
            that the largest series counts; otherwise the sum of all series counts.
    """

    names: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    share: bool = False


@dataclass(frozen=True)
class MetricSample:
    """One sample of a scrape of Prometheus metrics."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Reading:
    """Metrics of one program at one moment, by name; `error` is the reason why they couldn't be read, else None."""

    endpoint: MetricsEndpoint
    series: Mapping[str, tuple[MetricSample, ...]] = field(default_factory=dict[str, tuple[MetricSample, ...]])
    error: str | None = None

    def total(self, counter: Counter) -> float | None:
        """Return the counter's value; None if the program doesn't expose the counter."""
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
    """Pod of a model server with its number of container restarts. `scaled` means that autoscaling may remove the pod
    at any time.
    """

    role: EndpointRole
    name: str
    restarts: int = 0
    scaled: bool = False


ServerPods = tuple[ServerPod, ...] | None
"""Pods of all model servers at one moment; None if they weren't listed."""


@dataclass(frozen=True)
class Snapshot:
    """Readings of all endpoints at one moment, in the endpoints' order, with the model servers' pods if they were
    listed.
    """

    readings: tuple[Reading, ...]
    servers: ServerPods = None


@dataclass(frozen=True)
class Stability:
    """Model servers that restarted or disappeared during a measurement, described in one text each; None if pods could
    not be listed.
    """

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
    """Return the model servers that restarted or disappeared between two moments."""
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
    """Increase of a counter between two snapshots, summed over all programs of a role.

    Attributes:
        value: the increase; None if no program exposes the counter or a program couldn't be read. For a program that
            restarted between the snapshots only the count since the restart is included, which makes the value a lower
            bound.
        before: sum at the first snapshot.
        after: sum at the second snapshot.
        restarted: pods whose program restarted between the snapshots.
        unread: pods whose metrics couldn't be read in one of the snapshots.
        read: number of programs that were read in both snapshots.
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
    """Lookup of the addresses of Services and pods. All methods raise `KitError` if the cluster doesn't answer."""

    def service(self, namespace: str, name: str) -> HttpEndpoint:
        """Return the base URL of port 80 of a Service."""
        ...

    def pods(self, namespace: str, labels: Mapping[str, str]) -> Sequence[PodAddress]:
        """Return the pods with these labels that have an IP address, sorted by name."""
        ...

    def pod(self, namespace: str, pod: PodAddress, port: int) -> HttpEndpoint:
        """Return the base URL of a port at a pod's IP address."""
        ...
