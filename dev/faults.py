"""Faults of a rehearsed stack, and its recovery.

engine         The engine, or its whole command, is killed at a random time of an update, a refresh or a destroy.
control-plane  etcd or the API server is killed at a random time of the same operations.
serving        Serving programs, and the control plane, are killed under a steady load (`serving_faults.py`).
node           A node loses power under load, and reboots or stays off.
oci            OCI's calls are slow, fail, or time out half way while a cluster is created.
disk           The disk of the engine's state is full during an update, the disk of results during a benchmark.

A failed operation is repeated, as the next `llmd-oke up` or `destroy` would do. Measured are: whether the repetition
succeeds, objects in the cluster or in the simulated OCI that the engine's state lacks (orphaned), objects in the state
that don't exist (missing), lost requests, and the seconds from the fault until the operation has succeeded or the
killed program is ready again.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

from bench_projects import with_change
from llmd_base.errors import KitError
from llmd_base.progress import PlainProgress, Progress
from llmd_base.records import document
from llmd_bench.files import read_rows
from llmd_oke.operations.locks import until
from llmd_rehearsal import rehearsal, running_rehearsals
from llmd_rehearsal.oci_plugin.faults import parse_rule
from llmd_rehearsal.rehearsal_settings import PluginChoice, RehearsalSettings
from rehearsed_stack import CYCLE, Blow, End, Operation, RehearsedStack, errors_of, kill
from serving_faults import NODES, VICTIMS, Loss

Family = Literal["engine", "control-plane", "serving", "node", "oci", "disk"]
FAMILIES: tuple[Family, ...] = get_args(Family)

VICTIMS_OF: Mapping[Literal["serving", "node"], tuple[str, ...]] = {
    "serving": tuple(victim for victim in VICTIMS if victim not in NODES),
    "node": tuple(NODES),
}

OCI_FAULTS = (
    "*:slow",
    "*:too-many-requests:20",
    "Subnet:internal-error:1",
    "NodePool/mi300x*:out-of-host-capacity:1",
    "NodePool/mi300x*:late-failure:1",
    "Cluster:timeout:1",
    "NodePool/mi300x*:timeout:1",
    "Vcn:answer-lost:3",
    "Vcn:answer-lost",
    "NodePool/mi300x*:answer-lost",
)
"""Faults of requests to OCI, in the syntax of `llmd-oke rehearse --fault`: slow calls, failing calls, and calls that
time out half way.
"""

CREATED: Mapping[str, Any] = {
    "layer": "cluster",
    "cluster": {
        "mode": "create",
        "name": "faults",
        "region": "us-ashburn-1",
        "compartmentId": "ocid1.compartment.oc1..example",
        "tenancyId": "ocid1.tenancy.oc1..example",
        "kubernetesVersion": "v1.34.2",
    },
    "gpuPools": [
        {
            "name": "mi300x",
            "shape": "BM.GPU.MI300X.8",
            "size": 1,
            "availabilityDomain": "Uocm:US-ASHBURN-AD-1",
            "image": {"ocid": "ocid1.image.oc1.iad.example"},
        }
    ],
    "systemPool": {"shape": "VM.Standard.E5.Flex", "ocpus": 16, "memoryGib": 64, "size": 1},
    "gpuStack": "oke-plugin",
    "rdma": "none",
}
"""Content of a stack file that creates a cluster with one GPU node and deploys no models."""

CONTROL_PLANE = ("etcd", "kube-apiserver")
CONTROL_PLANE_LIMIT_S = 120.0
"""Maximum seconds until a killed process of the Kubernetes control plane is ready again."""

TRACEBACK = "Traceback (most recent call last)"

DISK_FILLS = 1
"""Number of updates during which the disk is full; in each, the engine tries for minutes to write its state."""

DISK_MIB = 32
BENCHMARK = ("--load", "constant:5", "--requests", "75", "--input-tokens", "512", "--output-tokens", "16")
BENCHMARK_S = 15.0
BENCHMARK_LIMIT_S = 120.0

Change = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Function that modifies a stack file's content before the rehearsal."""


@dataclass(frozen=True)
class FaultOutcome:
    """Result of one fault that a rehearsed stack was given. Seconds are wall time, measured: `recovery_s` from the
    fault until the operation has succeeded or the killed program is ready again, `undisturbed_s` for the operation
    without a fault.
    """

    family: Family
    fault: str
    during: str
    recovery_s: float
    undisturbed_s: float | None = None
    ended: str = ""
    """Error of the engine's operation during which the fault happened; empty if it succeeded."""
    failure: str = ""
    """Error of the operation that the engine ran after the disturbed one; empty if it succeeded."""
    orphans: tuple[str, ...] = ()
    """Objects in the cluster or OCI that aren't in the engine's state after the recovery."""
    missing: tuple[str, ...] = ()
    """Objects in the engine's state that are neither in the cluster nor in OCI after the recovery."""
    requests: int | None = None
    """Number of requests that were sent before, during and after the fault; None without load."""
    lost: int | None = None
    losses: tuple[str, ...] = ()
    """Reasons why requests to the model were lost."""
    longest_gap_s: float | None = None
    """Longest time in seconds under load between two completed answers."""

    def __str__(self) -> str:
        """Return one line of progress."""
        named = zip(HEADINGS[3:], _cells(self)[3:], strict=True)
        facts = ", ".join(f"{heading} {cell}" for heading, cell in named if cell != "-")
        left = [f"; {self.failure}" if self.failure else "", *(f"; left: {name}" for name in self.orphans)]
        return f"{self.fault} during {self.during}: {self.outcome}, {facts}{''.join(left)}"

    @property
    def recovered(self) -> bool:
        """True if the stack needs no manual repair after the fault, and no error was a traceback."""
        return not (self.failure or self.orphans or self.missing or TRACEBACK in self.ended)

    @property
    def outcome(self) -> str:
        """Result of the fault in words, for the table."""
        if not self.recovered:
            return "NOT RECOVERED"
        if self.requests is not None:
            return "ready again"
        return "recovered by the next run" if self.ended else "went on"


@dataclass(frozen=True)
class FaultSettings:
    """Kinds of faults to cause, their numbers, and the random seed of times and victims."""

    families: tuple[Family, ...] = FAMILIES
    kills: int = 30
    restarts: int = 6
    seed: int = 1
    usual_s: float | None = None
    """Assumed duration in seconds of every operation of the engine without faults; None to measure it."""


@dataclass(frozen=True)
class Bench:
    """Rehearsed stack that is given faults, with the random source of their times."""

    stack: RehearsedStack
    chance: random.Random
    progress: Progress
    expected_s: float | None = None

    @cached_property
    def usual_s(self) -> Mapping[Operation, float]:
        """Duration of each operation of the engine without faults in wall seconds: assumed, or measured one after the
        other.
        """
        if self.expected_s is not None:
            return dict.fromkeys(CYCLE, self.expected_s)
        return {operation: _undisturbed(self.stack, operation, self.progress) for operation in CYCLE}

    def engine_kills(self, number: int) -> Iterator[FaultOutcome]:
        """Kill the engine, or all processes of its command, during `number` operations, and yield the results."""
        for index in range(number):
            victim: Literal["engine", "everything"] = self.chance.choice(("engine", "everything"))
            fault = "engine killed" if victim == "engine" else "command killed with its engine"
            yield self._struck("engine", fault, CYCLE[index % len(CYCLE)], partial(kill, victim=victim))

    def control_plane_kills(self, number: int) -> Iterator[FaultOutcome]:
        """Kill etcd and the API server alternately, `number` times in all, and yield the results; with six kills each
        is killed in every operation of the engine.
        """
        for index in range(number):
            victim = CONTROL_PLANE[index % len(CONTROL_PLANE)]
            strike = partial(_kill_process, self.stack, victim)
            yield self._struck("control-plane", f"{victim} killed", CYCLE[index % len(CYCLE)], strike)

    def _struck(self, family: Family, fault: str, operation: Operation, strike: Callable[[int], None]) -> FaultOutcome:
        """Run an operation with the fault at a random time, repeat it if it failed, and return the result."""
        after_s = self.chance.uniform(0.05, 0.95) * self.usual_s[operation]
        ended = self.stack.operate(operation, Blow(after_s, strike))
        again = self.stack.operate(operation) if ended.failure or not ended.struck else None
        orphans, missing = self.stack.differences()
        return FaultOutcome(
            family,
            fault,
            f"{operation}, after {after_s:.1f} s" if ended.struck else f"{operation}, which had ended before",
            recovery_s=ended.seconds - after_s + (again.seconds if again else 0.0),
            undisturbed_s=self.usual_s[operation],
            ended=ended.failure,
            failure=again.failure if again else "",
            orphans=orphans,
            missing=missing,
        )

    def losses(self, family: Literal["serving", "node"]) -> Iterator[FaultOutcome]:
        """Kill serving programs (or nodes) one after the other while requests are sent, and yield the results."""
        _undisturbed(self.stack, "up", self.progress)
        plan = self.stack.prepared.plan
        model = plan.models[0]
        address = f"http://{model.name}.{plan.namespace}.svc.cluster.local"
        program = str(Path(__file__).with_name("serving_faults.py"))
        argv = [sys.executable, program, address, model.model.repository, plan.namespace, *VICTIMS_OF[family]]
        environment = {"KUBECONFIG": str(self.stack.prepared.state / "kubeconfig.yaml")}
        with self.stack.prepared.cluster.process_inside(argv, env=environment, output=subprocess.PIPE) as process:
            for line in process.stdout or ():
                loss = Loss(**json.loads(line))
                yield FaultOutcome(
                    family,
                    loss.victim if family == "node" else f"{loss.victim} killed",
                    "load",
                    recovery_s=loss.back_after_s,
                    requests=loss.requests,
                    lost=loss.lost,
                    losses=tuple(loss.failures),
                    longest_gap_s=loss.longest_gap_s,
                )
            if process.wait() != 0:
                raise KitError("The load under which programs were killed failed; standard error says why.")

    def oci_faults(self) -> Iterator[FaultOutcome]:
        """Create a cluster with each of OCI's faults, repeat the update without the fault, destroy the cluster, and
        yield the results.
        """
        usual_s = _undisturbed(self.stack, "up", self.progress)
        _undisturbed(self.stack, "destroy", self.progress)
        for rule in OCI_FAULTS:
            rehearsal.ask_for_faults(self.stack.prepared, [parse_rule(rule)])
            ended = self.stack.operate("up")
            rehearsal.ask_for_faults(self.stack.prepared, ())
            again = self.stack.operate("up") if ended.failure else None
            orphans, missing = self.stack.differences()
            yield FaultOutcome(
                "oci",
                f"OCI: {rule}",
                "up of a created cluster",
                recovery_s=again.seconds if again else max(0.0, ended.seconds - usual_s),
                undisturbed_s=usual_s,
                ended=ended.failure,
                failure=again.failure if again else "",
                orphans=orphans,
                missing=missing,
            )
            _undisturbed(self.stack, "destroy", self.progress)

    def full_disks(self, disk: Path) -> Iterator[FaultOutcome]:
        """Fill the disk of the engine's state during updates, and the disk of results during a benchmark, and yield the
        results.
        """
        (disk / "backend").mkdir()
        (self.stack.prepared.state / "backend").symlink_to(disk / "backend")
        usual_s = _undisturbed(self.stack, "up", self.progress)
        for _ in range(DISK_FILLS):
            _undisturbed(self.stack, "destroy", self.progress)
            after_s = self.chance.uniform(0.2, 0.95) * usual_s
            ended = self.stack.operate("up", Blow(after_s, lambda _: _fill(disk)))
            _empty(disk)
            again = self.stack.operate("up")
            orphans, missing = self.stack.differences()
            yield FaultOutcome(
                "disk",
                "disk of the state full",
                f"up, after {after_s:.1f} s",
                recovery_s=again.seconds,
                undisturbed_s=usual_s,
                ended=ended.failure,
                failure=again.failure,
                orphans=orphans,
                missing=missing,
            )
        yield self._full_results(disk)

    def _full_results(self, disk: Path) -> FaultOutcome:
        """Return the outcome of a full disk during a benchmark: the earlier benchmark's rows must remain unchanged, and
        the next benchmark must succeed.
        """
        began, rows = self._benchmark(disk, None), disk / "rows.jsonl"
        if began.failure:
            raise KitError(f"A benchmark failed without any fault: {began.failure}")
        before = read_rows(rows)
        ended = self._benchmark(disk, BENCHMARK_S / 2)
        kept = read_rows(rows) == before
        _empty(disk)
        again = self._benchmark(disk, None)
        lost = "" if kept else "the rows of the benchmark before are lost"
        failure = again.failure or lost or ("" if ended.failure else "a full disk was not told")
        return FaultOutcome(
            "disk",
            "disk of the results full",
            "benchmark",
            recovery_s=again.seconds,
            undisturbed_s=began.seconds,
            ended=ended.failure,
            failure=failure,
        )

    def _benchmark(self, disk: Path, full_after_s: float | None) -> End:
        plan, state = self.stack.prepared.plan, self.stack.prepared.state
        model = plan.models[0]
        target = ("--url", f"http://{model.name}.{plan.namespace}.svc.cluster.local", "--gpu", "MI300X", "--gpus", "4")
        files = ("--output", str(disk / "requests.jsonl"), "--rows", str(disk / "rows.jsonl"))
        argv = (sys.executable, "-m", "llmd_oke", "bench", *target, "--model", model.model.repository)
        started_s = time.monotonic()
        with self.stack.prepared.cluster.process_inside(
            [*argv, *BENCHMARK, *files],
            env={"KUBECONFIG": str(state / "kubeconfig.yaml")},
            output=subprocess.DEVNULL,
            errors=subprocess.PIPE,
        ) as process:
            errors = errors_of(process, full_after_s) if full_after_s else None
            if errors is None and full_after_s:
                _fill(disk)
            errors = errors_of(process, BENCHMARK_LIMIT_S) if errors is None else errors
        failure = "" if process.returncode == 0 else errors or f"exit code {process.returncode}"
        return End(failure.strip(), time.monotonic() - started_s, full_after_s is not None)


@contextmanager
def _small_disk() -> Generator[Path]:
    """Mount a tmpfs of `DISK_MIB` MiB, as a context manager.

    Raises:
        KitError: this user may not mount it.
    """
    with tempfile.TemporaryDirectory(prefix="llmd-oke-disk-") as folder:
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", folder]
        mounted = subprocess.run(words, capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            raise KitError(
                f"No small disk can be mounted: {mounted.stderr.strip()}", "Run it as root, or without disk."
            )
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))


def _empty(disk: Path) -> None:
    (disk / "filler").unlink()


def _kill_process(stack: RehearsedStack, name: str, _operation: int) -> None:
    """Kill a process of the stack's cluster with SIGKILL, and wait until it is restarted and ready."""
    record = stack.prepared.cluster.status()
    if record is None:
        raise KitError(f"The local cluster in {stack.prepared.state} has ended.")
    before = record.processes[name]
    stack.prepared.cluster.run_inside(["sh", "-c", f"kill -KILL {before.pid}"])

    def is_back() -> bool:
        now = stack.prepared.cluster.status()
        process = now.processes[name] if now else before
        return process.restarts > before.restarts and process.ready_after_s is not None

    if not until(is_back, CONTROL_PLANE_LIMIT_S):
        raise KitError(f"{name} is not ready {CONTROL_PLANE_LIMIT_S:g} s after it was killed.")


def measure(source: Path, stack: str, choice: FaultSettings, progress: Progress) -> Iterator[FaultOutcome]:
    """Rehearse the stack with the chosen faults in temporary local clusters, and yield the results.

    Raises:
        KitError: the stack can't be rehearsed, or an operation fails without a fault.
    """
    chance = random.Random(choice.seed)  # noqa: S311  # moments, no secrets
    if set(choice.families) - {"oci", "disk"}:
        with _rehearsed(source, stack, _without_smoke, progress) as rehearsed:
            bench = Bench(rehearsed, chance, progress, choice.usual_s)
            if "engine" in choice.families:
                yield from bench.engine_kills(choice.kills)
            if "control-plane" in choice.families:
                yield from bench.control_plane_kills(choice.restarts)
            for family in VICTIMS_OF:
                if family in choice.families:
                    yield from bench.losses(family)
    if "oci" in choice.families:
        with _rehearsed(source, stack, lambda content: {"release": content["release"], **CREATED}, progress) as created:
            yield from Bench(created, chance, progress).oci_faults()
    if "disk" in choice.families:
        with _small_disk() as disk, _rehearsed(source, stack, _without_smoke, progress) as served:
            yield from Bench(served, chance, progress).full_disks(disk)


@contextmanager
def _rehearsed(source: Path, stack: str, change: Change, progress: Progress) -> Generator[RehearsedStack]:
    """Start a temporary local cluster for the stack with its changed document, as a context manager."""
    with tempfile.TemporaryDirectory(prefix="llmd-oke-faults-") as folder:
        project = with_change(source, stack, Path(folder) / "project", change)
        try:
            settings = RehearsalSettings(plugin=PluginChoice.STAND_IN)
            yield RehearsedStack(project, rehearsal.prepare(project.folder, stack, settings, progress))
        finally:
            running_rehearsals.down(project.folder, stack)


def _without_smoke(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document without the smoke benchmark, which would take most of an update's time."""
    smoke: Mapping[str, Any] = document.get("smoke") or {}
    return {**document, "smoke": {**smoke, "where": "none"}}


def _undisturbed(stack: RehearsedStack, operation: Operation, progress: Progress) -> float:
    ended = stack.operate(operation)
    if ended.failure:
        raise KitError(f"{operation} failed without any fault: {ended.failure}")
    progress.step(f"{operation} takes {ended.seconds:.1f} s where nothing fails")
    return ended.seconds


HEADINGS = ("fault", "during", "outcome", "orphaned", "missing", "requests lost", "recovery, s", "undisturbed, s")


def _cells(outcome: FaultOutcome) -> tuple[str, ...]:
    lost = "-" if outcome.lost is None else f"{outcome.lost} of {outcome.requests}"
    usual = "-" if outcome.undisturbed_s is None else f"{outcome.undisturbed_s:.1f}"
    left = (str(len(outcome.orphans)), str(len(outcome.missing))) if outcome.lost is None else ("-", "-")
    return outcome.fault, outcome.during, outcome.outcome, *left, lost, f"{outcome.recovery_s:.1f}", usual


def table(outcomes: list[FaultOutcome]) -> str:
    """Return a Markdown table of the results of all faults, with the orphaned and missing objects, the failures and the
    total.
    """
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *map(_cells, outcomes)]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    left = [f"left: {name}" for outcome in outcomes for name in (*outcome.orphans, *outcome.missing)]
    failures = [
        f"{outcome.fault} during {outcome.during}: {outcome.failure}" for outcome in outcomes if outcome.failure
    ]
    recovered = sum(outcome.recovered for outcome in outcomes)
    orphans, missing = (
        sum(len(outcome.orphans) for outcome in outcomes),
        sum(len(outcome.missing) for outcome in outcomes),
    )
    total = f"{recovered} of {len(outcomes)} recovered, {orphans} orphaned, {missing} missing (all measured)"
    return "\n".join([*lines, "", *left, *failures, total])


def as_json(outcomes: list[FaultOutcome]) -> str:
    """Return the results of all faults as JSON."""
    rows = [{**asdict(outcome), **document("outcome recovered", outcome)} for outcome in outcomes]
    return json.dumps({"basis": "measured", "faults": rows}, indent=2)


def main() -> None:
    """Cause the faults that the command line selects, and print the results; exit with 1 if a fault needed manual
    repair.
    """
    usual = FaultSettings()
    parser = argparse.ArgumentParser(
        prog="scripts/bench-faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--project", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stack", default="rehearsal", help="stack that is rehearsed (rehearsal)")
    parser.add_argument("--only", choices=FAMILIES, action="append", help="faults of this kind alone; can be repeated")
    parser.add_argument("--kills", type=int, default=usual.kills, help=f"engines killed ({usual.kills})")
    parser.add_argument(
        "--restarts", type=int, default=usual.restarts, help=f"processes of the control plane killed ({usual.restarts})"
    )
    parser.add_argument("--seed", type=int, default=usual.seed, help=f"of moments and victims ({usual.seed})")
    parser.add_argument(
        "--usual", type=float, help="seconds that operations take where nothing fails (measured if left out)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(143))  # so that the local cluster goes too
    progress, outcomes = PlainProgress(sys.stderr), list[FaultOutcome]()
    families: tuple[Family, ...] = tuple(
        options.only or (family for family in FAMILIES if family != "disk" or os.geteuid() == 0)
    )
    if not options.only and "disk" not in families:
        progress.step("no disk is filled: only root can mount a small one")
    choice = FaultSettings(families, options.kills, options.restarts, options.seed, options.usual)
    try:
        for outcome in measure(options.project, options.stack, choice, progress):
            outcomes.append(outcome)
            progress.step(f"{len(outcomes)}: {outcome}")
    except KitError as error:
        print(table(outcomes), f"error {error}", sep="\n", file=sys.stderr)
        sys.exit(1)
    print(as_json(outcomes) if options.json else table(outcomes))
    sys.exit(not all(outcome.recovered for outcome in outcomes))


if __name__ == "__main__":
    main()
