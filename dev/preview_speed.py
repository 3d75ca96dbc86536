"""Benchmark of a stack's preview, compared with a plain program that declares as many resources, which measures the
engine alone.

`scripts/bench-preview` runs it; the exit code is 1 if a limit is exceeded. The previews run in a temporary local
cluster.
"""

import argparse
import copy
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import plain_program
from bench_projects import BenchProject, project_copy, with_change
from llmd_base.errors import KitError
from llmd_base.progress import PlainProgress, Progress
from llmd_base.records import document
from llmd_oke import planning
from llmd_oke.config import read
from llmd_oke.config.model import MAX_COPIES
from llmd_oke.values import cache_folder
from llmd_rehearsal import engine_operations, rehearsal, running_rehearsals
from llmd_rehearsal.cluster_plan import PLUGIN_PORTS
from llmd_rehearsal.cluster_spec import end_of_log
from llmd_rehearsal.engine_project import copy_project
from llmd_rehearsal.rehearsal import Prepared
from llmd_rehearsal.rehearsal_settings import PluginChoice, RehearsalSettings

INSTANT_PORT = 9390
PREVIEW_TIMEOUT_S = 600.0

RATIO_LIMIT = 1.35
"""Maximum ratio of a preview's duration to that of a plain program with as many resources, which measures the engine
alone.
"""

GROWTH_LIMIT = 1.25
"""Maximum ratio of the preview's cost per resource in the largest program to that in the smallest; chosen by us.
Quadratic growth would give a ratio of about 8.
"""

SIZES = (250, 500, 1000, 2000)

SDK_MODULES = (
    "pulumi_kubernetes.apps.v1",
    "pulumi_kubernetes.core.v1",
    "pulumi_kubernetes.helm.v3",
    "pulumi_oci.containerengine.cluster",
    "pulumi_oci.core.vcn",
    "pulumi_oci.identity.policy",
)
"""Modules that every Python program loads that declares such resources with Pulumi's own classes. For OCI one module of
each package is listed, because the packages themselves load their modules lazily.
"""

_FOLDER = Path(__file__).parent
_IMPORT = f"""\
import sys

sys.path.insert(0, {str(_FOLDER)!r})
import plain_program

"""
_RECORDING_PROGRAM = _IMPORT + "plain_program.record(plain_program.graph_file())\n"
_PLAIN_PROGRAM = _IMPORT + "plain_program.declare(plain_program.load(plain_program.graph_file()))\n"

GPUS_PER_UNIT = 2
"""GPUs of a unit (a model's servers with one router) of one prefill and one decode server; the smallest unit has as
many resources as the largest.
"""

GPUS_PER_NODE = 8
PODS_PER_ROUTER = 2
"""Number of pods of a router: a leader and a standby (`router.replicas` of the release)."""

ROUTERS_PER_NODE = 3


@dataclass(frozen=True)
class Timing:
    """Durations of the previews of one Pulumi program in seconds, from the engine's start to its end, including the
    program.
    """

    program: str
    resources: int
    runs_s: tuple[float, ...]

    @property
    def min_s(self) -> float:
        """Duration of the fastest preview in seconds, since other work on the machine only adds time."""
        return min(self.runs_s)

    @property
    def median_s(self) -> float:
        """Median duration of the previews in seconds."""
        return statistics.median(self.runs_s)

    @property
    def s_per_100_resources(self) -> float:
        """Duration in seconds of the fastest preview per hundred resources, including fixed costs."""
        return self.min_s / self.resources * 100


@dataclass(frozen=True)
class Result:
    """Durations of the previews of the stack, of the plain program without and with Pulumi's packages loaded, and of
    programs of growing size.
    """

    stack: Timing
    plain: Timing
    loaded: Timing
    sizes: tuple[Timing, ...]

    @property
    def ratio(self) -> float:
        """Ratio of the duration of the stack's preview to that of the plain program, which measures the engine alone,
        by the fastest runs.
        """
        return self.stack.min_s / self.plain.min_s

    @property
    def ratio_to_loaded(self) -> float:
        """Ratio of the duration of the stack's preview to that of the plain program with Pulumi's packages loaded, by
        the fastest runs.
        """
        return self.stack.min_s / self.loaded.min_s

    @property
    def ratio_of_medians(self) -> float:
        """Ratio of the duration of the stack's preview to that of the plain program, which measures the engine alone,
        by the medians.
        """
        return self.stack.median_s / self.plain.median_s

    @property
    def growth(self) -> float | None:
        """Ratio of the preview's cost per resource in the largest program to that in the smallest; None for a single
        program.
        """
        return self.sizes[-1].s_per_100_resources / self.sizes[0].s_per_100_resources if len(self.sizes) > 1 else None

    @property
    def within_limits(self) -> bool:
        """True if the preview of the stack meets both limits, `RATIO_LIMIT` and `GROWTH_LIMIT`."""
        return self.ratio <= RATIO_LIMIT and (self.growth is None or self.growth <= GROWTH_LIMIT)

    def as_json(self) -> dict[str, object]:
        """Return the result as JSON-serializable data; every figure is measured."""
        return {
            "basis": "measured",
            "stack": _timing(self.stack),
            "engine_only": _timing(self.plain),
            "engine_and_packages": _timing(self.loaded),
            "ratio": round(self.ratio, 3),
            "ratio_to_packages": round(self.ratio_to_loaded, 3),
            "ratio_of_medians": round(self.ratio_of_medians, 3),
            "ratio_limit": RATIO_LIMIT,
            "sizes": [_timing(timing) for timing in self.sizes],
            "growth": None if self.growth is None else round(self.growth, 3),
            "growth_limit": GROWTH_LIMIT,
        }


def _timing(timing: Timing) -> dict[str, object]:
    figures = document("min_s median_s s_per_100_resources", timing)
    return {**asdict(timing), **{name: round(value, 3) for name, value in figures.items()}}


def same_project(source: Path, stack: str, folder: Path) -> BenchProject:
    """Create an unchanged copy of the stack's project."""
    return with_change(source, stack, folder, lambda config: config)


def plain_project(source: Path, stack: str, folder: Path) -> BenchProject:
    """Create a copy of the project with the plain program in place of the stack's program."""
    project = project_copy(source, folder, stack, _PLAIN_PROGRAM)
    project.write_stack(read(source, stack))
    return project


def larger_project(source: Path, stack: str, folder: Path, units: int) -> BenchProject:
    """Create a copy of the project whose stack has, in place of its models, `units` small units (each a model's servers
    with one router), and nodes for all of them.
    """
    return with_change(source, stack, folder, lambda config: with_units(config, units))


def system_nodes(units: int) -> int:
    """Return the number of nodes without GPUs for the routers of `units` units (each a model's servers with one
    router), plus one for other pods.
    """
    return 1 + -(-units * PODS_PER_ROUTER // ROUTERS_PER_NODE)


def with_units(stack: dict[str, Any], units: int) -> dict[str, Any]:
    """Return a stack that serves `units` small units (each a model's servers with one router), distributed over as few
    models as the maximum of copies allows.
    """
    larger, template = copy.deepcopy(stack), stack["models"][0]
    sizes = [min(MAX_COPIES, units - done) for done in range(0, units, MAX_COPIES)]
    larger["models"] = [
        {**template, "name": f"model-{index}", "topology": "1p-tp1-1d-tp1", "copies": size}
        for index, size in enumerate(sizes)
    ]
    larger["gpuPools"][0]["size"] = -(-units * GPUS_PER_UNIT // GPUS_PER_NODE)
    if "systemPool" in larger:
        larger["systemPool"]["size"] = system_nodes(units)
    return larger


def measure(project: Path, stack: str, runs: int, sizes: Sequence[int], progress: Progress) -> Result:
    """Measure the durations of previews of the stack and of plain programs in a temporary local cluster; the project
    isn't changed.

    Raises:
        InvalidStack: the stack can't be deployed.
        KitError: a program is missing, the local cluster doesn't start, or a preview fails.
    """
    with tempfile.TemporaryDirectory(prefix="llmd-oke-preview-") as temporary:
        folder = Path(temporary)
        rehearsed = same_project(project, stack, folder / "cluster")
        try:
            settings = RehearsalSettings(plugin=PluginChoice.STAND_IN)
            prepared = rehearsal.prepare(rehearsed.folder, rehearsed.stack, settings, progress)
            bench = _Bench(project, stack, folder, prepared, progress)
            timings = bench.beside_plain(runs)
            return Result(*timings, bench.growing(runs, sizes, timings[0].resources))
        finally:
            running_rehearsals.down(rehearsed.folder, rehearsed.stack)


@dataclass(frozen=True)
class _Bench:
    project: Path
    stack: str
    folder: Path
    prepared: Prepared
    progress: Progress

    def beside_plain(self, runs: int) -> tuple[Timing, Timing, Timing]:
        """Time the stack, the plain program, and the plain program with packages loaded in alternation, so that all run
        under the same machine load.
        """
        recorded = {plain_program.GRAPH_VARIABLE: str(self.folder / "plain_program.json")}
        program = _RECORDING_PROGRAM + (self.project / "__main__.py").read_text()
        first = project_copy(self.project, self.folder / "recording", self.stack, program)
        first.write_stack(read(self.project, self.stack))
        ours = same_project(self.project, self.stack, self.folder / "same")
        plain = plain_project(self.project, self.stack, self.folder / "plain")
        instant = {plain_program.PACKAGE: INSTANT_PORT}
        argv = [sys.executable, str(_FOLDER / "instant_plugin.py"), "--port", str(INSTANT_PORT)]
        times: list[tuple[float, float, float]] = []
        with self.prepared.cluster.process_inside(argv, errors=subprocess.DEVNULL):
            _, resources = self.preview(first, PLUGIN_PORTS, recorded)
            for run in range(runs):
                self.progress.step(f"previews of {self.stack} and of the plain program: {run + 1} of {runs}")
                of_ours, _ = self.preview(ours, PLUGIN_PORTS)
                of_plain, _ = self.preview(plain, instant, recorded)
                of_loaded, _ = self.preview(plain, instant, recorded, SDK_MODULES)
                times.append((of_ours, of_plain, of_loaded))
        first_s, second_s, third_s = zip(*times, strict=True)
        return (
            Timing(self.stack, resources, first_s),
            Timing("engine only", resources, second_s),
            Timing("engine, packages loaded", resources, third_s),
        )

    def growing(self, runs: int, sizes: Sequence[int], resources: int) -> tuple[Timing, ...]:
        """Time programs with about as many resources as each of `sizes`, made by varying the number of units."""
        if not sizes:
            return ()
        units = sum(len(model.units) for model in self.prepared.plan.models)
        twice = larger_project(self.project, self.stack, self.folder / "twice", 2 * units)
        _, total = self.preview(twice, PLUGIN_PORTS)
        per_unit = (total - resources) / units
        base = resources - units * per_unit  # resources of the stack without units
        return tuple(self._size(max(1, round((size - base) / per_unit)), runs) for size in sizes)

    def _size(self, units: int, runs: int) -> Timing:
        project = larger_project(self.project, self.stack, self.folder / f"units-{units}", units)
        times: list[float] = []
        resources = 0
        for run in range(runs):
            self.progress.step(f"previews of {units} units: {run + 1} of {runs}")
            seconds, resources = self.preview(project, PLUGIN_PORTS)
            times.append(seconds)
        return Timing(f"{units} units", resources, tuple(times))

    def preview(
        self,
        of: BenchProject,
        plugins: Mapping[str, int],
        variables: Mapping[str, str] | None = None,
        modules: Sequence[str] = (),
    ) -> tuple[float, int]:
        """Preview once from an empty state, and return the duration in seconds and the number of resources.

        `modules` are the modules that the engine preloads for the plain program; for the kit's program the rehearsal
        chooses them.
        """
        planning.plan_stack_file(of.folder, of.stack)
        state = of.folder / "state"
        engine_project = copy_project(of.folder, of.stack, state, self.prepared.router)
        result, log = state / "engine.json", state / "engine.log"
        argv = [sys.executable, "-m", "llmd_rehearsal.engine", "--project", str(engine_project.folder)]
        programs = self.prepared.inventory.link_engine(state / "bin")
        environment = {
            **engine_project.variables(),
            **(variables or {}),
            "KUBECONFIG": str(self.prepared.state / "kubeconfig.yaml"),
            "LLMD_OKE_CACHE": str(cache_folder()),
            "PATH": f"{programs}:{self.prepared.cluster.environment()['PATH']}",
            "PULUMI_DEBUG_PROVIDERS": ",".join(f"{name}:{port}" for name, port in plugins.items()),
        }
        modules = modules if plain_program.PACKAGE in plugins else engine_operations.program_modules(self.prepared.plan)
        loaded = [word for module in modules for word in ("--load", module)]
        own = ["--stack", of.stack, "--result", str(result), "preview", *loaded]
        with (
            log.open("w") as words,
            self.prepared.cluster.process_inside(
                [*argv, *own], env=environment, folder=engine_project.folder, output=words, errors=words
            ) as process,
        ):
            process.wait(PREVIEW_TIMEOUT_S)
        if not result.exists():
            raise KitError(f"A preview ended without a result: {end_of_log(log)}")
        outcome = json.loads(result.read_text())
        if "error" in outcome:
            raise KitError(outcome["error"], outcome["remedy"])
        return float(outcome["duration_s"]), sum(outcome["changes"].values())


def main() -> None:
    """Run the benchmark of previews that the command line describes, print the result, and exit; with 1 if a limit
    isn't met.
    """
    parser = argparse.ArgumentParser(prog="scripts/bench-preview", description=__doc__)
    parser.add_argument("--project", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--stack", default="reference", help="stack that creates its cluster (reference)")
    parser.add_argument("--runs", type=int, default=5, help="previews of each program (5)")
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="resources of the larger programs; 0 for none")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(143))  # so that the local cluster goes too
    try:
        result = measure(arguments.project, arguments.stack, arguments.runs, arguments.sizes, PlainProgress(sys.stderr))
    except KitError as error:
        print(f"error {error}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps(result.as_json(), indent=2) if arguments.json else _shown(result))
    sys.exit(not result.within_limits)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(size for word in text.split(",") if (size := int(word)) > 0)


def _shown(result: Result) -> str:
    lines = [f"{'previews (all measured)':26} {'resources':>9}  {'fastest':>8}  {'median':>8}  {'per 100':>8}"]
    for timing in (result.stack, result.plain, result.loaded, *result.sizes):
        times = (timing.min_s, timing.median_s, timing.s_per_100_resources)
        row = "".join(f"  {seconds:6.2f} s" for seconds in times)
        lines.append(f"{timing.program:26} {timing.resources:9d}{row}")
    lines.append(
        f"{result.stack.program} beside the engine alone: {result.ratio:.2f} by the fastest runs,"
        f" {result.ratio_of_medians:.2f} by the medians; limit {RATIO_LIMIT}"
    )
    lines.append(
        f"{result.stack.program} beside the engine with Pulumi's packages loaded: {result.ratio_to_loaded:.2f}"
        " by the fastest runs"
    )
    if result.growth is not None:
        lines.append(
            f"a resource of the largest program costs {result.growth:.2f} of one of the smallest; limit {GROWTH_LIMIT}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
