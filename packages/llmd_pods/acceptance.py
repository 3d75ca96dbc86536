"""Acceptance of a GPU node before it serves: checks, limits and verdicts. Standard library only.

Not run on hardware yet; outputs of tools are parsed as documented. amd-smi's JSON: ROCm/amdsmi, docs/how-to of its
command line and CHANGELOG (list, metric --ecc). Ports: Linux, Documentation/ABI/stable/sysfs-class-infiniband, and
sysfs-bus-pci for the NUMA node of a device.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

from llmd_pods.node_speed import GpuSpeed

Record = TypeVar("Record")

CheckName = Literal["gpus", "memory", "matrix-products", "disks", "rdma", "locality", "links", "all-reduce"]

CHECKS: tuple[CheckName, ...] = (
    "gpus",
    "memory",
    "matrix-products",
    "disks",
    "rdma",
    "locality",
    "links",
    "all-reduce",
)
"""Checks in the order of their execution; `links` and `all-reduce` need two nodes."""

Outcome = Literal["passed", "failed", "not run", "no tool"]
"""Outcome of a check. `no tool` means that the image lacks a program for the check, which says nothing about the node.
"""

Verdict = Literal["passed", "failed", "not tested"]


@dataclass(frozen=True)
class NodeRequirements:
    """Equipment and rates that each node must have; limits of 0 are not judged.

    Attributes:
        gpus: number of GPUs.
        virtual_functions: number of SR-IOV virtual functions of RDMA ports; 0 without RDMA, which also omits the check
            of links.
        gid_index: index of the GID that UCX and RCCL use.
        mtu_bytes: MTU of the RDMA network.
        link_gb_per_s: rate of a read from GPU to GPU of another node over one port, in GB (10^9 bytes) per second.
        all_reduce_gb_per_s: bus bandwidth of an all-reduce over all GPUs of two nodes, in GB per second.
        all_reduce_alone_gb_per_s: bus bandwidth of an all-reduce over the GPUs of one node, in GB per second.
        least_carried_share: share of a read's bytes that the RDMA ports must count (0.9 is 90 %).
        memory_gb_per_s: rate of copies within each GPU's memory, in GB per second.
        matrix_tflops: rate of BF16 matrix products of each GPU, in 10^12 operations per second.
        disks: number of NVMe disks.
        disk_bytes: size of each NVMe disk.
        disk_gb_per_s: read rate of the disks' common file system, in GB per second.
    """

    gpus: int
    virtual_functions: int
    gid_index: int
    mtu_bytes: int
    link_gb_per_s: float
    all_reduce_gb_per_s: float
    all_reduce_alone_gb_per_s: float
    least_carried_share: float
    memory_gb_per_s: float = 0.0
    matrix_tflops: float = 0.0
    disks: int = 0
    disk_bytes: int = 0
    disk_gb_per_s: float = 0.0


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check of one node, with the observations in words."""

    name: CheckName
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class NodeGpu:
    """GPU of a node.

    Attributes:
        index: number in amd-smi's list.
        address: PCI address.
        socket: NUMA node; None if the kernel doesn't report it.
        uncorrectable_errors: number of uncorrectable memory errors; None if amd-smi doesn't report it.
    """

    index: int
    address: str
    socket: int | None = None
    uncorrectable_errors: int | None = None


@dataclass(frozen=True)
class Port:
    """RDMA port of a pod, as sysfs shows it; `gid` and `gid_type` are those of the required GID index."""

    device: str
    socket: int | None
    state: str
    physical_state: str
    gid: str
    gid_type: str
    interface: str
    mtu_bytes: int | None


@dataclass(frozen=True)
class LinkRate:
    """Rate of reads into one GPU from the same GPU of another node.

    Attributes:
        gpu: index of the GPU.
        gb_per_s: rate in GB (10^9 bytes) per second.
        carried_share: share of the bytes that this node's RDMA ports counted; None if no port has a counter.
        ports: RDMA device that counted most of the bytes.
    """

    gpu: int
    gb_per_s: float
    carried_share: float | None = None
    ports: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairMeasurement:
    """Measurements of a node with a partner node, or with itself if it is alone; `problem` is the reason for missing
    figures.
    """

    partner: str
    links: tuple[LinkRate, ...] = ()
    all_reduce_gb_per_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class NodeReport:
    """Report of the pod that tests one node. `ready` is true once the checks of the node alone are done, `over` once
    all rounds of measurements with other nodes are done.
    """

    node: str
    address: str = ""
    ready: bool = False
    over: bool = False
    checks: tuple[CheckResult, ...] = ()
    regions: tuple[str, ...] = ()
    rounds: tuple[PairMeasurement, ...] = ()

    @property
    def sound(self) -> bool:
        """True if the checks of the node alone allow measurements with other nodes."""
        return self.ready and all(check.outcome in {"passed", "not run"} for check in self.checks)

    def to_json(self) -> str:
        """Return the report of a node's pod as JSON, which `report_from_json` reads."""
        return json.dumps(asdict(self))


def report_from_json(text: str) -> NodeReport:
    """Return the report from the JSON text that `to_json` wrote.

    Raises:
        ValueError: the text is no report.
    """
    try:
        value = json.loads(text)
        checks = [CheckResult(**check) for check in value["checks"]]
        rounds = [
            from_fields(PairMeasurement, {**item, "links": [from_fields(LinkRate, link) for link in item["links"]]})
            for item in value["rounds"]
        ]
        return from_fields(NodeReport, {**value, "checks": checks, "rounds": rounds})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no report of a node: {error!r}") from error


def from_fields(kind: type[Record], fields: Mapping[str, Any]) -> Record:
    """Return an instance of the dataclass `kind` with the fields of a JSON object; lists become tuples."""
    values = {
        name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value for name, value in fields.items()
    }
    return kind(**values)


@dataclass(frozen=True)
class NodeResult:
    """Stored result of a node's acceptance: verdict, date, image, and the results of the checks."""

    node: str
    uid: str
    verdict: Verdict
    date: str
    image: str
    checks: tuple[CheckResult, ...] = field(default=())
    reason: str = ""

    def to_json(self) -> str:
        """Return the stored result of a node's acceptance as JSON, which `result_from_json` reads."""
        return json.dumps(asdict(self))


def result_from_json(text: str) -> NodeResult:
    """Return the result from the JSON text that `to_json` wrote.

    Raises:
        ValueError: the text is no result.
    """
    try:
        value = json.loads(text)
        return from_fields(NodeResult, {**value, "checks": [CheckResult(**check) for check in value["checks"]]})
    except (TypeError, KeyError) as error:
        raise ValueError(f"no result of a node: {error!r}") from error


def read_gpus(list_json: str, ecc_json: str) -> tuple[NodeGpu, ...]:
    """Parse the GPUs of `amd-smi list --json`, with the memory errors of `amd-smi metric --ecc --json`. Newer versions
    wrap the latter's list in an object with the key `gpu_data`; missing figures are `N/A`.

    Raises:
        ValueError: the outputs have another form.
    """
    try:
        counts = {int(item["gpu"]): item["ecc"]["total_uncorrectable_count"] for item in _items(ecc_json)}
        errors = {gpu: count for gpu, count in counts.items() if isinstance(count, int)}
        return tuple(
            NodeGpu(int(item["gpu"]), str(item["bdf"]).lower(), None, errors.get(int(item["gpu"])))
            for item in _items(list_json)
        )
    except (TypeError, KeyError) as error:
        raise ValueError(f"amd-smi says something else than it documents: {error!r}") from error


def _items(text: str) -> list[dict[str, Any]]:
    value: Any = json.loads(text)
    wrapped = "gpu_data" in value
    items: list[dict[str, Any]] = value["gpu_data"] if wrapped else value
    return list(items)


def read_socket(device: Path) -> int | None:
    """Read the NUMA node of a PCI device from its sysfs directory; None if the kernel reports -1 or nothing."""
    number = _text(device / "numa_node")
    return int(number) if number.isdigit() else None


def read_ports(sysfs: Path, gid_index: int) -> tuple[Port, ...]:
    """Read the first port of each RDMA device in this pod from sysfs, with the port's GID at index `gid_index`."""
    ports: list[Port] = []
    for device in sorted((sysfs / "class/infiniband").glob("*"), key=lambda path: (len(path.name), path.name)):
        port = device / "ports/1"
        interface = _text(port / "gid_attrs/ndevs" / str(gid_index))
        mtu = _text(sysfs / "class/net" / interface / "mtu") if interface else ""
        ports.append(
            Port(
                device=device.name,
                socket=read_socket(device / "device"),
                state=_text(port / "state"),
                physical_state=_text(port / "phys_state"),
                gid=_text(port / "gids" / str(gid_index)),
                gid_type=_text(port / "gid_attrs/types" / str(gid_index)),
                interface=interface,
                mtu_bytes=int(mtu) if mtu.isdigit() else None,
            )
        )
    return tuple(ports)


def _text(file: Path) -> str:
    """Read a file of sysfs; empty if it can't be read: for absent GIDs the kernel answers EINVAL."""
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""


ROCE_V2 = "RoCE v2"
_MAPPED = "0000:0000:0000:0000:0000:ffff:"
"""Prefix of a RoCE v2 GID over IPv4, which is an IPv4-mapped IPv6 address."""


def judge_gpus(gpus: Sequence[NodeGpu], limits: NodeRequirements) -> CheckResult:
    """Check that a node has the required number of GPUs, and that none has uncorrectable memory errors."""
    problems = [] if len(gpus) == limits.gpus else [f"amd-smi sees {len(gpus)} of {limits.gpus} GPUs"]
    problems += [
        f"GPU {gpu.index} ({gpu.address}) has {gpu.uncorrectable_errors} uncorrectable memory errors"
        for gpu in gpus
        if gpu.uncorrectable_errors
    ]
    return _result("gpus", problems, f"{len(gpus)} GPUs, no uncorrectable memory errors")


def judge_ports(ports: Sequence[Port], limits: NodeRequirements) -> CheckResult:
    """Check that a node's pod has every required virtual function of RDMA ports, active, with a GID of RoCE v2 over
    IPv4 at the index that UCX and RCCL use, and with the network's MTU if one is known.
    """
    count, mtu = limits.virtual_functions, limits.mtu_bytes or "not judged: no figure is known for this shape"
    problems = [] if len(ports) == count else [f"{len(ports)} of {count} virtual functions are in the pod"]
    if len(ports) > count:
        problems = [f"{len(ports)} RDMA devices are in a pod of {count}: network namespaces share them (netns_mode=0)"]
    for port in ports:
        if not port.state.endswith("ACTIVE"):
            state = f"{port.state or 'unknown'} ({port.physical_state or 'unknown'})"
            problems.append(f"{port.device}: state {state}")
        elif port.gid_type != ROCE_V2 or not port.gid.startswith(_MAPPED):
            has = f"{port.gid or 'no GID'} ({port.gid_type or 'no type'})"
            problems.append(f"{port.device}: GID {limits.gid_index} is {has}, not {ROCE_V2} over IPv4")
        elif limits.mtu_bytes and port.mtu_bytes != limits.mtu_bytes:
            has = port.mtu_bytes or "unknown"
            problems.append(f"{port.device}: MTU of {port.interface} is {has}, not {limits.mtu_bytes}")
    return _result("rdma", problems, f"{count} ports up, GID {limits.gid_index} {ROCE_V2}, MTU {mtu}")


def judge_locality(gpus: Sequence[NodeGpu], ports: Sequence[Port]) -> CheckResult:
    """Check that each NUMA node has as many RDMA ports as GPUs, so that no GPU's traffic crosses NUMA nodes."""
    if any(item.socket is None for item in (*gpus, *ports)):
        return CheckResult("locality", "not run", "the kernel does not tell on which socket a GPU or port is")
    sockets = sorted({item.socket for item in (*gpus, *ports) if item.socket is not None})
    counts = {
        socket: (sum(gpu.socket == socket for gpu in gpus), sum(port.socket == socket for port in ports))
        for socket in sockets
    }
    words = {socket: f"socket {socket}: {gpus} GPUs, {ports} ports" for socket, (gpus, ports) in counts.items()}
    problems = [words[socket] for socket, (gpus, ports) in counts.items() if gpus != ports]
    return _result("locality", problems, "; ".join(words.values()))


def judge_memory(speeds: Sequence[GpuSpeed], limits: NodeRequirements) -> CheckResult:
    """Check that every GPU reaches the required rate of memory copies."""
    rates = {speed.gpu: speed.memory_gb_per_s for speed in speeds}
    return _judge_rates("memory", rates, limits.memory_gb_per_s, "GB/s")


def judge_matrix_products(speeds: Sequence[GpuSpeed], limits: NodeRequirements) -> CheckResult:
    """Check that every GPU reaches the required rate of matrix products, which a throttled GPU misses."""
    rates = {speed.gpu: speed.matrix_tflops for speed in speeds}
    return _judge_rates("matrix-products", rates, limits.matrix_tflops, "TFLOPS")


def _judge_rates(name: CheckName, rates: Mapping[int, float], least: float, unit: str) -> CheckResult:
    slow = [f"GPU {gpu}: {rate:.0f} of at least {least:.0f} {unit}" for gpu, rate in rates.items() if rate < least]
    return _result(name, slow, f"{len(rates)} GPUs, the slowest {min(rates.values(), default=0):.0f} {unit}")


def judge_disks(sizes: Mapping[str, int], read_gb_per_s: float | None, limits: NodeRequirements) -> CheckResult:
    """Check the number and the sizes of the NVMe disks, and the read rate of their common file system.

    Args:
        sizes: sizes of the disks in bytes, by name.
        read_gb_per_s: read rate of the disks' file system in GB per second; None if they have none.
        limits: requirements of the node.
    """
    whole = {name: size for name, size in sizes.items() if size >= limits.disk_bytes}
    problems = [] if len(whole) >= limits.disks else [f"{len(whole)} of {limits.disks} NVMe disks are whole"]
    if read_gb_per_s is not None and read_gb_per_s < limits.disk_gb_per_s:
        problems.append(f"they are read with {read_gb_per_s:.1f} of at least {limits.disk_gb_per_s:g} GB/s")
    rate = "" if read_gb_per_s is None else f", read with {read_gb_per_s:.1f} GB/s"
    return _result("disks", problems, f"{len(whole)} disks{rate}")


def _result(name: CheckName, problems: Sequence[str], good: str) -> CheckResult:
    return CheckResult(name, "failed" if problems else "passed", "; ".join(problems) or good)


def tournament(players: Sequence[int], most_rounds: int) -> list[list[tuple[int, int]]]:
    """Return the rounds of a round-robin tournament between nodes, given by their numbers: in each round every node is
    paired with one other, except one node if their number is odd. Every pair has met after len(players) - 1 rounds
    (len(players), if odd). A single node is paired with itself.
    """
    if len(players) == 1:
        return [[(players[0], players[0])]]
    circle: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    rounds: list[list[tuple[int, int]]] = []
    for _ in range(min(most_rounds, len(circle) - 1)):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def judge_rounds(
    reports: Iterable[NodeReport], limits: NodeRequirements, names: Sequence[CheckName]
) -> dict[str, list[CheckResult]]:
    """Return the results of the checks `names`, which measure between nodes, by node. A node fails if it was slow with
    every partner; a node that was fast with one partner passes.
    """
    nodes = {report.node: report for report in reports}
    results: dict[str, list[CheckResult]] = {node: [] for node in nodes}
    for node, report in nodes.items():
        if "links" in names and limits.virtual_functions:
            results[node].append(_judge_links(report, nodes, limits))
        if "all-reduce" in names:
            results[node].append(_judge_all_reduce(report, limits))
    return results


def _judge_links(report: NodeReport, nodes: Mapping[str, NodeReport], limits: NodeRequirements) -> CheckResult:
    """Judge the reads into and out of each of the node's GPUs; the best read of each GPU counts."""
    best: dict[int, tuple[LinkRate, str]] = {}
    own = [(link, item.partner) for item in report.rounds for link in item.links]
    others = [(other.node, item) for other in nodes.values() if other is not report for item in other.rounds]
    read = [(link, other) for other, item in others if item.partner == report.node for link in item.links]
    for link, partner in [*own, *read]:
        if link.gpu not in best or _rank(link, limits) > _rank(best[link.gpu][0], limits):
            best[link.gpu] = link, partner
    if not best:
        if all(item.partner == report.node and item.problem is None for item in report.rounds):
            return CheckResult("links", "not run", "there is no other node to read from")
        return CheckResult("links", "failed", _why_missing(report))
    problems: list[str] = []
    for gpu, (link, partner) in sorted(best.items()):
        if not _is_carried(link, limits):
            problems.append(f"GPU {gpu}: RDMA ports carried {link.carried_share or 0:.0%} of what was read (TCP?)")
        elif link.gb_per_s < limits.link_gb_per_s:
            through = f" ({', '.join(link.ports)})" if link.ports else ""
            rate = f"{link.gb_per_s:.1f} of at least {limits.link_gb_per_s:g} GB/s"
            problems.append(f"GPU {gpu}{through}: {rate} at best, with {partner}")
    slowest = min(link.gb_per_s for link, _ in best.values())
    return _result("links", problems, f"{len(best)} links, the slowest {slowest:.1f} GB/s")


def _is_carried(link: LinkRate, limits: NodeRequirements) -> bool:
    return link.carried_share is None or link.carried_share >= limits.least_carried_share


def _rank(link: LinkRate, limits: NodeRequirements) -> tuple[bool, float]:
    return _is_carried(link, limits), link.gb_per_s


def _judge_all_reduce(report: NodeReport, limits: NodeRequirements) -> CheckResult:
    rates = [(item.all_reduce_gb_per_s, item.partner) for item in report.rounds if item.all_reduce_gb_per_s is not None]
    if not rates:
        return CheckResult("all-reduce", "failed", _why_missing(report))
    rate, partner = max(rates)
    alone = partner == report.node
    least = limits.all_reduce_alone_gb_per_s if alone else limits.all_reduce_gb_per_s
    text = f"{rate:.0f} of at least {least:g} GB/s {'in the node alone' if alone else f'with {partner}'}"
    return _result("all-reduce", [text] if rate < least else [], text)


def _why_missing(report: NodeReport) -> str:
    problems = list(dict.fromkeys(f"with {item.partner}: {item.problem}" for item in report.rounds if item.problem))
    return "; ".join(problems) or "its pod did not come to it in time"


def verdict_of(checks: Sequence[CheckResult]) -> Verdict:
    """Return the verdict on a node from the results of all its checks."""
    return "failed" if any(check.outcome == "failed" for check in checks) else "passed"


def missing_tools(reports: Iterable[NodeReport]) -> list[str]:
    """Return descriptions of the tools that the image lacks for the requested checks, without duplicates."""
    return list(
        dict.fromkeys(check.text for report in reports for check in report.checks if check.outcome == "no tool")
    )


NAMESPACE = "llmd-oke-acceptance"
"""Namespace for acceptances only: whoever may create pods in a namespace can use all of its service accounts."""

LABEL = "llmd-oke/acceptance"
"""Label of ConfigMaps with acceptance results; the value is the name of the pool."""

RESULT_KEY = "result.json"
TAINT_KEY, TAINT_VALUE, TAINT_EFFECT = "llmd-oke/acceptance", "failed", "NoSchedule"


def result_name(pool: str, node: str) -> str:
    """Return the name of the ConfigMap with the acceptance result of a node in a pool."""
    return f"acceptance-{pool}-{node}"


class BindingNames(NamedTuple):
    """Names of the RoleBinding and the ClusterRoleBinding that give a Job its rights."""

    of_namespace: str
    of_cluster: str


def binding_names(job: str) -> BindingNames:
    """Return the names of a Job's RoleBinding and ClusterRoleBinding."""
    return BindingNames(job, f"llmd-oke-{job}")
