"""Benchmark of rehearsals of growing stacks: duration and memory, in total and per resource, by number of models and
nodes.

Each stack creates its cluster, with small units of two servers. The real engine, API server, endpoint pickers and Envoy
deploy it from nothing until all servers are ready, then run a second update without changes. Memory is the peak sum of
the proportional set sizes of the local cluster's processes (`Pss` in `/proc/PID/smaps_rollup`).

Pulumi saves the whole state before and after each change of a resource, so its work grows with the square of the
stack's size (pulumi/pulumi issues 13502 and 22075). With `--skip-checkpoints` it saves the state only at the end.
"""

import argparse
import copy
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench_projects import BenchProject, with_change
from llmd_base.errors import KitError
from llmd_base.progress import PlainProgress, Progress
from llmd_rehearsal import engine_operations, rehearsal, running_rehearsals
from llmd_rehearsal.engine_project import checkpoint_file, latest
from llmd_rehearsal.local_cluster import LocalCluster
from llmd_rehearsal.rehearsal import Prepared
from llmd_rehearsal.rehearsal_settings import PluginChoice, RehearsalSettings
from preview_speed import GROWTH_LIMIT, system_nodes

SIZES = ((8, 32), (16, 64), (32, 128), (64, 256))
"""Numbers of models and of GPU nodes of the stacks that are rehearsed."""

MAX_PODS = 31
"""Maximum number of pods per node: the pods of 256 nodes fit into a /16, the largest network of OCI."""

LOOK_S = 3.0
MAX_PROGRAMS = 8
TWICE_EVERY = 5
"""Distance between models that get two units (copies of their servers, each with a router of its own) instead of one:
with every fifth such a model, 64 models make 2,000 resources.
"""

MIB = 1024.0
"""Number of KiB in a MiB."""


@dataclass(frozen=True)
class StackCost:
    """Measured cost of rehearsing one stack: memory, and durations in wall seconds."""

    models: int
    nodes: int
    resources: int
    time_scale: float
    cluster_s: float
    update_s: float
    again_s: float
    memory_mib: float
    programs_mib: Mapping[str, float]
    """Memory of the rehearsal's largest programs in MiB, by name, at the time when all programs together used most."""

    @property
    def update_s_per_100(self) -> float:
        """Wall seconds of the update per hundred resources."""
        return self.update_s / self.resources * 100

    @property
    def memory_mib_per_100(self) -> float:
        """Memory of the rehearsal per hundred resources in MiB."""
        return self.memory_mib / self.resources * 100


@dataclass(frozen=True)
class StackGrowth:
    """Costs of rehearsals of stacks of growing size."""

    costs: Sequence[StackCost]

    @property
    def ratios(self) -> tuple[float, float]:
        """Ratios of the cost per resource of the largest stack to that of the smallest: of the update's duration, and
        of memory.
        """
        first, last = self.costs[0], self.costs[-1]
        return last.update_s_per_100 / first.update_s_per_100, last.memory_mib_per_100 / first.memory_mib_per_100

    @property
    def by_size(self) -> float:
        """Growth of the update's duration divided by the growth of models or nodes (the smaller one); 1 is linear.

        The number of resources grows less than models and nodes, since about 130 resources (network, rights, operators)
        exist once per stack.
        """
        first, last = self.costs[0], self.costs[-1]
        return last.update_s / first.update_s / min(last.models / first.models, last.nodes / first.nodes)

    @property
    def within_limits(self) -> bool:
        """True if duration and memory per resource grow by at most `GROWTH_LIMIT`."""
        return max(self.ratios) <= GROWTH_LIMIT

    def as_json(self) -> dict[str, object]:
        """Return the costs and their growth as JSON-serializable data."""
        time_ratio, memory_ratio = (round(ratio, 3) for ratio in self.ratios)
        return {
            "basis": "measured",
            "stacks": [asdict(cost) for cost in self.costs],
            "update_growth": time_ratio,
            "memory_growth": memory_ratio,
            "update_growth_by_size": round(self.by_size, 3),
            "limit": GROWTH_LIMIT,
        }


def stack_of(template: Mapping[str, Any], models: int, nodes: int) -> dict[str, Any]:
    """Return a stack with `models` models of one small unit each (a copy of its servers with a router; every fifth
    model has two), `nodes` GPU nodes, and system nodes for the routers.
    """
    stack = copy.deepcopy(dict(template))
    model = {**stack["models"][0], "topology": "1p-tp1-1d-tp1"}
    stack["models"] = [
        {**model, "name": f"model-{index}", "copies": 1 if index % TWICE_EVERY else 2} for index in range(models)
    ]
    stack["gpuPools"][0].update(size=nodes, maxPods=MAX_PODS)
    stack["systemPool"].update(size=system_nodes(models + -(-models // TWICE_EVERY)), maxPods=MAX_PODS)
    stack["smoke"] = {**stack.get("smoke", {}), "where": "none"}
    # The acceptance pods of all nodes at once would keep two CPUs busy for a long time.
    stack["acceptance"] = {"when": "by-command"}
    return stack


def measure(project: Path, stack: str, sizes: Sequence[tuple[int, int]], progress: Progress) -> StackGrowth:
    """Rehearse stacks of these sizes one after the other, each in a temporary local cluster, and return the costs.

    Raises:
        KitError: a program is missing, a local cluster doesn't start, or an update fails.
    """
    costs: list[StackCost] = []
    for models, nodes in sizes:
        with tempfile.TemporaryDirectory(prefix="llmd-oke-scale-") as temporary:
            own = with_change(project, stack, Path(temporary), partial(stack_of, models=models, nodes=nodes))
            costs.append(_cost(own, models, nodes, progress))
            progress.step(_row(costs[-1]))
    return StackGrowth(costs)


def _cost(project: BenchProject, models: int, nodes: int, progress: Progress) -> StackCost:
    progress.step(f"{models} models on {nodes} nodes")
    try:
        started_s = time.monotonic()
        prepared = rehearsal.prepare(
            project.folder, project.stack, RehearsalSettings(plugin=PluginChoice.STAND_IN), progress
        )
        cluster_s = time.monotonic() - started_s
        with _memory(prepared) as highest:
            ends_s = [time.monotonic()]
            for _ in range(2):
                engine_operations.run_engine(prepared, "up", progress)
                ends_s.append(time.monotonic())
        update_s, again_s = (end_s - start_s for start_s, end_s in itertools.pairwise(ends_s))
        known = latest(checkpoint_file(prepared.state, project.stack)).get("resources") or ()
        largest = sorted(highest.items(), key=lambda program: program[1], reverse=True)[:MAX_PROGRAMS]
        scale, total_mib = prepared.time_scale.scale, sum(highest.values())
        return StackCost(models, nodes, len(known), scale, cluster_s, update_s, again_s, total_mib, dict(largest))
    finally:
        running_rehearsals.down(project.folder, project.stack)


@contextmanager
def _memory(prepared: Prepared) -> Generator[dict[str, float]]:
    """Watch the memory of a local cluster's programs, and yield a dictionary of MiB by program name that is updated at
    each new peak of the sum.
    """
    highest: dict[str, float] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            now = programs_mib(prepared.cluster)
            if sum(now.values()) > sum(highest.values()):
                highest.clear()
                highest.update(now)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield highest
    finally:
        ended.set()
        watching.join()


def programs_mib(cluster: LocalCluster) -> dict[str, float]:
    """Return the current memory of a local cluster's programs in MiB, by name; empty if the cluster isn't running."""
    record = cluster.status()
    if record is None:
        return {}
    home = Path(f"/proc/{record.supervisor.pid}/ns/pid_for_children").readlink()
    programs: dict[str, float] = defaultdict(float)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "ns/pid").readlink() == home:
                lines = (process / "smaps_rollup").read_text().splitlines()
                mib = (int(line.split()[1]) / MIB for line in lines if line.startswith("Pss:"))
                programs[_name(process)] += next(mib, 0.0)
    return dict(programs)


def _name(process: Path) -> str:
    """Return the name of a process: `epp`, or the module of a Python process."""
    words = (process / "cmdline").read_text().split("\0")
    module = words[words.index("-m") + 1] if "-m" in words else ""
    return module if Path(words[0]).name.startswith("python") and module else (process / "comm").read_text().strip()


def _row(cost: StackCost) -> str:
    return (
        f"{cost.models:6} {cost.nodes:6} {cost.resources:10} {cost.time_scale:6g} {cost.cluster_s:8.1f} s "
        f"{cost.update_s:8.1f} s {cost.update_s_per_100:8.2f} s {cost.again_s:8.1f} s {cost.memory_mib:8.0f} MiB "
        f"{cost.memory_mib_per_100:8.1f} MiB"
    )


def _shown(growth: StackGrowth) -> str:
    names = f"{'models':>6} {'nodes':>6} {'resources':>10} {'scale':>6} {'cluster':>10} {'update':>10} {'per 100':>10} "
    programs = growth.costs[-1].programs_mib.items()
    time_ratio, memory_ratio = growth.ratios
    return "\n".join(
        [
            "rehearsals of growing stacks (all measured)",
            f"{names}{'again':>10} {'memory':>12} {'per 100':>12}",
            *map(_row, growth.costs),
            "memory of the largest: " + ", ".join(f"{name} {mib:.0f} MiB" for name, mib in programs),
            f"a resource of the largest takes {time_ratio:.2f} of the time and {memory_ratio:.2f} of the memory of one"
            f" of the smallest; limit {GROWTH_LIMIT}",
            f"by models and nodes, the update's time grows by {growth.by_size:.2f} of what is linear",
        ]
    )


def _sizes(text: str) -> tuple[tuple[int, int], ...]:
    try:
        return tuple((int(models), int(nodes)) for models, nodes in (word.split("x") for word in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 8x32,64x256") from None


def main() -> None:
    """Rehearse the stacks of growing size that the command line selects; exit with 1 if a resource costs more in a
    larger stack than the limit allows.
    """
    parser = argparse.ArgumentParser(
        prog="scripts/bench-scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--project", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--stack", default="reference", help="stack that creates its cluster (reference)")
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="models x nodes (8x32,16x64,32x128,64x256)")
    parser.add_argument(
        "--skip-checkpoints", action="store_true", help="have the engine save its state at the end only"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.skip_checkpoints:
        os.environ.update(dict.fromkeys(engine_operations.PASSED_ON, "true"))
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(143))  # so that the local cluster goes too
    try:
        growth = measure(options.project, options.stack, options.sizes, PlainProgress(sys.stderr))
    except KitError as error:
        print(f"error {error}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps(growth.as_json(), indent=2) if options.json else _shown(growth))
    sys.exit(not growth.within_limits)


if __name__ == "__main__":
    main()
