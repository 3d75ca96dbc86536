"""Program of an acceptance pod, which occupies all GPUs and RDMA ports of a node, checks them, and measures with the
pods of other nodes.

Each pod writes its report to a ConfigMap; the leading pod (`acceptance_run`) writes the schedule of pairs to another.
In a round, a pod reads from each of its partner's GPUs into its own; then the GPUs of both do an all-reduce.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llmd_base.cluster import InCluster, from_environment
from llmd_base.config_maps import owned_metadata
from llmd_base.errors import KitError

from llmd_pods import all_reduce
from llmd_pods.acceptance import (
    CheckName,
    CheckResult,
    LinkRate,
    NodeGpu,
    NodeReport,
    NodeRequirements,
    PairMeasurement,
    from_fields,
    judge_disks,
    judge_gpus,
    judge_locality,
    judge_matrix_products,
    judge_memory,
    judge_ports,
    read_gpus,
    read_ports,
    read_socket,
    report_from_json,
)
from llmd_pods.kv_path import (
    PATTERN,
    BufferTransfer,
    Endpoint,
    MemoryRegion,
    Reads,
    counts_received_bytes,
    increase,
    measure,
    nixl,
    pytorch,
    read_counters,
    received_bytes,
)
from llmd_pods.node_speed import GpuSpeed, SpeedWork, disk_read_gb_per_s, disk_sizes, gpu_speeds

VARIABLE = "LLMD_OKE_ACCEPTANCE"
KEY = "json"
PAUSE_S = 0.5
SYSFS = Path("/sys")
TOOL_LIMIT_S = 60.0
AMD_SMI = ("amd-smi", "/opt/rocm/bin/amd-smi")
RANK_PROGRAM = (
    *(sys.executable, "-B", "-c"),
    "import sys; sys.path.insert(0, sys.argv[1]); from llmd_pods.all_reduce import main; sys.exit(main())",
)
"""Command of a rank of the all-reduce, to which the path of the program's archive is appended. It avoids the parts of
the archive that need more than PyTorch.
"""


@dataclass(frozen=True)
class NodeRequest:
    """Configuration of a node's pod.

    Attributes:
        namespace: namespace of the acceptance.
        run: prefix of the ConfigMaps' names.
        job: name of the Job that owns the ConfigMaps.
        uid: UID of that Job.
        index: number of the pod, from 0.
        nodes: number of participating nodes.
        checks: checks to run.
        limits: requirements of the node.
        link_bytes: bytes of one read between GPUs.
        reduce_bytes: bytes of one all-reduce.
        repeats: number of timed repetitions of each measurement.
        warm_ups: number of repetitions before the timed ones.
        round_limit_s: time limit of one round in seconds.
        limit_s: time limit of the whole program in seconds.
        copy_bytes: bytes of one copy within a GPU's memory.
        matrix_size: rows and columns of the multiplied matrices.
        disk_bytes: size of the file that is read from the disks.
        disk_folder: directory on the node's local disks; None if they have no file system.
    """

    namespace: str
    run: str
    job: str
    uid: str
    index: int
    nodes: int
    checks: tuple[CheckName, ...]
    limits: NodeRequirements
    link_bytes: int
    reduce_bytes: int
    repeats: int
    warm_ups: int
    round_limit_s: float
    limit_s: float
    copy_bytes: int = 0
    matrix_size: int = 0
    disk_bytes: int = 0
    disk_folder: str | None = None

    def report_name(self, index: int) -> str:
        """Return the name of the ConfigMap with the report of pod number `index`."""
        return f"{self.run}-{index}"

    def to_json(self) -> str:
        """Return the configuration as JSON, the value of the pod's environment variable."""
        return json.dumps(asdict(self))


def request_from_json(text: str) -> NodeRequest:
    """Return the configuration from the JSON text that `NodeRequest.to_json` wrote."""
    value: dict[str, Any] = json.loads(text)
    return from_fields(NodeRequest, {**value, "limits": NodeRequirements(**value["limits"])})


class Board:
    """Exchange of reports and of the schedule of pairs between the pods of an acceptance, by ConfigMaps."""

    def __init__(
        self,
        request: NodeRequest,
        cluster: InCluster,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._cluster = cluster
        self._pause = pause
        self._clock = clock
        self._deadline_s = clock() + request.limit_s

    def post(self, report: NodeReport) -> None:
        """Write this pod's report to its ConfigMap, where the pods of other nodes and the leading pod read it.

        Raises:
            KitError: the API server refuses.
        """
        request = self._request
        name = request.report_name(request.index)
        metadata = owned_metadata(name, request.namespace, request.job, request.uid)
        data = {KEY: report.to_json()}
        self._cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    def schedule(self) -> list[list[tuple[int, int]]]:
        """Wait for the schedule of the leading pod, and return the pairs of pod numbers that measure together in each
        round.

        Raises:
            KitError: the schedule doesn't appear in time.
        """
        name = f"{self._request.run}-schedule"
        text = self._await(name, lambda _: True, self._request.limit_s, "who meets whom")
        return [[(pair[0], pair[1]) for pair in pairs] for pairs in json.loads(text)]

    def partner(self, index: int, rounds: int) -> NodeReport:
        """Wait until another pod has reported at least `rounds` rounds, and return its report.

        Raises:
            KitError: the pod doesn't report in time.
        """

        def is_there(text: str) -> bool:
            return len(report_from_json(text).rounds) >= rounds

        name = self._request.report_name(index)
        return report_from_json(self._await(name, is_there, self._request.round_limit_s, "it"))

    def _await(self, name: str, is_there: Callable[[str], bool], limit_s: float, what: str) -> str:
        until_s = min(self._deadline_s, self._clock() + limit_s)
        while True:
            data = self._cluster.config_map(self._request.namespace, name)
            if data is not None and is_there(data[KEY]):
                return data[KEY]
            if self._clock() > until_s:
                raise KitError(f"waited {limit_s:.0f} s for {what}")
            self._pause(PAUSE_S)


def main() -> int:
    """Run the acceptance that the environment variable describes; return the exit code."""
    try:
        request = request_from_json(os.environ[VARIABLE])
        run(request, os.environ, Board(request, from_environment(os.environ)))
    except KitError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def run(request: NodeRequest, environment: Mapping[str, str], board: Board, sysfs: Path = SYSFS) -> None:
    """Run all checks and rounds of this pod, and report after each.

    Raises:
        KitError: the API server refuses, or the schedule doesn't appear.
    """
    report = NodeReport(environment["NODE_NAME"], environment["POD_IP"], checks=tuple(own_checks(request, sysfs)))
    measures_links = "links" in request.checks and request.limits.virtual_functions > 0 and request.nodes > 1
    links = Links(request, sysfs / "class/infiniband") if measures_links else None
    try:
        if links is not None and report.checks and all(check.outcome != "failed" for check in report.checks):
            report = links.prepare(report)
        report = replace(report, ready=True)
        for check in report.checks:
            print(f"{check.name}: {check.outcome}: {check.text}", flush=True)
        board.post(report)
        for number, pairs in enumerate(board.schedule()):
            pair = next((pair for pair in pairs if request.index in pair), None)
            measured = (
                PairMeasurement(report.node) if pair is None else meet(request, board, report, links, number, pair)
            )
            report = replace(report, rounds=(*report.rounds, measured))
            board.post(report)
        board.post(replace(report, over=True))
    finally:
        if links is not None:
            links.close()


def own_checks(request: NodeRequest, sysfs: Path) -> Iterator[CheckResult]:
    """Yield the results of the requested checks of the node alone."""
    limits, names = request.limits, request.checks
    gpus: tuple[NodeGpu, ...] = ()
    if "gpus" in names or "locality" in names:
        try:
            gpus = tuple(
                replace(gpu, socket=read_socket(sysfs / "bus/pci/devices" / gpu.address)) for gpu in amd_smi_gpus()
            )
        except KitError as error:
            yield CheckResult("gpus", "no tool" if error.remedy else "failed", error.message)
            names = tuple(name for name in names if name not in {"gpus", "locality"})
    if "gpus" in names:
        yield judge_gpus(gpus, limits)
    yield from speed_checks(request, sysfs)
    if not limits.virtual_functions:
        return
    ports = read_ports(sysfs, limits.gid_index)
    if "rdma" in names:
        yield judge_ports(ports, limits)
    if "locality" in names:
        yield judge_locality(gpus, ports)


def speed_checks(request: NodeRequest, sysfs: Path) -> Iterator[CheckResult]:
    """Yield the results of the checks that measure rates of the node alone: GPU memory, matrix products, disks."""
    limits, names = request.limits, request.checks
    work = SpeedWork(request.copy_bytes, request.matrix_size, request.repeats, request.warm_ups, request.disk_bytes)
    if "memory" in names or "matrix-products" in names:
        speeds: tuple[GpuSpeed, ...] = ()
        problem: CheckResult | None = None
        try:
            speeds = tuple(gpu_speeds(pytorch(), limits.gpus, work))
        except KitError as error:
            problem = CheckResult("memory", "no tool" if error.remedy else "failed", error.message)
        if "memory" in names:
            yield problem or judge_memory(speeds, limits)
        if "matrix-products" in names:
            yield replace(problem, name="matrix-products") if problem else judge_matrix_products(speeds, limits)
    if "disks" in names:
        try:
            folder = request.disk_folder
            rate = None if folder is None else disk_read_gb_per_s(Path(folder), request.disk_bytes)
            yield judge_disks(disk_sizes(sysfs), rate, limits)
        except KitError as error:
            yield CheckResult("disks", "failed", error.message)


def amd_smi_gpus(tools: Sequence[str] = AMD_SMI) -> tuple[NodeGpu, ...]:
    """Return the GPUs that amd-smi lists.

    Raises:
        KitError: the image has no amd-smi (then with a remedy), or amd-smi fails.
    """
    for tool in tools:
        try:
            return read_gpus(_said([tool, "list", "--json"]), _said([tool, "metric", "--ecc", "--json"]))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise KitError(f"amd-smi: {error}") from error
    raise KitError("the image has no amd-smi", "Use vLLM's ROCm image.")


def _said(words: Sequence[str]) -> str:
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise KitError(f"{' '.join(words)} did not end within {TOOL_LIMIT_S:.0f} s") from None
    if ended.returncode:
        raise KitError(f"{' '.join(words)} ended with {ended.returncode}: {ended.stderr.strip()[-300:]}")
    return ended.stdout


class Links:
    """Readable buffers on this pod's GPUs, and reads from the buffers of other pods' GPUs over RDMA."""

    def __init__(self, request: NodeRequest, counters: Path) -> None:
        self._request = request
        self._counters = counters
        self._sources: list[Endpoint] = []
        self._reads = Reads(
            BufferTransfer(request.link_bytes, 1), request.repeats, request.warm_ups, request.round_limit_s
        )
        self._api: Any = None
        self._torch: Any = None

    def prepare(self, report: NodeReport) -> NodeReport:
        """Register a readable buffer on each GPU; return the report with the buffers' descriptions, or with a failed
        check.
        """
        try:
            (_, self._api), self._torch = nixl(), pytorch()
        except KitError as error:
            return replace(report, checks=(*report.checks, CheckResult("links", "no tool", error.message)))
        try:
            self._sources = [self._endpoint(gpu, "source", PATTERN) for gpu in range(self._request.limits.gpus)]
            regions = tuple(source.region.model_dump_json() for source in self._sources)
        except KitError as error:
            return replace(report, checks=(*report.checks, CheckResult("links", "failed", error.message)))
        return replace(report, regions=regions)

    def read(self, other: NodeReport, number: int) -> Iterator[LinkRate]:
        """Read the test buffer of each GPU of another node's pod over RDMA, in this round of the acceptance test, and
        yield the rate of each GPU's link in GB/s.

        Raises:
            KitError: a read fails or takes too long.
        """
        for gpu, text in enumerate(other.regions):
            target = self._endpoint(gpu, f"target-{number}", 0)
            try:
                before = read_counters(self._counters)
                seconds = measure(target, MemoryRegion.model_validate_json(text), self._reads, clock=time.perf_counter)
                after = read_counters(self._counters)
            finally:
                target.close()
            grown = increase(before, after)
            moved = (self._reads.warm_ups + self._reads.repeats) * self._request.link_bytes
            counted = counts_received_bytes(before, after)
            busiest = max(grown, key=lambda name: received_bytes({name: grown[name]}), default="")
            yield LinkRate(
                gpu=gpu,
                gb_per_s=self._request.link_bytes * len(seconds) / sum(seconds) / 1e9,
                carried_share=received_bytes(grown) / moved if counted else None,
                ports=(busiest.partition("/")[0],) if received_bytes(grown) else (),
            )

    def close(self) -> None:
        """Deregister the buffers on this pod's GPUs, so that other pods can't read them any more."""
        for source in self._sources:
            source.close()

    def _endpoint(self, gpu: int, role: str, fill: int) -> Endpoint:
        request = self._request
        name = f"{request.run}-{request.index}-{role}-{gpu}"
        return Endpoint(name, request.link_bytes, fill, self._api, self._torch, gpu)


def meet(
    request: NodeRequest, board: Board, report: NodeReport, links: Links | None, number: int, pair: tuple[int, int]
) -> PairMeasurement:
    """Measure reads and an all-reduce with the partner of round `number`; errors become the result's `problem`."""
    first, second = pair
    other = second if request.index == first else first
    measured = PairMeasurement(report.node)
    try:
        partner = report if other == request.index else board.partner(other, number)
        measured = replace(measured, partner=partner.node)
        print(f"round {number + 1}: with {partner.node}", flush=True)
        if links is not None and other != request.index:
            measured = replace(measured, links=tuple(links.read(partner, number)))
        if "all-reduce" in request.checks:
            master = report.address if request.index == first else partner.address
            rate = all_reduce.run(_all_reduce(request, master, number, pair), [*RANK_PROGRAM, sys.argv[0]])
            measured = replace(measured, all_reduce_gb_per_s=rate)
        elif other != request.index:
            board.post(replace(report, rounds=(*report.rounds, measured)))
            board.partner(other, number + 1)
    except KitError as error:
        print(error, file=sys.stderr, flush=True)
        return replace(measured, problem=error.message)
    return measured


def _all_reduce(request: NodeRequest, address: str, number: int, pair: tuple[int, int]) -> all_reduce.AllReduce:
    gpus, alone = request.limits.gpus, pair[0] == pair[1]
    return all_reduce.AllReduce(
        address=address,
        port=all_reduce.PORT + number,
        ranks=gpus if alone else 2 * gpus,
        first_rank=0 if request.index == pair[0] else gpus,
        gpus=gpus,
        length_bytes=request.reduce_bytes,
        repeats=request.repeats,
        warm_ups=request.warm_ups,
        limit_s=request.round_limit_s,
    )


if __name__ == "__main__":
    sys.exit(main())
