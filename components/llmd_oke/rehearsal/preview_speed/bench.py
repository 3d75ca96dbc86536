"""Previews of the real engine inside a rehearsal's world, timed."""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from llmd_oke import planning
from llmd_oke.catalogue.cache import cache_folder
from llmd_oke.errors import KitError
from llmd_oke.progress import Progress
from llmd_oke.rehearsal import rehearsal
from llmd_oke.rehearsal.plugins import PluginChoice
from llmd_oke.rehearsal.preview_speed import graph, projects
from llmd_oke.rehearsal.preview_speed.projects import BenchProject
from llmd_oke.rehearsal.project_copy import copy_project
from llmd_oke.rehearsal.rehearsal import Prepared, Settings
from llmd_oke.rehearsal.world_plan import PLUGIN_PORTS
from llmd_oke.rehearsal.world_record import end_of_log

INSTANT_PORT = 9390
PREVIEW_TIMEOUT_S = 600.0

RATIO_LIMIT = 1.35
"""A preview may take so many times what the engine alone takes for as many resources."""

GROWTH_LIMIT = 1.25
"""So much may a resource of the largest program cost more than one of the smallest; ours. Work that grows with the
square of the resources would give about 8."""

SIZES = (250, 500, 1000, 2000)

SDK_MODULES = (
    "pulumi_kubernetes.apps.v1",
    "pulumi_kubernetes.core.v1",
    "pulumi_kubernetes.helm.v3",
    "pulumi_oci.containerengine.cluster",
    "pulumi_oci.core.vcn",
    "pulumi_oci.identity.policy",
)
"""What every program in Python loads that declares such resources with Pulumi's own classes. Of OCI a module of each
package is named, because the packages themselves load nothing before they are used."""


@dataclass(frozen=True)
class Timing:
    """Some previews of one program. Times in seconds, from the engine's start to its end, the program's included."""

    program: str
    resources: int
    runs_s: tuple[float, ...]

    @property
    def min_s(self) -> float:
        """The fastest run: other work on the machine only adds to it."""
        return min(self.runs_s)

    @property
    def median_s(self) -> float:
        """The middle run."""
        return statistics.median(self.runs_s)

    @property
    def s_per_100_resources(self) -> float:
        """The fastest run for each hundred resources, what every run costs included."""
        return self.min_s / self.resources * 100


@dataclass(frozen=True)
class Result:
    """What was measured: the stack, the plain program without and with packages, and programs of growing size."""

    stack: Timing
    plain: Timing
    loaded: Timing
    sizes: tuple[Timing, ...]

    @property
    def ratio(self) -> float:
        """How many times what the engine alone takes, by the fastest runs."""
        return self.stack.min_s / self.plain.min_s

    @property
    def ratio_to_loaded(self) -> float:
        """How many times what the plain program takes that loads Pulumi's packages too, by the fastest runs."""
        return self.stack.min_s / self.loaded.min_s

    @property
    def ratio_of_medians(self) -> float:
        """The same by the middle runs."""
        return self.stack.median_s / self.plain.median_s

    @property
    def growth(self) -> float | None:
        """What a resource of the largest program costs, in those of the smallest."""
        return self.sizes[-1].s_per_100_resources / self.sizes[0].s_per_100_resources if len(self.sizes) > 1 else None

    @property
    def within_limits(self) -> bool:
        """Whether both limits are met."""
        return self.ratio <= RATIO_LIMIT and (self.growth is None or self.growth <= GROWTH_LIMIT)

    def as_json(self) -> dict[str, object]:
        """All of it as plain data; every figure is measured."""
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
    more = {"min_s": timing.min_s, "median_s": timing.median_s, "s_per_100_resources": timing.s_per_100_resources}
    return {**asdict(timing), **{name: round(value, 3) for name, value in more.items()}}


def measure(project: Path, stack: str, runs: int, sizes: Sequence[int], progress: Progress) -> Result:
    """Times previews in a world of their own, which is gone afterwards. Nothing of the project is touched.

    Raises:
        Refused: the stack can't be deployed.
        KitError: a program is missing, the world doesn't start, or a preview fails.
    """
    with tempfile.TemporaryDirectory(prefix="llmd-oke-preview-") as temporary:
        folder = Path(temporary)
        with _world(projects.same(project, stack, folder / "world"), progress) as prepared:
            bench = _Bench(project, stack, folder, prepared, progress)
            timings = bench.beside_plain(runs)
            return Result(*timings, bench.growing(runs, sizes, timings[0].resources))


@contextmanager
def _world(of: BenchProject, progress: Progress) -> Generator[Prepared]:
    try:
        yield rehearsal.prepare(of.folder, of.stack, Settings(plugin=PluginChoice.STAND_IN), progress)
    finally:
        rehearsal.down(of.folder, of.stack)


@dataclass(frozen=True)
class _Bench:
    project: Path
    stack: str
    folder: Path
    prepared: Prepared
    progress: Progress

    def beside_plain(self, runs: int) -> tuple[Timing, Timing, Timing]:
        """The stack and the plain program without and with packages, taking turns: all meet the same machine."""
        recorded = {graph.GRAPH_VARIABLE: str(self.folder / "graph.json")}
        first = projects.recording(self.project, self.stack, self.folder / "recording")
        ours = projects.same(self.project, self.stack, self.folder / "same")
        plain = projects.plain(self.project, self.stack, self.folder / "plain")
        instant = {graph.PACKAGE: INSTANT_PORT}
        argv = [sys.executable, "-m", "llmd_oke.rehearsal.preview_speed.instant_plugin", "--port", str(INSTANT_PORT)]
        times: list[tuple[float, float, float]] = []
        with self.prepared.world.process_inside(argv, errors=subprocess.DEVNULL):
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
        """Programs of about as many resources as `sizes` says, by the number of their units."""
        if not sizes:
            return ()
        base, each = self._cost_of_units(resources)
        return tuple(self._size(max(1, round((size - base) / each)), runs) for size in sizes)

    def _cost_of_units(self, resources: int) -> tuple[float, float]:
        """Resources of the stack without units, and those that each unit adds."""
        units = sum(len(model.units) for model in self.prepared.plan.models)
        twice = projects.larger(self.project, self.stack, self.folder / "twice", 2 * units)
        _, found = self.preview(twice, PLUGIN_PORTS)
        each = (found - resources) / units
        return resources - units * each, each

    def _size(self, units: int, runs: int) -> Timing:
        made = projects.larger(self.project, self.stack, self.folder / f"units-{units}", units)
        times: list[float] = []
        found = 0
        for run in range(runs):
            self.progress.step(f"previews of {units} units: {run + 1} of {runs}")
            seconds, found = self.preview(made, PLUGIN_PORTS)
            times.append(seconds)
        return Timing(f"{units} units", found, tuple(times))

    def preview(
        self,
        of: BenchProject,
        plugins: Mapping[str, int],
        variables: Mapping[str, str] | None = None,
        modules: Sequence[str] = (),
    ) -> tuple[float, int]:
        """Seconds that one preview took, and its resources. Each project has a state of its own, with nothing in it.

        `modules` are those that the engine loads at its start for the plain program; the kit's own has what it needs.
        """
        planning.plan_stack_file(of.folder, of.stack)
        state = of.folder / "state"
        copied = copy_project(of.folder, of.stack, state, self.prepared.router)
        result, log = state / "engine.json", state / "engine.log"
        argv = [sys.executable, "-m", "llmd_oke.rehearsal.engine", "--project", str(copied.folder)]
        environment = {
            **copied.variables(),
            **(variables or {}),
            "KUBECONFIG": str(self.prepared.state / "kubeconfig.yaml"),
            "LLMD_OKE_CACHE": str(cache_folder()),
            "PATH": f"{self.prepared.inventory.link_engine(state / 'bin')}:{self.prepared.world.environment()['PATH']}",
            "PULUMI_DEBUG_PROVIDERS": ",".join(f"{name}:{port}" for name, port in plugins.items()),
        }
        wanted = modules if graph.PACKAGE in plugins else rehearsal.program_modules(self.prepared.plan)
        loaded = [word for module in wanted for word in ("--load", module)]
        own = ["--stack", of.stack, "--result", str(result), "preview", *loaded]
        with (
            log.open("w") as words,
            self.prepared.world.process_inside(
                [*argv, *own], env=environment, folder=copied.folder, output=words, errors=words
            ) as process,
        ):
            process.wait(PREVIEW_TIMEOUT_S)
        return _outcome(result, log)


def _outcome(result: Path, log: Path) -> tuple[float, int]:
    if not result.exists():
        raise KitError(f"A preview ended without a result: {end_of_log(log)}")
    found = json.loads(result.read_text())
    if "error" in found:
        raise KitError(found["error"], found["remedy"])
    return float(found["duration_s"]), sum(found["changes"].values())
